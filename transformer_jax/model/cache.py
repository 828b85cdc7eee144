"""What a decoder keeps between two pieces, so that each step computes one position only."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class LayerCache(NamedTuple):
  """Keys and values of one Transformer layer's self-attention."""

  key: Float[Array, "batch beams max_length kv_heads d_k"]
  value: Float[Array, "batch beams max_length kv_heads d_v"]


class MemoryCache(NamedTuple):
  """Keys and values of the source in one Transformer layer, computed once and shared by the beams of a sentence."""

  key: Float[Array, "batch source_length kv_heads d_k"]
  value: Float[Array, "batch source_length kv_heads d_v"]


class DecoderCache(NamedTuple):
  """The state of step-by-step decoding, passed to a model's `step` and returned by it."""

  position: Int[Array, ""]  # of the piece that comes next, the same for all sentences
  beams: Any  # arrays [batch, beams, ...] that belong to a beam: a LayerCache of each layer, or the states of recurrent cells
  memory: Any  # arrays [batch, ...] that belong to a sentence: a MemoryCache of each layer, or the encoder's outputs
  memory_mask: Bool[Array, "batch source_length"]  # True where the source has a piece


def reorder(cache: DecoderCache, beams: Int[Array, "batch beams"]) -> DecoderCache:
  """Moves each sentence's beams: new beam j of sentence b holds what beam beams[b, j] held. The memory stays."""

  def take(kept: jax.Array) -> jax.Array:  # [batch, beams, ...]
    return jnp.take_along_axis(kept, beams.reshape(*beams.shape, *[1] * (kept.ndim - 2)), axis=1)

  return cache._replace(beams=jax.tree.map(take, cache.beams))
