"""Text in, labels out."""

import copy
from collections.abc import Sequence
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
from transformer_jax.decoding.batching import batches_by_length, padded, positions_of
from transformer_jax.decoding.translator import encode


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
    """The likeliest label of every line, "" for a blank one; a line that is too long is cut with a warning."""
    ids = encode(self.vocabularies.source.encode, lines, self.config.data.max_length, "line")
    if self.config.model.pooling == "first":
      ids = [[BOS, *line] for line in ids]
    labels = np.zeros(len(ids), np.int64)
    lengths = [len(line) for line in ids]
    for length, rows, places in batches_by_length(lengths, self.config.decoding.batch_tokens):
      source = padded([ids[place] for place in places], rows, length)
      logits = np.asarray(self._logits(self.params, source))[: len(places)]
      logits = logits[:, len(SPECIALS) :]  # no label is a special piece
      labels[places] = len(SPECIALS) + logits.argmax(axis=-1)
    found = self.vocabularies.target.decode([[label] for label in labels.tolist()])
    return [label if line.strip() else "" for label, line in zip(found, lines, strict=True)]

  def _logits_of(self, params: PyTree, source: Int[Array, "rows length"]) -> Float[Array, "rows labels"]:
    rows = source.shape[0]
    segments, positions = (source != PAD).astype(jnp.int32), positions_of(source)
    one = jnp.zeros((rows, 1), jnp.int32)
    logits: Any = self.model.apply({"params": params}, Batch(source, positions, segments, one, one, one, one))
    return logits[:, 0]
