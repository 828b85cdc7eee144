"""Sweeps: lists of settings of configuration fields, put together by a few combinators.

  sweep = chain(one("base"), over("model.num_heads", 1, 4, 16), zipped(over("model.d_k", 16, 32), over("model.d_v", 16, 32)))
  runs = seeds(sweep, 3)

A sweep is a plain list and a setting a small frozen value, so that whatever the combinators lack is a list comprehension.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.checks import check, fields, set_field
from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Setting:
  """Fields of the configuration with the values they get, and what a report calls them.

  Attributes:
    changes: for example {"model.num_heads": 4, "seed": 1}; all other fields keep the value of the base configuration.
    label: the row of the report; "": made of the changes. Settings that differ in "seed" alone are one row.
  """

  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  label: str = ""

  @property
  def row(self) -> str:
    """The label, or the changes but for the seed: "num_heads=4, d_k=16"."""
    parts = [
      f"{name.rsplit('.', 1)[-1]}={plain_value(value)}" for name, value in self.changes.items() if name != "seed"
    ]
    return self.label or ", ".join(parts) or "base"

  @property
  def name(self) -> str:
    """The name of the run and of its directory, the same wherever and whenever the sweep is made: "num_heads=4,seed=1"."""
    row = re.sub(r"[^\w.=+-]+", "-", self.row.replace(", ", ",").replace(",", "+")).strip("-")
    return f"{row}+seed={self.changes['seed']}" if "seed" in self.changes else row


Sweep = list[Setting]


def one(label: str = "", changes: Mapping[str, Any] | None = None) -> Sweep:
  """A sweep of one setting."""
  return [Setting(dict(changes or {}), label)]


def over(field: str, *values: Any) -> Sweep:
  """One setting for each value of a field."""
  return [Setting({field: value}) for value in values]


def chain(*sweeps: Sweep) -> Sweep:
  """The settings of one sweep after those of the other."""
  return list(itertools.chain(*sweeps))


def grid(*sweeps: Sweep) -> Sweep:
  """Every combination of a setting from each sweep; the last sweep varies fastest."""
  return [together(*settings) for settings in itertools.product(*sweeps)]


def zipped(*sweeps: Sweep) -> Sweep:
  """The first settings together, the second together, …; raises UserError for sweeps of unequal length."""
  if len({len(sweep) for sweep in sweeps}) > 1:
    raise UserError(
      f"zipped: the sweeps have {', '.join(str(len(sweep)) for sweep in sweeps)} settings; it takes equal numbers"
    )
  return [together(*settings) for settings in zip(*sweeps, strict=True)]


def one_at_a_time(*sweeps: Sweep) -> Sweep:
  """The base configuration, then each setting alone: the ablation of most papers."""
  return chain(one("base"), *sweeps)


def seeds(sweep: Sweep, count: int, first: int = 0) -> Sweep:
  """Each setting with `count` seeds."""
  return grid(sweep, over("seed", *range(first, first + count)))


def together(*settings: Setting) -> Setting:
  """All changes of several settings in one; raises UserError if two of them set the same field."""
  changes: dict[str, Any] = {}
  for setting in settings:
    twice = changes.keys() & setting.changes.keys()
    if twice:
      raise UserError(f"two settings that are to go together both set {', '.join(sorted(twice))}")
    changes |= setting.changes
  return Setting(changes, ", ".join(setting.label for setting in settings if setting.label))


def configure(base: ConfigDict, setting: Setting) -> ConfigDict:
  """The base configuration with the changes of a setting; raises UserError for a mistake, naming the row."""
  config = base.copy_and_resolve_references()
  try:
    for name, value in setting.changes.items():
      set_field(config, name, value)
    check(config)
  except UserError as error:
    raise UserError(f"sweep, row {setting.row!r}: {error}") from None
  return config


def check_sweep(base: ConfigDict, sweep: Sweep) -> list[ConfigDict]:
  """The configuration of each setting; raises UserError for the first mistake, for an empty sweep and for equal names."""
  if not sweep:
    raise UserError("the sweep is empty")
  names: dict[str, Setting] = {}
  for setting in sweep:
    if setting.name in names:
      raise UserError(f"sweep: two runs have the name {setting.name!r}; give one of them another label")
    names[setting.name] = setting
  return [configure(base, setting) for setting in sweep]


def differences(base: ConfigDict, config: ConfigDict) -> dict[str, Any]:
  """The fields in which a configuration differs from the base."""
  values = dict(fields(base))
  return {name: value for name, value in fields(config) if value != values[name]}


def plain_value(value: Any) -> str:
  """A value as it stands in a name."""
  return "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
