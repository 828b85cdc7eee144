"""Which runs of a sweep train as one program."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer_jax.checks import fields
from transformer_jax.errors import UserError


def one_by_one(configs: Sequence[ConfigDict]) -> list[list[int]]:
  """Each run by itself."""
  return [[number] for number in range(len(configs))]


def together(configs: Sequence[ConfigDict]) -> list[list[int]]:
  """The numbers of the runs that train together, in the order of the sweep.

  Raises:
    UserError: no two runs can, or those that could are refused by `check_together`.
  """
  from transformer_jax.training.together import MAY_DIFFER, check_together  # late: it loads JAX

  groups: dict[str, list[int]] = {}
  for number, config in enumerate(configs):
    shared = repr([(name, value) for name, value in fields(config) if name not in MAY_DIFFER])
    groups.setdefault(shared, []).append(number)
  if len(groups) == len(configs):
    raise UserError(f"--vmap: no two runs of this sweep differ in {', '.join(MAY_DIFFER)} alone; leave --vmap out")
  for group in groups.values():
    if len(group) > 1:
      check_together([configs[number] for number in group])
  return list(groups.values())
