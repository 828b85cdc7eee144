"""Dropout (paper, section 5.4), of elements and of whole layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def dropout(
  key: PRNGKeyArray | jax.Array, x: Float[Array, "*shape"], rate: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
  """Sets each element to 0 with probability `rate` and divides the others by 1 - rate, so that the mean stays."""
  kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
  return jnp.where(kept, x / (1.0 - rate), 0.0).astype(x.dtype)


class Dropout(nn.Module):
  """`dropout` with the module's own random key; passes x through when not training or when the rate is 0."""

  rate: float

  @nn.compact
  def __call__(self, x: Float[Array, "*shape"], train: bool) -> Float[Array, "*shape"]:
    if not train or self.rate == 0.0:
      return x
    return dropout(self.make_rng("dropout"), x, self.rate)


class LayerDrop(nn.Module):
  """Passes over a whole layer with probability `rate` in training (Fan et al. 2020, arXiv:1909.11556).

  The layer is computed all the same: what this saves is not time.
  """

  rate: float

  @nn.compact
  def __call__(
    self, before: Float[Array, "*shape"], after: Float[Array, "*shape"], train: bool
  ) -> Float[Array, "*shape"]:
    if not train or self.rate == 0.0:
      return after
    return jnp.where(jax.random.bernoulli(self.make_rng("dropout"), self.rate), before, after)
