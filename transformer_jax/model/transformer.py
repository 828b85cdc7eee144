"""The encoder-decoder (paper, section 3 and figure 1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.data.batches import Batch
from transformer_jax.model.attention import causal_mask, padding_mask
from transformer_jax.model.cache import DecoderCache
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.layers import DecoderLayer, Dropout, EncoderLayer, layer_norm
from transformer_jax.model.positions import sinusoidal_positions


class Encoder(nn.Module):
  """N encoder layers; with pre-norm, a last LayerNorm."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, "batch length d_model"], segments: Int[Array, "batch length"], train: bool
  ) -> Float[Array, "batch length d_model"]:
    mask = padding_mask(segments, segments)
    for index in range(self.config.num_encoder_layers):
      x = EncoderLayer(self.config, name=f"layer_{index}")(x, mask, train)
    return layer_norm(self.config, name="norm")(x) if self.config.norm == "pre" else x


class Decoder(nn.Module):
  """N decoder layers; with pre-norm, a last LayerNorm."""

  config: ModelConfig

  def setup(self):
    self.layers = [DecoderLayer(self.config, name=f"layer_{i}") for i in range(self.config.num_decoder_layers)]
    if self.config.norm == "pre":
      self.norm = layer_norm(self.config)

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    segments: Int[Array, "batch length"],
    memory: Float[Array, "batch source_length d_model"],
    memory_segments: Int[Array, "batch source_length"],
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    self_mask = padding_mask(segments, segments) & causal_mask(segments.shape[1])
    memory_mask = padding_mask(segments, memory_segments)
    for layer in self.layers:
      x = layer(x, memory, self_mask, memory_mask, train)
    return self._end(x)

  def start_cache(
    self,
    memory: Float[Array, "batch source_length d_model"],
    memory_mask: Bool[Array, "batch source_length"],
    beams: int,
    max_length: int,
  ) -> DecoderCache:
    layers = tuple(layer.start_cache(memory, beams, max_length) for layer in self.layers)
    return DecoderCache(jnp.zeros((), jnp.int32), layers, memory_mask)

  def step(
    self, x: Float[Array, "batch beams d_model"], cache: DecoderCache
  ) -> tuple[Float[Array, "batch beams d_model"], DecoderCache]:
    layers = []
    for layer, kept in zip(self.layers, cache.layers, strict=True):
      x, kept = layer.step(x, kept, cache.position, cache.memory_mask)
      layers.append(kept)
    return self._end(x), cache._replace(position=cache.position + 1, layers=tuple(layers))

  def _end(self, x: jax.Array) -> jax.Array:
    return self.norm(x) if self.config.norm == "pre" else x


class Transformer(nn.Module):
  """Maps a batch of pairs to the logits of each next target piece; or encodes, then decodes piece by piece."""

  config: ModelConfig

  def setup(self):
    config = self.config

    # Normal with deviation d_model^-0.5: times sqrt(d_model) at the input (section 3.4) the elements have variance 1, and
    # as output layer the same matrix gives logits of variance about 1.
    def embedding(name: str, size: int) -> jax.Array:
      return self.param(name, nn.initializers.normal(config.d_model**-0.5), (size, config.d_model))

    self.target_embedding = embedding("target_embedding", config.target_vocabulary)
    self.source_embedding = (
      self.target_embedding
      if config.share_embeddings == "all"
      else embedding("source_embedding", config.source_vocabulary)
    )
    self.output_layer = (
      embedding("output_layer", config.target_vocabulary)
      if config.share_embeddings == "none"
      else self.target_embedding
    )
    self.source_dropout = Dropout(config.dropout)
    self.target_dropout = Dropout(config.dropout)
    self.encoder = Encoder(config)
    self.decoder = Decoder(config)

  def __call__(self, batch: Batch, train: bool = False) -> Float[Array, "rows target_length vocabulary"]:
    """Teacher forcing: the logits at a position are for `batch.target_outputs` there. Dropout needs `rngs={"dropout": key}`."""
    batch = jax.tree.map(jnp.asarray, batch)
    memory = self.encode(batch.source, batch.source_positions, batch.source_segments, train)
    x = self._embed(self.target_embedding, batch.target_inputs, batch.target_positions, batch.target_inputs.shape[1])
    x = self.target_dropout(x, train)
    x = self.decoder(x, batch.target_segments, memory, batch.source_segments, train)
    return self._logits(x)

  def encode(
    self,
    source: Int[Array, "batch length"],
    positions: Int[Array, "batch length"],
    segments: Int[Array, "batch length"],
    train: bool = False,
  ) -> Float[Array, "batch length d_model"]:
    """Returns the memory, the encoder's output, that the decoder attends to."""
    x = self.source_dropout(self._embed(self.source_embedding, source, positions, source.shape[1]), train)
    return self.encoder(x, segments, train)

  def start_cache(
    self,
    memory: Float[Array, "batch source_length d_model"],
    segments: Int[Array, "batch source_length"],
    beams: int,
    max_length: int,
  ) -> DecoderCache:
    """Prepares decoding of one source per row (segments 1, padding 0) with so many beams, up to max_length pieces."""
    return self.decoder.start_cache(memory, segments > 0, beams, max_length)

  def step(
    self, tokens: Int[Array, "batch beams"], cache: DecoderCache
  ) -> tuple[Float[Array, "batch beams vocabulary"], DecoderCache]:
    """Reads one more piece of every beam (BOS first) and returns the logits of the next: those of `__call__` there."""
    max_length = cache.layers[0].key.shape[2]
    positions = jnp.broadcast_to(cache.position, tokens.shape)
    x, cache = self.decoder.step(self._embed(self.target_embedding, tokens, positions, max_length), cache)
    return self._logits(x), cache

  def _embed(self, embedding: jax.Array, ids: jax.Array, positions: jax.Array, max_length: int) -> jax.Array:
    d_model = self.config.d_model
    x = embedding[ids] * d_model**0.5 + sinusoidal_positions(positions, d_model, max_length)  # [batch, length, d_model]
    return x.astype(self.config.dtype)

  def _logits(self, x: jax.Array) -> jax.Array:
    output_layer = self.output_layer.astype(self.config.dtype)
    return jnp.einsum("bld,vd->blv", x, output_layer, preferred_element_type=jnp.float32)
