"""The layers of encoder and decoder (paper, sections 3.1 and 3.3) with their variants."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.cache import LayerCache, MemoryCache
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.initializers import Scales, matrix_initializer
from transformer_jax.model.norms import norm
from transformer_jax.model.positions import PositionBias
from transformer_jax.model.products import weight_product
from transformer_jax.model.visibility import Visibility


class Residual(nn.Module):
  """A residual connection around a sub-layer with its norm, sections 3.1 and 5.4, by `config.norm`.

  "post" (the paper): Norm(x + Dropout(Sublayer(x))). "pre": x + Dropout(Sublayer(Norm(x))), which trains without a careful
  warm-up, since the residual stream is an unbroken sum; the stack then ends in a norm of its own (Xiong et al. 2020). "both":
  x + Dropout(Norm(Sublayer(Norm(x)))), the sandwich of Ding et al. 2021. "none": x + Dropout(Sublayer(x)).

  Attributes:
    connected: False leaves the "x +" away.
    alpha: what x is multiplied by in the sum (DeepNorm; with "post" only).
  """

  config: ModelConfig
  connected: bool = True
  alpha: float = 1.0

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    sublayer: Callable[[jax.Array], jax.Array],
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    placement = self.config.norm
    y = norm(self.config, name="norm")(x) if placement in ("pre", "both") else x
    y = sublayer(y)
    if placement == "both":
      y = norm(self.config, name="norm_after")(y)
    y = Dropout(self.config.dropout)(y, train)
    if self.connected:
      y = y + x if self.alpha == 1.0 else y + x * self.alpha
    return norm(self.config, name="norm")(y) if placement == "post" else y


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "relu": nn.relu,
  "gelu": lambda x: nn.gelu(x, approximate=False),
  "swiglu": nn.silu,
  "geglu": lambda x: nn.gelu(x, approximate=False),
}


class FeedForward(nn.Module):
  """max(0, x W_1 + b_1) W_2 + b_2 at every position alike, equation 2, or with another activation.

  "gelu": x Φ(x) (Hendrycks & Gimpel 2016) in place of max(0, x). The gated ones have a third matrix of the size of W_1:
  (act(x W_1 + b_1) ⊙ (x V + c)) W_2 + b_2 with act = SiLU ("swiglu") or GELU ("geglu") (Shazeer 2020, arXiv:2002.05202).
  """

  config: ModelConfig
  scales: Scales = Scales()

  @nn.compact
  def __call__(self, x: Float[Array, "batch length d_model"], train: bool) -> Float[Array, "batch length d_model"]:
    config = self.config

    def dense(width: int, name: str) -> nn.Dense:
      init = matrix_initializer(config.init, self.scales.gain, self.scales.sublayers if name == "outer" else 1)
      return nn.Dense(
        width,
        use_bias=config.ffn_bias,
        dtype=config.dtype,
        kernel_init=init,
        dot_general=weight_product,
        name=name,
      )

    inner = ACTIVATIONS[config.activation](dense(config.d_ff, "inner")(x))
    if config.activation in ("swiglu", "geglu"):
      inner = inner * dense(config.d_ff, "gate")(x)
    inner = Dropout(config.ffn_dropout)(inner, train)
    return dense(config.d_model, "outer")(inner)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward network, each in a residual connection."""

  config: ModelConfig
  scales: Scales = Scales()

  def setup(self):
    config = self.config
    self.self_attention = MultiHeadAttention(config, self_attention=True, scales=self.scales)
    self.self_attention_residual = Residual(config, config.residual_self_attention, self.scales.alpha)
    self.feed_forward = FeedForward(config, self.scales)
    self.feed_forward_residual = Residual(config, config.residual_feed_forward, self.scales.alpha)

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    visibility: Visibility,
    positions: Int[Array, "batch length"],
    bias: PositionBias | None,
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    x = self.self_attention_residual(x, lambda y: self.self_attention(y, y, visibility, positions, bias, train), train)
    return self.feed_forward_residual(x, lambda y: self.feed_forward(y, train), train)


class DecoderLayer(nn.Module):
  """Masked self-attention, attention to the encoder's output (the memory) and feed-forward network.

  Attributes:
    cross: False leaves the attention to the memory out: the layer of a decoder that stands alone.
  """

  config: ModelConfig
  cross: bool = True
  scales: Scales = Scales()

  def setup(self):
    config = self.config
    self.self_attention = MultiHeadAttention(config, self_attention=True, scales=self.scales)
    self.self_attention_residual = Residual(config, config.residual_self_attention, self.scales.alpha)
    if self.cross:
      self.cross_attention = MultiHeadAttention(config, self_attention=False, scales=self.scales)
      self.cross_attention_residual = Residual(config, config.residual_cross_attention, self.scales.alpha)
    self.feed_forward = FeedForward(config, self.scales)
    self.feed_forward_residual = Residual(config, config.residual_feed_forward, self.scales.alpha)

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    visibility: Visibility,
    positions: Int[Array, "batch length"],
    bias: PositionBias | None,
    memory: Float[Array, "batch source_length d_model"] | None,
    memory_visibility: Visibility | None,
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    x = self.self_attention_residual(x, lambda y: self.self_attention(y, y, visibility, positions, bias, train), train)
    if self.cross:
      x = self.cross_attention_residual(
        x, lambda y: self.cross_attention(y, memory, memory_visibility, train=train), train
      )
    return self.feed_forward_residual(x, lambda y: self.feed_forward(y, train), train)

  def start_cache(
    self, memory: Float[Array, "batch source_length d_model"], beams: int, max_length: int
  ) -> tuple[LayerCache, MemoryCache | None]:
    """Makes room for max_length positions of every beam and projects the memory once.

    Without attention to a memory, only the batch size of it counts.
    """
    room = (memory.shape[0], beams, max_length, self.config.num_kv_heads)
    key = jnp.zeros((*room, self.config.d_k), self.config.dtype)
    value = jnp.zeros((*room, self.config.d_v), self.config.dtype)
    projected = MemoryCache(*self.cross_attention.project_memory(memory)) if self.cross else None
    return LayerCache(key, value), projected

  def step(
    self,
    x: Float[Array, "batch beams d_model"],
    cache: LayerCache,
    memory: MemoryCache | None,
    position: Int[Array, ""],
    memory_mask: Bool[Array, "batch source_length"],
    bias: PositionBias | None,
    window: int,
  ) -> tuple[Float[Array, "batch beams d_model"], LayerCache]:
    """One position of every beam; the same arithmetic as `__call__` at that position."""

    def attend_to_past(y: jax.Array) -> jax.Array:
      nonlocal cache
      y, cache = self.self_attention.self_step(y, cache, position, bias, window)
      return y

    x = self.self_attention_residual(x, attend_to_past, False)
    if self.cross:
      x = self.cross_attention_residual(x, lambda y: self.cross_attention.memory_step(y, memory, memory_mask), False)
    return self.feed_forward_residual(x, lambda y: self.feed_forward(y, False), False), cache
