"""What `config.task` names: which data a run reads, what reads its model, what is shown and scored.

Each task is a module with the functions of `Task`; model, training step and loop are the same for all.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import PyTree
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax.data.prepared import PreparedData
from transformer_jax.training.progress import Progress


class Tested(NamedTuple):
  """The test sets' scores by name, and how many sentences were read in how many seconds."""

  scores: dict[str, dict[str, Any]]
  sentences: int
  seconds: float


@runtime_checkable
class Reader(Protocol):
  """What uses a model: a translator, a labeller, a generator."""

  params: PyTree

  def with_params(self, params: PyTree) -> "Reader": ...


class Task(Protocol):
  """The functions of a task's module."""

  prepare_data: Callable[..., PreparedData]  # (config, vocabularies, rows_multiple)
  Reader: Callable[..., Reader]  # (model, params, vocabularies, config)

  def show_validation(
    self, progress: Progress, reader: Any, data: PreparedData, config: ConfigDict
  ) -> dict[str, float]:
    """Prints what the model does with the first validation examples; returns further figures for metrics.jsonl."""

  def test(self, config: ConfigDict, workdir: Path, console: Console, reader: Any, data: PreparedData) -> Tested:
    """Reads the test sets with the final parameters, writes what comes out, and scores it."""

  def lines_of(self, scores: dict[str, Any]) -> list[str]:
    """One test set's scores for the screen."""

  def command(self, workdir: Path) -> tuple[str, str]:
    """What the user can do with the run: a word and a command line."""


MODULES = {"translate": "translation", "classify": "classification", "lm": "language_modelling", "mlm": "masking"}


def task_of(config: ConfigDict) -> ModuleType:
  """The module of `config.task`. The others are not loaded: what they need (scikit-learn) takes seconds."""
  return importlib.import_module(f"transformer_jax.tasks.{MODULES[config.task]}")
