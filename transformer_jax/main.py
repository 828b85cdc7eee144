"""Trains a model, evaluates it and leaves one run directory.

  python -m transformer_jax.main --config=configs/quickstart.py --workdir=runs/quickstart

Any field of the configuration can be changed by a flag, for example --config.training.steps=2000. The same command again
goes on where the first one stopped.
"""

from absl import flags

from transformer_jax.checks import parse_arguments
from transformer_jax.commands import parse_flags, required, run_command


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command, beside --config and its fields."""
  flags.DEFINE_string("workdir", None, "run directory: new, or one to go on with", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  if any(argument in ("--help", "-h") for argument in arguments):
    parse_flags(define_flags, arguments, __doc__)
  config, left = parse_arguments(arguments)
  (workdir,) = required(parse_flags(define_flags, left, __doc__), "workdir")
  # Late: a mistake on the command line is answered before JAX is loaded.
  from transformer_jax.processes import joined_processes
  from transformer_jax.train import train

  with joined_processes(config):
    train(config, workdir)


if __name__ == "__main__":
  run_command(main)
