"""Going on with a run: where it stood, whether its configuration still fits, on which machine it ran."""

import dataclasses
import enum
import os
from pathlib import Path

import flax
import jax
import jaxlib
import numpy as np
import optax
from absl import logging
from ml_collections import ConfigDict

from transformer_jax.checks import fields, load_saved_config
from transformer_jax.errors import UserError
from transformer_jax.training.checkpoints import FINAL


@dataclasses.dataclass
class Place:
  """Where a run stands beside its arrays; a part of every checkpoint."""

  step: int = 0  # updates done
  epoch: int = 0  # passes over the training corpus that are complete
  batch: int = 0  # batches of the current pass that are done
  best: float | None = None  # lowest validation loss so far: nats per piece, without smoothing
  without_gain: int = 0  # validations in a row that did not lower it
  seconds: float = 0.0  # spent on updates, over all starts
  pieces: int = 0  # target pieces of all updates

  def validated(self, nll: float) -> float:
    """Takes note of a validation loss and returns it."""
    if self.best is None or nll < self.best:
      self.best, self.without_gain = nll, 0
    else:
      self.without_gain += 1
    return nll


# A change in one of these makes another model or reads other ids: the checkpoints do not fit.
FIXED_SECTIONS = ("model", "vocabulary")
FIXED_FIELDS = ("seed", "init_from", "task")
# Of these sections, what is only felt in training, or changes nothing but the way of computing.
FREE_MODEL_FIELDS = (
  "model.dropout",
  "model.attention_dropout",
  "model.ffn_dropout",
  "model.layer_drop",
  "model.kernel",
)
# These change nothing that was trained.
FREE_FIELDS = ("data.cache", "data.folder", "training.compilation_cache")


class Start(enum.Enum):
  """What a run directory holds when a command starts on it."""

  NEW = "nothing yet"
  CONTINUED = "a run that goes on"
  FINISHED = "a run that this configuration has finished"


def check_start(config: ConfigDict, workdir: Path) -> tuple[Start, list[str]]:
  """Compares with the configuration that `workdir` was started with; returns one line for each difference, too.

  Raises:
    UserError: model, vocabulary, seed or starting point are others, so that what was trained would not fit.
  """
  path = workdir / "config.json"
  if not path.exists():
    return Start.NEW, []
  saved, changes = dict(fields(load_saved_config(path))), []
  for name, value in fields(config):
    if value == saved[name] or name in FREE_FIELDS:
      continue
    if (name.split(".")[0] in FIXED_SECTIONS and name not in FREE_MODEL_FIELDS) or name in FIXED_FIELDS:
      raise UserError(
        f"{name} is {value!r}, but {workdir} was started with {saved[name]!r}: give back the old value or use another --workdir"
      )
    changes.append(f"{name} is {value!r}, was {saved[name]!r} when {workdir} was started")
  finished = (workdir / "results.json").exists() and (workdir / "checkpoints" / FINAL).exists()
  return Start.FINISHED if finished and not changes else Start.CONTINUED, changes


def environment() -> dict[str, str | int]:
  """What decides whether a continued run repeats an undisturbed one bit for bit."""
  several = {"processes": jax.process_count()} if jax.process_count() > 1 else {}
  return {
    **several,
    "jax": jax.__version__,
    "jaxlib": jaxlib.__version__,
    "flax": flax.__version__,
    "optax": optax.__version__,
    "numpy": np.__version__,
    "device": jax.devices()[0].device_kind,
    "devices": jax.device_count(),
    "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
  }


def warn_about_environment(saved: dict[str, str | int]) -> None:
  """Prints one warning if the checkpoint was made elsewhere: the run then agrees within rounding, not to the bit."""
  changes = [f"{name} {saved.get(name)} → {value}" for name, value in environment().items() if saved.get(name) != value]
  if changes:
    logging.warning(
      "continued under other conditions (%s): agrees within rounding, not bit for bit", ", ".join(changes)
    )
