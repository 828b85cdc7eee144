"""What the commands share: running one with errors in one line, flags of absl, lines of text in and out.

A line of text ends in "\\n" and in nothing else: "\\r", U+2028, U+0085, vertical tab and form feed are text.
"""

import logging as std_logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from absl import flags, logging

from transformer_jax.allocator import keep_freed_memory
from transformer_jax.errors import Stopped, UserError, ending
from transformer_jax.training.rundir import write_bytes_atomically

# Flags of the commands that search, and the fields of the configuration that they replace.
SEARCH_FLAGS = {
  "method": "decoding.method",
  "beam_size": "decoding.beam_size",
  "length_penalty": "decoding.length_penalty",
  "max_extra": "decoding.max_extra",
  "temperature": "decoding.temperature",
  "top_k": "decoding.top_k",
  "top_p": "decoding.top_p",
  "batch_tokens": "decoding.batch_tokens",
  "seed": "seed",
}


def run_command(command: Callable[[list[str]], None], arguments: Sequence[str] | None = None) -> NoReturn:
  """Runs a command with the arguments of the command line and ends the process.

  Exit status: 0, or that of `errors.ending`, which is told in one line on stderr; a traceback is a defect.
  """
  keep_freed_memory()
  flags.FLAGS.mark_as_parsed()  # the commands have flags of their own; absl's logging waits for these to be read
  logging.use_absl_handler()
  logging.get_absl_handler().setFormatter(PlainFormatter())
  try:
    command(list(sys.argv[1:] if arguments is None else arguments))
    sys.stdout.flush()
  except (UserError, Stopped, KeyboardInterrupt, BrokenPipeError) as error:
    if isinstance(error, BrokenPipeError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try to flush the rest once more and complain
    status, text = ending(error)
    if text:
      print(text, file=sys.stderr)
    sys.exit(status)
  sys.exit(0)


class PlainFormatter(logging.PythonFormatter):
  """Log lines for people: "warning: …" instead of absl's letter, time, thread and file."""

  def format(self, record) -> str:
    text = record.getMessage()
    return f"{record.levelname.lower()}: {text}" if record.levelno > std_logging.INFO else text


def parse_flags(
  define: Callable[[flags.FlagValues], None], arguments: Sequence[str], description: str
) -> flags.FlagValues:
  """Reads a command line with the flags that `define` defines; `--help` prints `description` and the flags, and exits.

  Raises:
    UserError: an unknown flag (with the nearest known one), an impossible value, or an argument that is no flag.
  """
  values = flags.FlagValues()
  define(values)
  flags.DEFINE_boolean("verbose", False, "also say what is compiled and done", flag_values=values)
  flags.DEFINE_boolean("help", False, "show this help", short_name="h", flag_values=values)
  try:
    stray = values(["command", *arguments])[1:]
  except flags.Error as error:
    raise UserError(" ".join(str(error).split())) from None
  if values.help:
    print(description.strip() + "\n")
    for name in sorted(name for name in values if len(name) > 1):
      print(f"  --{name}: {values[name].help}")
    sys.exit(0)
  if stray:
    raise UserError(f"stray argument {stray[0]!r}: every option is written --name=value (--help lists them)")
  logging.set_verbosity(logging.INFO if values.verbose else logging.WARNING)
  return values


def define_workdir(values: flags.FlagValues) -> None:
  """Defines --workdir."""
  flags.DEFINE_string("workdir", None, "run directory of a finished training", flag_values=values)


def define_search_flags(values: flags.FlagValues) -> None:
  """Defines --workdir and the flags that replace fields of `config.decoding`; left out, the run's own values hold."""
  define_workdir(values)
  flags.DEFINE_string("method", None, "beam, greedy or sample", flag_values=values)
  flags.DEFINE_integer("beam_size", None, "beams of a beam search", flag_values=values)
  flags.DEFINE_float("length_penalty", None, "alpha in ((5 + n) / 6)^alpha", flag_values=values)
  flags.DEFINE_integer("max_extra", None, "pieces that a translation may have more than its source", flag_values=values)
  flags.DEFINE_float("temperature", None, "for --method=sample: logits are divided by it", flag_values=values)
  flags.DEFINE_integer("top_k", None, "for --method=sample: among the so many likeliest pieces", flag_values=values)
  flags.DEFINE_float("top_p", None, "for --method=sample: among the likeliest of this probability", flag_values=values)
  flags.DEFINE_integer("batch_tokens", None, "source pieces translated at a time", flag_values=values)
  flags.DEFINE_integer("seed", None, "of --method=sample", flag_values=values)


def search_changes(values: flags.FlagValues) -> dict[str, object]:
  """The fields of the configuration that the flags of `define_search_flags` replace."""
  return {field: values[flag].value for flag, field in SEARCH_FLAGS.items() if values[flag].value is not None}


def required(values: flags.FlagValues, *names: str) -> list[str]:
  """The values of flags that must be given; raises UserError for the first that is not."""
  given = []
  for name in names:
    value = values[name].value
    if not value:
      raise UserError(f"--{name} is missing: {values[name].help}")
    given.append(value)
  return given


def read_lines(path: str | None) -> list[str]:
  """The lines of a UTF-8 file, or of the standard input (None). The last one need not end in "\\n".

  Raises:
    UserError: the file cannot be read, or a line is not UTF-8 (named by its number from 1).
  """
  name = path or "standard input"
  try:
    content = Path(path).read_bytes() if path else sys.stdin.buffer.read()
  except OSError as error:
    raise UserError(f"{name} cannot be read: {error.strerror}") from None
  try:
    lines = content.decode("utf-8").split("\n")
  except UnicodeDecodeError as error:
    number = content.count(b"\n", 0, error.start) + 1
    raise UserError(
      f"{name}, line {number}: byte 0x{content[error.start]:02X} is not valid UTF-8; convert the file to UTF-8"
    ) from None
  if not lines[-1]:
    lines.pop()  # behind the last "\n" there is no further line
  return lines


def check_writable(path: str | None) -> None:
  """Raises UserError where an output file cannot be made, so that nothing is computed for it."""
  if path and (Path(path).is_dir() or not os.access(Path(path).absolute().parent, os.W_OK | os.X_OK)):
    raise UserError(f"--output={path} cannot be written: it is a folder, or its folder is missing or write-protected")


def write_lines(path: str | None, lines: Iterable[str]) -> None:
  """Writes lines, each ended by "\\n", to a file that appears at once and whole, or to the standard output (None)."""
  content = "".join(f"{line}\n" for line in lines).encode()
  if not path:
    sys.stdout.flush()
    # Not sys.stdout.buffer: with PYTHONUNBUFFERED it writes no more than a pipe takes at once and drops the rest.
    with open(sys.stdout.fileno(), "wb", closefd=False) as stream:
      stream.write(content)
  elif Path(path).exists() and not Path(path).is_file():
    Path(path).write_bytes(content)  # a pipe or device stays what it is
  else:
    try:
      write_bytes_atomically(path, content)
    except OSError as error:
      raise UserError(f"--output={path} cannot be written: {error.strerror}") from None
