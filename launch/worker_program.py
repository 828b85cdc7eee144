"""What a worker runs, in a module of its own: importing it loads JAX."""

from typing import NoReturn

import transformer_jax.results
import transformer_jax.train  # noqa: F401  main imports it late
from transformer_jax.commands import run_command
from transformer_jax.main import main


def run(arguments: list[str]) -> NoReturn:
  """Runs `transformer_jax.main` and ends the process."""
  run_command(main, arguments)
