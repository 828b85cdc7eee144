"""Lines of text files, plain or compressed. Only a line feed ends a line; U+2028, carriage return and more are text."""

import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedIOBase]:
  """Opens a plain, .gz or .xz file for reading its content.

  Raises:
    UserError: naming the file, where it cannot be read or is no complete compressed file.
  """
  openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
  try:
    with openers.get(path.suffix, open)(path, "rb") as file:
      yield file
  except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError):
    raise UserError(f"{path} is no complete {path.suffix} file; fetch or compress it again") from None
  except OSError as error:
    raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def read_lines(path: str | Path) -> Iterator[str]:
  """The lines of a plain, .gz or .xz file, without their line feeds, one at a time.

  Raises:
    UserError: naming the file, where it cannot be read, and the line, where it is not UTF-8.
  """
  with open_bytes(Path(path)) as file:
    yield from decode_lines(file, str(path))


def read_text(path: Path) -> str:
  """The whole text of a plain, .gz or .xz file; raises UserError as `read_lines` does."""
  with open_bytes(path) as file:
    content = file.read()
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    number = content.count(b"\n", 0, error.start) + 1
    raise UserError(
      f"{path}, line {number}: not valid UTF-8 (byte 0x{content[error.start]:02X}); convert the file to UTF-8"
    ) from None


def count_lines(path: Path) -> int:
  """The number of lines; a last one without a line feed counts."""
  count, last = 0, b"\n"
  with open_bytes(path) as file:
    while block := file.read(1 << 20):
      count += block.count(b"\n")
      last = block[-1:]
  return count + (last != b"\n")
