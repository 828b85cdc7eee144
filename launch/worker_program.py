"""What a worker runs, in a module of its own: importing it loads JAX."""

import sys
from typing import NoReturn

from launch.runs import Run
from transformer_jax.commands import run_command
from transformer_jax.errors import UserError
from transformer_jax.main import main
from transformer_jax.training.together import train_together


def run_all(runs: list[Run]) -> NoReturn:
  """Runs `transformer_jax.main` on one run, or trains several as one program, and ends the process."""
  if len(runs) == 1:
    run_command(main, runs[0].command())
  run_command(lambda _: train_all(runs), [])


def train_all(runs: list[Run]) -> None:
  """Trains several runs as one program; those that fail by themselves are marked so. The exit status is then 1."""
  outcomes = train_together([run.config() for run in runs], [run.directory for run in runs])
  for run, outcome in zip(runs, outcomes, strict=True):
    if isinstance(outcome, UserError):
      run.mark_failed(f"error: {outcome}")
  if any(isinstance(outcome, UserError) for outcome in outcomes):
    sys.exit(1)
