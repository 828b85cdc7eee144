"""Which keys a query may see, as a rule that can be asked for any part of a row."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class Visibility:
  """The rule of one attention. Its mask for all queries and keys at once is `mask()`, for long rows too large to hold.

  Attributes:
    query_segments, key_segments: a query sees the keys of its own segment, that is of its own pair; segment 0 is padding,
      which nobody sees. None: every query sees every key, padding and packed neighbours alike.
    causal: a query sees no key after itself (section 3.2.3).
    window: a query sees keys at most so many places away; 0: at any distance (restricted self-attention, section 4).
  """

  query_segments: Int[Array, "batch queries"] | None
  key_segments: Int[Array, "batch keys"] | None
  causal: bool = False
  window: int = 0

  def mask(self, num_queries: int, num_keys: int) -> Bool[Array, "#batch 1 queries keys"]:
    """True where a query sees a key."""
    return visible(
      jnp.arange(num_queries), jnp.arange(num_keys), self.query_segments, self.key_segments, self.causal, self.window
    )


def visible(
  query_places: Int[Array, "queries"],
  key_places: Int[Array, "keys"],
  query_segments: Int[Array, "batch queries"] | None,
  key_segments: Int[Array, "batch keys"] | None,
  causal: bool,
  window: int,
) -> Bool[Array, "#batch 1 queries keys"]:
  """The mask for queries and keys at these places of their rows."""
  distances = key_places - query_places[:, None]  # [queries, keys]
  mask = jnp.ones_like(distances, bool)
  if causal:
    mask &= distances <= 0
  if window:
    mask &= jnp.abs(distances) <= window
  mask = mask[None, None]  # [1, 1, queries, keys]
  if query_segments is not None and key_segments is not None:
    mask &= padding_mask(query_segments, key_segments)
  return mask


def padding_mask(
  query_segments: Int[Array, "batch queries"], key_segments: Int[Array, "batch keys"]
) -> Bool[Array, "batch 1 queries keys"]:
  """True where a query may see a key: both belong to the same pair of the row. Segment 0 is padding, seen by nobody."""
  same_pair = query_segments[:, :, None] == key_segments[:, None, :]
  return (same_pair & (key_segments > 0)[:, None, :])[:, None]


def hide(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """Scores with the least finite float32 where the mask is False.

  Minus infinity instead would give NaN for a query that may see nothing; like this it weighs all keys alike.
  """
  return jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
