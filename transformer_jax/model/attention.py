"""Attention (paper, section 3.2): scaled dot-product attention and multi-head attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.model.cache import LayerCache
from transformer_jax.model.config import Kernel


def scaled_dot_product_attention(
  query: Float[Array, "batch queries heads d_k"],
  key: Float[Array, "batch keys heads d_k"],
  value: Float[Array, "batch keys heads d_v"],
  mask: Bool[Array, "batch #heads #queries keys"],
) -> tuple[Float[Array, "batch queries heads d_v"], Float[Array, "batch heads queries keys"]]:
  """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1. Returns the result and the weights.

  Hidden keys (mask False) get the least finite float32 instead of minus infinity: a query that may see nothing then weighs
  all keys alike, where minus infinity would give NaN. The softmax is float32 whatever the type of the inputs.
  """
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  scores = scores / jnp.sqrt(query.shape[-1]).astype(jnp.float32)  # [batch, heads, queries, keys]
  scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
  weights = jax.nn.softmax(scores)
  return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value), weights


def attend(
  query: Float[Array, "batch queries heads d_k"],
  key: Float[Array, "batch keys heads d_k"],
  value: Float[Array, "batch keys heads d_v"],
  mask: Bool[Array, "batch #heads #queries keys"],
  kernel: Kernel = "xla",
) -> Float[Array, "batch queries heads d_v"]:
  """The same without the weights, through `jax.nn.dot_product_attention` where that can express it (d_k = d_v)."""
  if query.shape[-1] != value.shape[-1]:
    return scaled_dot_product_attention(query, key, value, mask)[0]
  return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation=kernel)


def padding_mask(
  query_segments: Int[Array, "batch queries"], key_segments: Int[Array, "batch keys"]
) -> Bool[Array, "batch 1 queries keys"]:
  """True where a query may see a key: both belong to the same pair of the row. Segment 0 is padding, seen by nobody."""
  same_pair = query_segments[:, :, None] == key_segments[:, None, :]
  return (same_pair & (key_segments > 0)[:, None, :])[:, None]


def causal_mask(length: int) -> Bool[Array, "1 1 queries keys"]:
  """True where the key does not lie after the query (section 3.2.3)."""
  return jnp.tril(jnp.ones((length, length), bool))[None, None]


class MultiHeadAttention(nn.Module):
  """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), section 3.2.2. No biases."""

  d_model: int
  num_heads: int
  d_k: int
  d_v: int
  dtype: jnp.dtype
  kernel: Kernel = "xla"

  def setup(self):
    # The h matrices of a role are one parameter [d_model, heads, width]; Glorot's rule counts the width of all heads together.
    def into_heads(width: int) -> nn.DenseGeneral:
      return nn.DenseGeneral(
        (self.num_heads, width), use_bias=False, dtype=self.dtype, kernel_init=nn.initializers.glorot_uniform()
      )

    self.query_projection = into_heads(self.d_k)
    self.key_projection = into_heads(self.d_k)
    self.value_projection = into_heads(self.d_v)
    self.output_projection = nn.DenseGeneral(
      self.d_model, axis=(-2, -1), use_bias=False, dtype=self.dtype, kernel_init=nn.initializers.glorot_uniform()
    )

  def __call__(
    self,
    x: Float[Array, "batch queries d_model"],
    memory: Float[Array, "batch keys d_model"],
    mask: Bool[Array, "batch #heads #queries keys"],
  ) -> Float[Array, "batch queries d_model"]:
    """Attends from x to memory (self-attention: the same array). Sows the weights when `intermediates` is mutable."""
    query = self.query_projection(x)  # [batch, queries, heads, d_k]
    key, value = self.project_memory(memory)
    if self.is_mutable_collection("intermediates") and not self.is_initializing():
      heads, weights = scaled_dot_product_attention(query, key, value, mask)
      self.sow("intermediates", "weights", weights)
    else:
      heads = attend(query, key, value, mask, self.kernel)
    return self.output_projection(heads)

  def project_memory(
    self, memory: Float[Array, "batch keys d_model"]
  ) -> tuple[Float[Array, "batch keys heads d_k"], Float[Array, "batch keys heads d_v"]]:
    """Returns the keys and values of what is attended to."""
    return self.key_projection(memory), self.value_projection(memory)

  def self_step(
    self, x: Float[Array, "batch beams d_model"], cache: LayerCache, position: Int[Array, ""]
  ) -> tuple[Float[Array, "batch beams d_model"], LayerCache]:
    """Self-attention of one new position to itself and all earlier ones, whose keys and values are in the cache."""
    query = self.query_projection(x)  # [batch, beams, heads, d_k]
    new_key, new_value = self.project_memory(x)
    key = jax.lax.dynamic_update_slice_in_dim(cache.key, new_key[:, :, None], position, axis=2)
    value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_value[:, :, None], position, axis=2)
    batch, beams, max_length = key.shape[:3]
    past = jnp.broadcast_to(jnp.arange(max_length) <= position, (batch * beams, 1, 1, max_length))

    def flat(array):  # [batch, beams, ...] -> [batch * beams, ...]: each beam is a row of its own
      return array.reshape(batch * beams, *array.shape[2:])

    heads = attend(flat(query)[:, None], flat(key), flat(value), past)  # [batch * beams, 1, heads, d_v]
    heads = heads.reshape(batch, beams, *heads.shape[2:])
    return self.output_projection(heads), cache._replace(key=key, value=value)

  def memory_step(
    self, x: Float[Array, "batch beams d_model"], cache: LayerCache, memory_mask: Bool[Array, "batch source_length"]
  ) -> Float[Array, "batch beams d_model"]:
    """Attention of one new position to the source. The beams stand where the queries of a sentence stand otherwise."""
    query = self.query_projection(x)  # [batch, beams, heads, d_k]
    return self.output_projection(attend(query, cache.memory_key, cache.memory_value, memory_mask[:, None, None, :]))
