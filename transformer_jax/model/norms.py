"""Normalisation by name (`config.model.norm_kind`)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.model.config import ModelConfig

EPSILON = 1e-6


def rms_norm(x: Float[Array, "*shape width"], scale: Float[Array, "width"]) -> Float[Array, "*shape width"]:
  """x / sqrt(mean(x²) + epsilon) * scale, in float32 (Zhang & Sennrich 2019, arXiv:1910.07467): LayerNorm without a mean."""
  x32 = x.astype(jnp.float32)
  normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + EPSILON)
  return (normed * scale).astype(x.dtype)


class RMSNorm(nn.Module):
  """`rms_norm` with a learned scale."""

  @nn.compact
  def __call__(self, x: Float[Array, "*shape width"]) -> Float[Array, "*shape width"]:
    return rms_norm(x, self.param("scale", nn.initializers.ones, (x.shape[-1],)))


def norm(config: ModelConfig, name: str | None = None) -> nn.Module:
  """LayerNorm with float32 mean and variance, the variance in its two-pass form (the fast form loses digits); or RMSNorm."""
  if config.norm_kind == "rms":
    return RMSNorm(name=name)
  return nn.LayerNorm(epsilon=EPSILON, dtype=config.dtype, use_fast_variance=False, name=name)
