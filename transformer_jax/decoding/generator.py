"""A prompt in, its continuation out."""

import copy
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Int, PyTree
from ml_collections import ConfigDict

from transformer_jax.data.batches import Batch
from transformer_jax.data.pieces import BOS, SPECIALS, UNK
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.decoding.sampling import draw


class Generator:
  """Continues text with one language model, which sees the last `batch.row_length` pieces, as in training."""

  def __init__(self, model: nn.Module, params: PyTree, vocabularies: Vocabularies, config: ConfigDict):
    self.model, self.params, self.vocabularies, self.config = model, params, vocabularies, config
    self._continue = jax.jit(self._continue_window, static_argnames="number")

  def with_params(self, params: PyTree) -> "Generator":
    """The same generator with other parameters of the same shapes."""
    other = copy.copy(self)
    other.params = params
    return other

  def generate(self, prompt: str, number: int, seed: int = 0) -> str:
    """Draws so many pieces after the prompt, by temperature, top_k and top_p of `config.decoding`; returns them as text."""
    window = self.config.batch.row_length
    ids = [BOS, *self.vocabularies.target.encode([prompt])[0]][-window:]
    if UNK in ids:
      logging.warning("the prompt has %d pieces that the vocabulary does not know", ids.count(UNK))
    start = np.zeros(window, np.int32)
    start[: len(ids)] = ids
    drawn = self._continue(self.params, start, len(ids), jax.random.key(seed), number=number)
    return self.vocabularies.target.decode([np.asarray(drawn).tolist()])[0]

  def _continue_window(
    self, params: PyTree, window: Int[Array, "length"], filled: Int[Array, ""], key: jax.Array, number: int
  ) -> Int[Array, "number"]:
    """Each step reads the whole window again: when it is full it slides, and every piece gets another position."""
    decoding, places = self.config.decoding, jnp.arange(window.shape[0])[None]

    def step(carry, key):
      window, filled = carry
      segments = (places < filled).astype(jnp.int32)
      nothing = jnp.zeros((1, 1), jnp.int32)
      batch = Batch(nothing, nothing, nothing, window[None], window[None], places, segments)
      logits: Any = self.model.apply({"params": params}, batch)
      logits = logits[0, filled - 1]  # [vocabulary]
      logits = logits.at[: len(SPECIALS)].set(-jnp.inf)
      piece = draw(key[None], logits[None, None], decoding.temperature, decoding.top_k, decoding.top_p)[0, 0]
      full = filled == window.shape[0]
      window = jnp.where(full, jnp.roll(window, -1), window)
      filled = jnp.where(full, filled, filled + 1)
      return (window.at[filled - 1].set(piece), filled), piece

    return jax.lax.scan(step, (window, filled), jax.random.split(key, number))[1]
