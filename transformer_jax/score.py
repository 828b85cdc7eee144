"""Scores given translations with a finished run: one log-probability a line.

  python -m transformer_jax.score --workdir=runs/quickstart --source=test.en --target=test.de > scores

A line is the natural logarithm of the probability of the target given its source, summed over the target's pieces with
the end of sentence.
"""

from absl import flags

from transformer_jax.commands import check_writable, parse_flags, read_lines, required, run_command, write_lines
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import UserError


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  flags.DEFINE_string("workdir", None, "run directory of a finished training", flag_values=values)
  flags.DEFINE_string("source", None, "file of sources", flag_values=values)
  flags.DEFINE_string("target", None, "file of their translations, line by line", flag_values=values)
  flags.DEFINE_string("output", None, "file to write; left out: the standard output", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  workdir, source, target = required(values, "workdir", "source", "target")
  check_writable(values.output)
  sources, targets = read_pair(source, target)
  scores = Translator.load(workdir).score(sources, targets)
  write_lines(values.output, (f"{score:.6f}" for score in scores))


def read_pair(first: str, second: str) -> tuple[list[str], list[str]]:
  """Reads two files of the same number of lines; raises UserError with both counts where they differ."""
  lines = read_lines(first), read_lines(second)
  if len(lines[0]) != len(lines[1]):
    raise UserError(f"{first} has {len(lines[0])} lines, {second} has {len(lines[1])}: they must go line by line")
  return lines


if __name__ == "__main__":
  run_command(main)
