"""Task "mlm": masked pieces of a text to recover, which an encoder can be trained on before it classifies."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
from jaxtyping import PyTree
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax.data.changed import masking_plan
from transformer_jax.data.prepared import PreparedData
from transformer_jax.data.prepared import prepare_data as prepare_pairs
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.tasks import Tested
from transformer_jax.training.progress import Progress

__all__ = ["Reader", "command", "lines_of", "prepare_data", "show_validation", "test"]


class Reader:
  """Holds the parameters; there is nothing to read with a masked language model but its loss."""

  def __init__(self, model: nn.Module, params: PyTree, vocabularies: Vocabularies, config: ConfigDict):
    self.model, self.params, self.vocabularies, self.config = model, params, vocabularies, config

  def with_params(self, params: PyTree) -> "Reader":
    """The same with other parameters."""
    other = copy.copy(self)
    other.params = params
    return other


def prepare_data(config: ConfigDict, vocabularies: Vocabularies | None, rows_multiple: int) -> PreparedData:
  """As for pairs, of which only the sources count; each batch masks other pieces."""
  data = prepare_pairs(config, vocabularies, rows_multiple)
  size = data.vocabularies.source.size
  train_plan, valid_plan = (masking_plan(plan, size, config.seed) for plan in (data.train_plan, data.valid_plan))
  return dataclasses.replace(data, train_plan=train_plan, valid_plan=valid_plan, tests=[])


def show_validation(progress: Progress, reader: Reader, data: PreparedData, config: ConfigDict) -> dict[str, float]:
  """Nothing beside the perplexity of the masked pieces."""
  return {}


def test(config: ConfigDict, workdir: Path, console: Console, reader: Reader, data: PreparedData) -> Tested:
  """There is no test: what the encoder is worth is seen in what it is used for."""
  return Tested({}, 0, 0.0)


def lines_of(scores: dict[str, Any]) -> list[str]:
  """Never asked for."""
  return []


def command(workdir: Path) -> tuple[str, str]:
  """How to go on from here."""
  return "classify", f"python -m transformer_jax.main --config=… --config.init_from={workdir} --config.task=classify"
