"""The encoder-decoder (paper, section 3 and figure 1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.data.batches import Batch
from transformer_jax.model.cache import DecoderCache
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.embeddings import embed, embeddings, logits_of
from transformer_jax.model.stacks import Decoder, Encoder


class Transformer(nn.Module):
  """Maps a batch of pairs to the logits of each next target piece; or encodes, then decodes piece by piece."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.embeddings = embeddings(self, config)
    self.encoder = Encoder(config)
    self.decoder = Decoder(config)

  def __call__(self, batch: Batch, train: bool = False) -> Float[Array, "rows target_length vocabulary"]:
    """Teacher forcing: the logits at a position are for `batch.target_outputs` there. Dropout needs `rngs={"dropout": key}`."""
    batch = jax.tree.map(jnp.asarray, batch)
    memory = self.encode(batch.source, batch.source_positions, batch.source_segments, train)
    x = embed(self.config, self.embeddings.target, batch.target_inputs)
    x = self.decoder(x, batch.target_positions, batch.target_segments, memory, batch.source_segments, train)
    return logits_of(x, self.embeddings.output)

  def encode(
    self,
    source: Int[Array, "batch length"],
    positions: Int[Array, "batch length"],
    segments: Int[Array, "batch length"],
    train: bool = False,
  ) -> Float[Array, "batch length d_model"]:
    """Returns the memory, the encoder's output, that the decoder attends to."""
    return self.encoder(embed(self.config, self.embeddings.source, source), positions, segments, train)

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
    x, cache = self.decoder.step(embed(self.config, self.embeddings.target, tokens), cache)
    return logits_of(x, self.embeddings.output), cache
