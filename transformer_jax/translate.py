"""Translates lines with a finished run.

  python -m transformer_jax.translate --workdir=runs/quickstart < in > out

Every line in gives one line out; a blank line stays blank. With --n_best=N every line gives up to N lines
`line ||| text ||| log-probability ||| score`, the line counted from 0 and the log-probability natural.
Flags that are left out have the values that the run was tested with.
"""

from absl import flags

from transformer_jax.commands import (
  check_writable,
  define_search_flags,
  parse_flags,
  read_lines,
  required,
  run_command,
  search_changes,
  write_lines,
)
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import UserError


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  define_search_flags(values)
  flags.DEFINE_string("input", None, "file to translate; left out: the standard input", flag_values=values)
  flags.DEFINE_string("output", None, "file to write; left out: the standard output", flag_values=values)
  flags.DEFINE_integer("n_best", None, "print so many hypotheses a line, with their scores", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command. Nothing is written before all lines are read, decoded from UTF-8 and translated."""
  values = parse_flags(define_flags, arguments, __doc__)
  (workdir,) = required(values, "workdir")
  if values.n_best is not None and values.n_best < 1:
    raise UserError(f"--n_best must be at least 1, not {values.n_best}")
  check_writable(values.output)
  translator = Translator.load(workdir, search_changes(values))
  translator.check_number(values.n_best or 1)
  lines = read_lines(values.input)
  if values.n_best is None:
    write_lines(values.output, translator.translate(lines))
    return
  write_lines(
    values.output,
    (
      f"{number} ||| {translation.text} ||| {translation.log_probability:.6f} ||| {translation.score:.6f}"
      for number, translations in enumerate(translator.translate_n_best(lines, values.n_best))
      for translation in translations
    ),
  )


if __name__ == "__main__":
  run_command(main)
