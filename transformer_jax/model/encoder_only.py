"""An encoder that stands alone: text to a label, and the recovery of masked pieces that it can be trained on before."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.data.batches import Batch
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.embeddings import embed, logits_of
from transformer_jax.model.initializers import embedding_initializer
from transformer_jax.model.stacks import Encoder


def pool(
  x: Float[Array, "rows length d_model"], segments: Int[Array, "rows length"], pooling: str
) -> Float[Array, "rows d_model"]:
  """One vector for each row: the mean over its pieces, or its first piece."""
  if pooling == "first":
    return x[:, 0]
  is_piece = (segments > 0).astype(x.dtype)[..., None]  # [rows, length, 1]
  return (x * is_piece).sum(axis=1) / jnp.maximum(is_piece.sum(axis=1), 1.0)


class EncoderOnly(nn.Module):
  """What classifier and masked language model share: embedding and encoder, under the same names in both."""

  config: ModelConfig

  def setup(self):
    config = self.config
    start = embedding_initializer(config.init, config.d_model)
    self.source_embedding = self.param("source_embedding", start, (config.source_vocabulary, config.d_model))
    self.encoder = Encoder(config)

  def encode(self, batch: Batch, train: bool) -> Float[Array, "rows length d_model"]:
    """The encoder's output for the source side."""
    x = embed(self.config, self.source_embedding, batch.source)
    return self.encoder(x, batch.source_positions, batch.source_segments, train)


class Classifier(EncoderOnly):
  """Maps the source of each row (one text a row) to the logits of its label, the one target piece."""

  def setup(self):
    super().setup()
    self.drop = Dropout(self.config.dropout)
    self.classifier = nn.Dense(self.config.target_vocabulary)

  def __call__(self, batch: Batch, train: bool = False) -> Float[Array, "rows 1 labels"]:
    batch = jax.tree.map(jnp.asarray, batch)
    pooled = pool(self.encode(batch, train), batch.source_segments, self.config.pooling)
    return self.classifier(self.drop(pooled.astype(jnp.float32), train))[:, None]


class MaskedLanguageModel(EncoderOnly):
  """Maps sources with masked pieces to logits at every place (Devlin et al. 2019); the output layer is the embedding."""

  def setup(self):
    super().setup()
    self.transform = nn.Dense(self.config.d_model, dtype=self.config.dtype)

  def __call__(self, batch: Batch, train: bool = False) -> Float[Array, "rows length vocabulary"]:
    batch = jax.tree.map(jnp.asarray, batch)
    return logits_of(self.transform(self.encode(batch, train)), self.source_embedding)
