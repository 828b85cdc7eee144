"""Labels texts with a finished run of task "classify".

  python -m transformer_jax.classify --workdir=runs/sst2 < in > out

Every line in gives one line out, its label; a blank line stays blank.
"""

from absl import flags

from transformer_jax.commands import (
  check_writable,
  define_workdir,
  parse_flags,
  read_lines,
  required,
  run_command,
  write_lines,
)
from transformer_jax.loading import load_reader


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  define_workdir(values)
  flags.DEFINE_string("input", None, "file to label; left out: the standard input", flag_values=values)
  flags.DEFINE_string("output", None, "file to write; left out: the standard output", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command. Nothing is written before all lines are read and labelled."""
  values = parse_flags(define_flags, arguments, __doc__)
  (workdir,) = required(values, "workdir")
  check_writable(values.output)
  labeller = load_reader(workdir, "classify")
  write_lines(values.output, labeller.label(read_lines(values.input)))


if __name__ == "__main__":
  run_command(main)
