"""Continues a prompt with a finished run of task "lm".

  python -m transformer_jax.generate --workdir=runs/shakespeare --prompt="ROMEO:" --pieces=500 --temperature=0.8

Prints the prompt and what is drawn after it. Flags that are left out have the values of the run.
"""

import sys

from absl import flags

from transformer_jax.commands import define_workdir, parse_flags, required, run_command
from transformer_jax.errors import UserError
from transformer_jax.loading import load_reader


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  define_workdir(values)
  flags.DEFINE_string("prompt", "\n", "text to go on from", flag_values=values)
  flags.DEFINE_integer("pieces", 500, "how many pieces to draw", flag_values=values)
  flags.DEFINE_integer("seed", 0, "of the draw", flag_values=values)
  flags.DEFINE_float("temperature", None, "logits are divided by it", flag_values=values)
  flags.DEFINE_integer("top_k", None, "draw among the so many likeliest pieces", flag_values=values)
  flags.DEFINE_float("top_p", None, "draw among the likeliest that together have this probability", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  (workdir,) = required(values, "workdir")
  if values.pieces < 1:
    raise UserError(f"--pieces must be at least 1, not {values.pieces}")
  names = ("temperature", "top_k", "top_p")
  changes = {f"decoding.{name}": values[name].value for name in names if values[name].value is not None}
  generator = load_reader(workdir, "lm", changes)
  sys.stdout.write(f"{values.prompt}{generator.generate(values.prompt, values.pieces, values.seed)}\n")


if __name__ == "__main__":
  run_command(main)
