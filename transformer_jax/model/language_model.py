"""A decoder that stands alone: the language model (section 3.1's decoder without attention to a source)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.data.batches import Batch
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.embeddings import embed, embeddings, logits_of
from transformer_jax.model.stacks import Decoder


class LanguageModel(nn.Module):
  """Maps the target side of a batch to the logits of each next piece; the source side is not looked at."""

  config: ModelConfig

  def setup(self):
    self.embeddings = embeddings(self, self.config)
    self.decoder = Decoder(self.config, cross=False)

  def __call__(self, batch: Batch, train: bool = False) -> Float[Array, "rows target_length vocabulary"]:
    """Teacher forcing, as `Transformer.__call__`."""
    batch = jax.tree.map(jnp.asarray, batch)
    x = embed(self.config, self.embeddings.target, batch.target_inputs)
    x = self.decoder(x, batch.target_positions, batch.target_segments, None, None, train)
    return logits_of(x, self.embeddings.output)
