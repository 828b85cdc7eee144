"""Dropout (paper, section 5.4), of elements and of whole layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def dropout(
  key: PRNGKeyArray | jax.Array, x: Float[Array, "*shape"], rate: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
  """Sets each element to 0 with probability `rate` and divides the others by 1 - rate, so that the mean stays.

  An element is kept or not by 16 random bits, two elements to each number drawn: on a CPU the numbers are most of what dropout
  costs. The probability is thereby a multiple of 2^-16, off by at most 8e-6.
  """
  share_kept = 1.0 - rate
  if isinstance(share_kept, jax.Array):  # as a Python number would: it takes the type of x
    share_kept = share_kept.astype(x.dtype)
  *lead, last = x.shape or (1,)
  pairs = jax.random.bits(key, (*lead, -(-last // 2)), jnp.uint32)
  bits = jax.lax.bitcast_convert_type(pairs, jnp.uint16).reshape(*lead, -1)[..., :last].reshape(x.shape)
  kept = bits >= jnp.round(rate * 2**16).astype(jnp.uint16)
  return jnp.where(kept, x / share_kept, 0.0).astype(x.dtype)


def is_zero(rate: float | Float[Array, ""]) -> bool:
  """Whether a rate is known to be 0 before the program runs; one that only the running program knows may be anything."""
  return not isinstance(rate, jax.Array) and rate == 0.0


class Dropout(nn.Module):
  """`dropout` with the module's own random key; passes x through when not training or when the rate is 0."""

  rate: float | Float[Array, ""]

  @nn.compact
  def __call__(self, x: Float[Array, "*shape"], train: bool) -> Float[Array, "*shape"]:
    if not train or is_zero(self.rate):
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
