"""The layers of encoder and decoder (paper, sections 3.1 and 3.3)."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.cache import LayerCache
from transformer_jax.model.config import ModelConfig


def dropout(
  key: PRNGKeyArray | jax.Array, x: Float[Array, "*shape"], rate: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
  """Sets each element to 0 with probability `rate` and divides the others by 1 - rate, so that the mean stays."""
  kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
  return jnp.where(kept, x / (1.0 - rate), 0.0).astype(x.dtype)


class Dropout(nn.Module):
  """`dropout` with the module's own random key; passes x through when not training or when the rate is 0."""

  rate: float

  @nn.compact
  def __call__(self, x: Float[Array, "*shape"], train: bool) -> Float[Array, "*shape"]:
    if not train or self.rate == 0.0:
      return x
    return dropout(self.make_rng("dropout"), x, self.rate)


def layer_norm(config: ModelConfig, name: str | None = None) -> nn.LayerNorm:
  """LayerNorm with float32 mean and variance, the variance in its two-pass form (the fast form loses digits)."""
  return nn.LayerNorm(epsilon=1e-6, dtype=config.dtype, use_fast_variance=False, name=name)


class Residual(nn.Module):
  """A residual connection around a sub-layer, section 3.1 and 5.4.

  "post" (the paper): LayerNorm(x + Dropout(Sublayer(x))). "pre": x + Dropout(Sublayer(LayerNorm(x))), which trains without
  a careful warm-up, since the residual stream is an unbroken sum; the stack then ends in a norm of its own.
  """

  config: ModelConfig

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    sublayer: Callable[[jax.Array], jax.Array],
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    norm = layer_norm(self.config, name="norm")
    drop = Dropout(self.config.dropout)
    if self.config.norm == "pre":
      return x + drop(sublayer(norm(x)), train)
    return norm(x + drop(sublayer(x), train))


class FeedForward(nn.Module):
  """max(0, x W_1 + b_1) W_2 + b_2 at every position alike, equation 2."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length d_model"]) -> Float[Array, "batch length d_model"]:
    glorot = nn.initializers.glorot_uniform()
    inner = nn.Dense(self.config.d_ff, dtype=self.config.dtype, kernel_init=glorot, name="inner")(x)
    return nn.Dense(self.config.d_model, dtype=self.config.dtype, kernel_init=glorot, name="outer")(nn.relu(inner))


def multi_head_attention(config: ModelConfig) -> MultiHeadAttention:
  """Multi-head attention with the sizes of the configuration."""
  return MultiHeadAttention(config.d_model, config.num_heads, config.d_k, config.d_v, config.dtype, config.kernel)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward network, each in a residual connection."""

  config: ModelConfig

  def setup(self):
    self.self_attention = multi_head_attention(self.config)
    self.self_attention_residual = Residual(self.config)
    self.feed_forward = FeedForward(self.config)
    self.feed_forward_residual = Residual(self.config)

  def __call__(
    self, x: Float[Array, "batch length d_model"], mask: Bool[Array, "batch 1 length length"], train: bool
  ) -> Float[Array, "batch length d_model"]:
    x = self.self_attention_residual(x, lambda y: self.self_attention(y, y, mask), train)
    return self.feed_forward_residual(x, self.feed_forward, train)


class DecoderLayer(nn.Module):
  """Masked self-attention, attention to the encoder's output (the memory) and feed-forward network."""

  config: ModelConfig

  def setup(self):
    self.self_attention = multi_head_attention(self.config)
    self.self_attention_residual = Residual(self.config)
    self.cross_attention = multi_head_attention(self.config)
    self.cross_attention_residual = Residual(self.config)
    self.feed_forward = FeedForward(self.config)
    self.feed_forward_residual = Residual(self.config)

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    memory: Float[Array, "batch source_length d_model"],
    self_mask: Bool[Array, "batch 1 length length"],
    memory_mask: Bool[Array, "batch 1 length source_length"],
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    x = self.self_attention_residual(x, lambda y: self.self_attention(y, y, self_mask), train)
    x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, memory, memory_mask), train)
    return self.feed_forward_residual(x, self.feed_forward, train)

  def start_cache(self, memory: Float[Array, "batch source_length d_model"], beams: int, max_length: int) -> LayerCache:
    """Projects the memory once and makes room for max_length positions of every beam."""
    memory_key, memory_value = self.cross_attention.project_memory(memory)
    room = (memory.shape[0], beams, max_length, self.config.num_heads)
    key = jnp.zeros((*room, self.config.d_k), memory_key.dtype)
    value = jnp.zeros((*room, self.config.d_v), memory_value.dtype)
    return LayerCache(key, value, memory_key, memory_value)

  def step(
    self,
    x: Float[Array, "batch beams d_model"],
    cache: LayerCache,
    position: Int[Array, ""],
    memory_mask: Bool[Array, "batch source_length"],
  ) -> tuple[Float[Array, "batch beams d_model"], LayerCache]:
    """One position of every beam; the same arithmetic as `__call__` at that position."""

    def attend_to_past(y: jax.Array) -> jax.Array:
      nonlocal cache
      y, cache = self.self_attention.self_step(y, cache, position)
      return y

    x = self.self_attention_residual(x, attend_to_past, False)
    x = self.cross_attention_residual(x, lambda y: self.cross_attention.memory_step(y, cache, memory_mask), False)
    return self.feed_forward_residual(x, self.feed_forward, False), cache
