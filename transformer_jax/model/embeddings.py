"""Embeddings and output layer (paper, section 3.4), shared or not."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.model.config import ModelConfig
from transformer_jax.model.initializers import embedding_initializer
from transformer_jax.model.products import weight_product


class Embeddings(NamedTuple):
  """The three matrices [vocabulary, d_model]; shared ones are the same array."""

  source: jax.Array
  target: jax.Array
  output: jax.Array


def embeddings(module: nn.Module, config: ModelConfig) -> Embeddings:
  """Declares the matrices as parameters of a module, from its `setup`, by `config.share_embeddings`."""

  def embedding(name: str, size: int) -> jax.Array:
    return module.param(name, embedding_initializer(config.init, config.d_model), (size, config.d_model))

  share = config.share_embeddings
  target = embedding("target_embedding", config.target_vocabulary)
  source = target if share == "all" else embedding("source_embedding", config.source_vocabulary)
  output = embedding("output_layer", config.target_vocabulary) if share == "none" else target
  return Embeddings(source, target, output)


def embed(
  config: ModelConfig, embedding: Float[Array, "vocabulary d_model"], ids: Int[Array, "batch length"]
) -> Float[Array, "batch length d_model"]:
  """The rows of the ids, times sqrt(d_model) unless `config.scale_embeddings` is off."""
  return embedding[ids] * (config.d_model**0.5 if config.scale_embeddings else 1.0)


def logits_of(
  x: Float[Array, "batch length d_model"], output_layer: Float[Array, "vocabulary d_model"]
) -> Float[Array, "batch length vocabulary"]:
  """The scores of every piece before the softmax, float32."""
  weights = output_layer.astype(x.dtype).T  # [d_model, vocabulary]
  return weight_product(x, weights, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32)
