"""A finished run, ready to be read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import logging

from transformer_jax.checks import check, load_saved_config, set_field
from transformer_jax.compilation import use_compilation_cache
from transformer_jax.data.vocabulary import load_vocabularies
from transformer_jax.errors import UserError
from transformer_jax.model.build import build_model, parameter_shapes
from transformer_jax.tasks import task_of
from transformer_jax.training.checkpoints import load_final


def load_reader(workdir: str | os.PathLike, task: str, changes: Mapping[str, Any] | None = None) -> Any:
  """Loads the final parameters of a run of a task and returns what reads them.

  `changes`: fields that shall differ from the run's configuration, for example `{"decoding.temperature": 0.8}`.

  Raises:
    UserError: no such run, one of another task, an unfinished or damaged one, or a value that a field cannot have.
  """
  workdir = Path(workdir)
  if not workdir.is_dir():
    raise UserError(f"--workdir={workdir}: no such folder; name the run directory of a finished training")
  config = load_saved_config(workdir / "config.json")
  for name, value in (changes or {}).items():
    set_field(config, name, value)
  check(config)
  if config.task != task:
    raise UserError(f'{workdir} is a run of task "{config.task}", not "{task}"')
  if config.model.kernel == "cudnn" and jax.devices()[0].platform != "gpu":
    logging.warning('no NVIDIA GPU here: model.kernel "xla" instead of the run\'s "cudnn", equal within rounding')
    config.model.kernel = "xla"
  use_compilation_cache(config)
  vocabularies = load_vocabularies(workdir)
  model = build_model(config, vocabularies.source.size, vocabularies.target.size)
  params, _ = load_final(workdir, parameter_shapes(model))
  return task_of(config).Reader(model, params, vocabularies, config)
