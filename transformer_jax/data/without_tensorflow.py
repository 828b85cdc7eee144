"""Lets TFDS prepare a set where TensorFlow is not installed.

TFDS 4.9 reads and writes its own formats without TensorFlow, but still opens files through `tf.io.gfile` in two places
that real sets pass through: when it unpacks a downloaded archive, and when it sorts a set of over 1 GB on disk. On
local files these calls are Python's own `open`, `exists` and `remove`.
"""

import contextlib
import importlib.util
import os
import resource
import types
from collections.abc import Iterator
from pathlib import Path

_OPEN_FILES = 4_096  # TFDS sorts in 1,000 files that are open at a time


class _Never(Exception):
  """Stands for TensorFlow's errors, which plain files do not raise."""


def _open(path: str | os.PathLike, mode: str = "r"):
  return open(path, mode)


_LOCAL_FILES = types.SimpleNamespace(
  io=types.SimpleNamespace(
    gfile=types.SimpleNamespace(GFile=_open, exists=os.path.exists, remove=os.remove),
  ),
  compat=types.SimpleNamespace(as_text=lambda text: text.decode() if isinstance(text, bytes) else text),
  errors=types.SimpleNamespace(ResourceExhaustedError=_Never),
)


@contextlib.contextmanager
def local_files_for_tfds(folder: Path) -> Iterator[None]:
  """While it lasts, TFDS's unpacking and sorting use local files, if TensorFlow is missing and `folder` is local.

  A set whose own code needs TensorFlow still fails with an ImportError.
  """
  if importlib.util.find_spec("tensorflow") or "://" in str(folder):
    yield
    return
  from tensorflow_datasets.core import shuffle
  from tensorflow_datasets.core.download import extractor

  modules = [module for module in (shuffle, extractor) if hasattr(module, "tf")]
  before = [module.tf for module in modules]
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = max(limits[0], _OPEN_FILES if limits[1] == resource.RLIM_INFINITY else min(_OPEN_FILES, limits[1]))
  resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
  for module in modules:
    module.tf = _LOCAL_FILES
  try:
    yield
  finally:
    for module, tensorflow in zip(modules, before, strict=True):
      module.tf = tensorflow
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
