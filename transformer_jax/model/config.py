"""The sizes and choices of one model, as plain hashable values."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from ml_collections import ConfigDict

Kernel = Literal["xla", "cudnn"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The fields of `config.model` with every 0 resolved, and the sizes of the vocabularies."""

  source_vocabulary: int
  target_vocabulary: int
  num_encoder_layers: int
  num_decoder_layers: int
  d_model: int
  d_ff: int
  num_heads: int
  d_k: int
  d_v: int
  dropout: float
  norm: str
  share_embeddings: str
  dtype: jnp.dtype
  kernel: Kernel


def model_config(model: ConfigDict, source_vocabulary: int, target_vocabulary: int) -> ModelConfig:
  """Resolves `config.model` (checked before, see `transformer_jax/checks.py`) for vocabularies of these sizes."""
  return ModelConfig(
    source_vocabulary=source_vocabulary,
    target_vocabulary=target_vocabulary,
    num_encoder_layers=model.num_layers,
    num_decoder_layers=model.num_decoder_layers or model.num_layers,
    d_model=model.d_model,
    d_ff=model.d_ff,
    num_heads=model.num_heads,
    d_k=model.d_k or model.d_model // model.num_heads,
    d_v=model.d_v or model.d_model // model.num_heads,
    dropout=model.dropout,
    norm=model.norm,
    share_embeddings=model.share_embeddings,
    dtype=jnp.dtype(model.dtype),
    kernel=model.kernel,
  )
