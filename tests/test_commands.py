"""What the commands share: flags, errors in one line, lines of text."""

import os
import subprocess
import sys

import pytest
from absl import flags

from transformer_jax.commands import parse_flags, read_lines, run_command, write_lines
from transformer_jax.errors import UserError


def define(values):
  flags.DEFINE_integer("beam_size", 4, "beams", flag_values=values)


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--beam_sise=3", "beam_size"),
    ("--beam_size=x", "beam_size=x"),
    ("--beam_size=", "beam_size"),
    ("here", "stray argument 'here'"),
  ],
)
def test_impossible_command_line_ends_in_one_line_and_status_2(argument, message, capsys):
  with pytest.raises(SystemExit) as end:
    run_command(lambda arguments: parse_flags(define, arguments, ""), [argument])
  error = capsys.readouterr().err
  assert end.value.code == 2
  assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_help_lists_the_flags(capsys):
  with pytest.raises(SystemExit) as end:
    parse_flags(define, ["--help"], "What it does.")
  assert end.value.code == 0
  assert "What it does." in (text := capsys.readouterr().out) and "--beam_size: beams" in text


def test_only_a_line_feed_ends_a_line(tmp_path):
  """Users hit 14: `\\r`, U+2028, U+0085, vertical tab and form feed are text; the last line may lack its line feed."""
  path = tmp_path / "lines"
  lines = ["a\rb", "a\u2028b\u2029", "a\x85b", "a\x0bb", "a\x0cb\x1c\x1d\x1e", "", "\r", "\u00a0\u3000", "👩‍👩‍👧"]
  write_lines(str(path), lines)
  assert path.read_bytes() == "\n".join([*lines, ""]).encode()
  assert read_lines(str(path)) == lines
  path.write_bytes(b"one\n\ntwo")
  assert read_lines(str(path)) == ["one", "", "two"]
  path.write_bytes(b"\n\n")
  assert read_lines(str(path)) == ["", ""]
  path.write_bytes(b"")
  assert read_lines(str(path)) == []


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3\n", b"\xed\xa0\x80"])
def test_invalid_utf8_is_named_by_its_line(tmp_path, bad):
  """Users hit 14: invalid UTF-8 gets a clear error with its line number."""
  path = tmp_path / "lines"
  path.write_bytes("ä\n\u2028\n".encode() + b"x" + bad + b"\ny\n")
  with pytest.raises(UserError, match=f"line 3: byte 0x{bad[0]:02X} is not valid UTF-8"):
    read_lines(str(path))


def test_missing_file_is_named(tmp_path):
  with pytest.raises(UserError, match="nowhere cannot be read: No such file"):
    read_lines(str(tmp_path / "nowhere"))


def test_output_appears_whole_or_not_at_all(tmp_path):
  path = tmp_path / "out"
  path.write_text("before\n")

  def lines():
    yield "first"
    raise RuntimeError

  with pytest.raises(RuntimeError):
    write_lines(str(path), lines())
  assert path.read_text() == "before\n" and [*tmp_path.iterdir()] == [path]


LONG = "from transformer_jax.commands import *; run_command(lambda _: write_lines(None, ['text' * 1000] * 1000))"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_long_output_passes_through_a_pipe(unbuffered):
  environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
  written = subprocess.run([sys.executable, "-c", LONG], stdout=subprocess.PIPE, env=environment, check=True).stdout
  assert written == (b"text" * 1000 + b"\n") * 1000


def test_reader_that_went_away_ends_the_command_quietly():
  writer = subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert writer.stdout.read(4) == b"text"
  writer.stdout.close()
  assert writer.stderr.read() == b""
  assert writer.wait() == 141
