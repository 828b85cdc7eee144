"""What the decoder keeps between two pieces, so that each step computes one position only."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class LayerCache(NamedTuple):
  """Keys and values of one decoder layer. The memory's are computed once and shared by the beams of a sentence."""

  key: Float[Array, "batch beams max_length heads d_k"]
  value: Float[Array, "batch beams max_length heads d_v"]
  memory_key: Float[Array, "batch source_length heads d_k"]
  memory_value: Float[Array, "batch source_length heads d_v"]


class DecoderCache(NamedTuple):
  """The state of step-by-step decoding, passed to `Transformer.step` and returned by it."""

  position: Int[Array, ""]  # of the piece that comes next, the same for all sentences
  layers: tuple[LayerCache, ...]
  memory_mask: Bool[Array, "batch source_length"]  # True where the source has a piece


def reorder(cache: DecoderCache, beams: Int[Array, "batch beams"]) -> DecoderCache:
  """Moves each sentence's beams: new beam j of sentence b holds what beam beams[b, j] held. The memory stays."""

  def take(kept: jax.Array) -> jax.Array:  # [batch, beams, max_length, heads, width]
    return jnp.take_along_axis(kept, beams[:, :, None, None, None], axis=1)

  layers = tuple(layer._replace(key=take(layer.key), value=take(layer.value)) for layer in cache.layers)
  return cache._replace(layers=layers)
