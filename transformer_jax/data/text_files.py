"""Lines of text files, plain or compressed. Only a line feed ends a line; U+2028, carriage return and more are text."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from transformer_jax.errors import UserError


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
  """Decodes the lines of a binary stream (which end at line feeds alone) and takes their line feeds off.

  Raises:
    UserError: naming the line (counted from 1) that is not UTF-8.
  """
  for number, line in enumerate(lines, start=1):
    try:
      text = line.decode()
    except UnicodeDecodeError as error:
      raise UserError(
        f"{name}, line {number}: not valid UTF-8 (byte 0x{line[error.start]:02X}); convert the file to UTF-8"
      ) from None
    yield text.removesuffix("\n")


def open_bytes(path: Path) -> io.BufferedIOBase:
  """Opens a plain, .gz or .xz file for reading its content."""
  try:
    if path.suffix == ".gz":
      return gzip.open(path, "rb")
    return lzma.open(path, "rb") if path.suffix == ".xz" else open(path, "rb")
  except OSError as error:
    raise UserError(f"{path} cannot be read: {error.strerror}") from None


def read_lines(path: str | Path) -> Iterator[str]:
  """The lines of a plain, .gz or .xz file, without their line feeds, one at a time.

  Raises:
    UserError: naming the file, where it cannot be read, and the line, where it is not UTF-8.
  """
  path = Path(path)
  try:
    with open_bytes(path) as file:
      yield from decode_lines(file, str(path))
  except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError):
    raise UserError(f"{path} is no complete {path.suffix} file; fetch or compress it again") from None
  except OSError as error:
    raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def count_lines(path: Path) -> int:
  """The number of lines; a last one without a line feed counts."""
  count, last = 0, b"\n"
  try:
    with open_bytes(path) as file:
      while block := file.read(1 << 20):
        count += block.count(b"\n")
        last = block[-1:]
  except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError):
    raise UserError(f"{path} is no complete {path.suffix} file; fetch or compress it again") from None
  return count + (last != b"\n")
