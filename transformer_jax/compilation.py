"""The cache of compiled programs, shared by training and translating."""

from pathlib import Path

import jax
from absl import logging
from ml_collections import ConfigDict


def use_compilation_cache(config: ConfigDict) -> None:
  """Keeps compiled programs under `data.cache`, unless `training.compilation_cache` is off: the next start is quicker."""
  if not config.training.compilation_cache:
    return
  folder = Path(config.data.cache).expanduser() / "compiled"
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    logging.warning(
      "data.cache %s cannot be written (%s): programs are compiled anew", config.data.cache, error.strerror
    )
    return
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
