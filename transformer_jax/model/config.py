"""The sizes and choices of one model, as plain hashable values."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

Kernel = Literal["xla", "chunked", "cudnn"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The fields of `config.model` (meanings and choices there) with every 0 resolved, and the sizes of the vocabularies.

  A model without an encoder, or without a decoder, has 0 layers there. Runs that train as one program each have their own
  rates of dropout, which are arrays there.
  """

  kind: str
  pooling: str
  source_vocabulary: int
  target_vocabulary: int
  num_encoder_layers: int
  num_decoder_layers: int
  d_model: int
  d_ff: int
  num_heads: int
  num_kv_heads: int
  d_k: int
  d_v: int
  dropout: float | Float[Array, ""]
  attention_dropout: float
  ffn_dropout: float | Float[Array, ""]
  layer_drop: float
  norm: str
  norm_kind: str
  deepnorm: bool
  residual_self_attention: bool
  residual_cross_attention: bool
  residual_feed_forward: bool
  activation: str
  attention_scale: str
  qk_norm: bool
  tie_projections: str
  attention_bias: bool
  ffn_bias: bool
  share_embeddings: str
  scale_embeddings: bool
  positions: str
  positions_in: str
  max_positions: int
  rotary_scaling: str
  rotary_factor: float
  shaw_clip: int
  t5_buckets: int
  causal_mask: bool
  source_padding_mask: bool
  cross_padding_mask: bool
  local_window_size: int
  local_window_in: tuple[str, ...]
  recurrent_attention: str
  recurrent_size: int
  init: str
  dtype: jnp.dtype
  kernel: Kernel


def model_config(
  model: ConfigDict, source_vocabulary: int, target_vocabulary: int, task: str = "translate"
) -> ModelConfig:
  """Resolves `config.model` (checked before, see `transformer_jax/checks.py`) for vocabularies of these sizes."""
  width = model.d_model // model.num_heads
  resolved = {
    "source_vocabulary": source_vocabulary,
    "target_vocabulary": target_vocabulary,
    "num_encoder_layers": 0 if task == "lm" else model.num_layers,
    "num_decoder_layers": 0 if task in ("classify", "mlm") else model.num_decoder_layers or model.num_layers,
    "num_kv_heads": model.num_kv_heads or model.num_heads,
    "d_k": model.d_k or width,
    "d_v": model.d_v or width,
    "local_window_in": tuple(model.local_window_in),
    "dtype": jnp.dtype(model.dtype),
  }
  same = {field.name for field in dataclasses.fields(ModelConfig)} - resolved.keys()
  return ModelConfig(**resolved, **{name: model[name] for name in same})
