"""Encoder and decoder: positions and N layers (paper, section 3.1)."""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.model.cache import DecoderCache
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.dropout import Dropout, LayerDrop
from transformer_jax.model.initializers import embedding_initializer, stack_scales
from transformer_jax.model.layers import DecoderLayer, EncoderLayer
from transformer_jax.model.norms import norm
from transformer_jax.model.positions import PositionBias, alibi, learned_positions, sinusoidal_positions, t5_bias
from transformer_jax.model.visibility import Visibility


class Positions(nn.Module):
  """The position encoding of one stack by `config.positions`: what is added to its input, and to its self-attention's scores.

  (Rotary and Shaw's positions belong to the attention of each layer, see `MultiHeadAttention`.)

  Attributes:
    bidirectional: whether queries see keys after them: T5's buckets then tell the two sides apart.
  """

  config: ModelConfig
  bidirectional: bool

  def setup(self):
    config = self.config
    if config.positions == "learned":
      start = embedding_initializer(config.init, config.d_model)
      self.table = self.param("table", start, (config.max_positions, config.d_model))
    elif config.positions == "t5":
      start = nn.initializers.normal(config.d_model**-0.5)
      self.buckets = self.param("buckets", start, (config.t5_buckets, config.num_heads))

  def added(self, positions: Int[Array, "batch length"], max_length: int) -> Float[Array, "..."]:
    """What is added to the embeddings, [batch, length, d_model]; 0 where nothing is. Positions must be below max_length."""
    if self.config.positions == "sinusoidal":
      return sinusoidal_positions(positions, self.config.d_model, max_length)
    if self.config.positions == "learned":
      return learned_positions(positions, self.table)
    return jnp.zeros(())

  def bias(self) -> PositionBias | None:
    """What is added to the scores of self-attention, one for all layers of the stack; None: nothing."""
    if self.config.positions == "alibi":
      return alibi(self.config.num_heads)
    if self.config.positions == "t5":
      return functools.partial(t5_bias, table=self.buckets, bidirectional=self.bidirectional)
    return None


def has_final_norm(config: ModelConfig) -> bool:
  """Whether a stack ends in a norm of its own: where the residual stream is not normalised on the way."""
  return config.norm in ("pre", "both")


class Encoder(nn.Module):
  """Positions, dropout and N encoder layers; with pre-norm, a last norm."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.positions = Positions(config, bidirectional=True)
    self.dropout, self.layer_drop = Dropout(config.dropout), LayerDrop(config.layer_drop)
    scales = stack_scales(config, decoder=False)
    self.layers = [EncoderLayer(config, scales, name=f"layer_{i}") for i in range(config.num_encoder_layers)]
    if has_final_norm(config):
      self.norm = norm(config)

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    positions: Int[Array, "batch length"],
    segments: Int[Array, "batch length"],
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    """Encodes embedded pieces."""
    config = self.config
    seen = segments if config.source_padding_mask else None
    window = config.local_window_size if "encoder" in config.local_window_in else 0
    visibility, bias = Visibility(seen, seen, window=window), self.positions.bias()
    added = self.positions.added(positions, x.shape[1])
    x = self.dropout((x + added).astype(config.dtype), train)
    for index, layer in enumerate(self.layers):
      if index and config.positions_in == "every":
        x = x + added.astype(x.dtype)
      x = self.layer_drop(x, layer(x, visibility, positions, bias, train), train)
    return self.norm(x) if has_final_norm(config) else x


class Decoder(nn.Module):
  """Positions, dropout and N decoder layers; with pre-norm, a last norm.

  Attributes:
    cross: whether the layers attend to a memory; False: a decoder that stands alone.
  """

  config: ModelConfig
  cross: bool = True

  def setup(self):
    config = self.config
    self.positions = Positions(config, bidirectional=not config.causal_mask)
    self.dropout, self.layer_drop = Dropout(config.dropout), LayerDrop(config.layer_drop)
    scales = stack_scales(config, True, self.cross)
    self.layers = [
      DecoderLayer(config, self.cross, scales, name=f"layer_{i}") for i in range(config.num_decoder_layers)
    ]
    if has_final_norm(config):
      self.norm = norm(config)

  @property
  def window(self) -> int:
    return self.config.local_window_size if "decoder" in self.config.local_window_in else 0

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    positions: Int[Array, "batch length"],
    segments: Int[Array, "batch length"],
    memory: Float[Array, "batch source_length d_model"] | None,
    memory_segments: Int[Array, "batch source_length"] | None,
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    """Decodes embedded pieces, all positions at once (teacher forcing)."""
    config = self.config
    visibility = Visibility(segments, segments, config.causal_mask, self.window)
    to_memory = Visibility(segments, memory_segments) if config.cross_padding_mask else Visibility(None, None)
    bias, added = self.positions.bias(), self.positions.added(positions, x.shape[1])
    x = self.dropout((x + added).astype(config.dtype), train)
    for index, layer in enumerate(self.layers):
      if index and config.positions_in == "every":
        x = x + added.astype(x.dtype)
      x = self.layer_drop(x, layer(x, visibility, positions, bias, memory, to_memory, train), train)
    return self.norm(x) if has_final_norm(config) else x

  def start_cache(
    self,
    memory: Float[Array, "batch source_length d_model"],
    memory_mask: Bool[Array, "batch source_length"],
    beams: int,
    max_length: int,
  ) -> DecoderCache:
    """Prepares `step`. A decoder that stands alone takes of the memory nothing but the batch size."""
    if not self.config.cross_padding_mask:
      memory_mask = jnp.ones_like(memory_mask)
    of_beams, of_memory = zip(*(layer.start_cache(memory, beams, max_length) for layer in self.layers), strict=True)
    return DecoderCache(jnp.zeros((), jnp.int32), of_beams, of_memory, memory_mask)

  def step(
    self, x: Float[Array, "batch beams d_model"], cache: DecoderCache
  ) -> tuple[Float[Array, "batch beams d_model"], DecoderCache]:
    """One embedded piece of every beam; the same arithmetic as `__call__` at that position."""
    max_length = cache.beams[0].key.shape[2]
    positions = jnp.broadcast_to(cache.position, x.shape[:2])
    bias, added = self.positions.bias(), self.positions.added(positions, max_length)
    x = (x + added).astype(self.config.dtype)
    layers = []
    for index, (layer, kept, memory) in enumerate(zip(self.layers, cache.beams, cache.memory, strict=True)):
      if index and self.config.positions_in == "every":
        x = x + added.astype(x.dtype)
      x, kept = layer.step(x, kept, memory, cache.position, cache.memory_mask, bias, self.window)
      layers.append(kept)
    x = self.norm(x) if has_final_norm(self.config) else x
    return x, cache._replace(position=cache.position + 1, beams=tuple(layers))
