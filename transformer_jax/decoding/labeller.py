"""Text in, labels out."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from ml_collections import ConfigDict

from transformer_jax.data.batches import Batch
from transformer_jax.data.pieces import BOS, PAD, SPECIALS
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.decoding.translator import encode, padded, padded_length, positions_of

ROWS = 64


class Labeller:
  """Labels texts with one classifier."""

  def __init__(self, model: nn.Module, params: PyTree, vocabularies: Vocabularies, config: ConfigDict):
    self.model, self.params, self.vocabularies, self.config = model, params, vocabularies, config
    self._logits = jax.jit(self._logits_of)

  def with_params(self, params: PyTree) -> "Labeller":
    """The same labeller with other parameters of the same shapes."""
    other = copy.copy(self)
    other.params = params
    return other

  def label(self, lines: Sequence[str]) -> list[str]:
    """The likeliest label of every line; a line that is too long is cut with a warning."""
    ids = encode(self.vocabularies.source.encode, lines, self.config.data.max_length, "line")
    if self.config.model.pooling == "first":
      ids = [[BOS, *line] for line in ids]
    labels = np.zeros(len(ids), np.int64)
    for length, places in batches_by_length([len(line) for line in ids]):
      source = padded([ids[place] for place in places], ROWS, length)
      logits = np.asarray(self._logits(self.params, source))[
        : len(places), len(SPECIALS) :
      ]  # no label is a special piece
      labels[places] = len(SPECIALS) + logits.argmax(axis=-1)
    return self.vocabularies.target.decode([[label] for label in labels.tolist()])

  def _logits_of(self, params: PyTree, source: Int[Array, "rows length"]) -> Float[Array, "rows labels"]:
    rows = source.shape[0]
    segments, positions = (source != PAD).astype(jnp.int32), positions_of(source)
    one = jnp.zeros((rows, 1), jnp.int32)
    logits: Any = self.model.apply({"params": params}, Batch(source, positions, segments, one, one, one, one))
    return logits[:, 0]


def batches_by_length(lengths: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
  """Groups places in a list by the length they are padded to, at most `ROWS` at a time."""
  groups: dict[int, list[int]] = {}
  for place, length in enumerate(lengths):
    groups.setdefault(padded_length(length), []).append(place)
  for length, places in sorted(groups.items()):
    for start in range(0, len(places), ROWS):
      yield length, places[start : start + ROWS]
