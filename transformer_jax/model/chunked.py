"""Exact attention in memory linear in the length, on any device (Rabe & Staats 2021, arXiv:2112.05682).

The row is worked off in chunks of queries, and for each of them in chunks of keys. The softmax is summed up on the way: of
the keys seen so far we keep the largest score, the sum of the exponentials and the weighted sum of the values, and rescale
both sums when a larger score comes (Milakov & Gimelshein 2018; the flash form of Dao et al. 2022, arXiv:2205.14135). The
backward pass computes each chunk's scores again instead of keeping them. A chunk of keys that no query of the chunk may see
(later ones, or those outside the window) is skipped.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.model.positions import PositionBias
from transformer_jax.model.visibility import Visibility, hide, visible

CHUNK = 512


def chunked_attention(
  query: Float[Array, "batch queries heads d_k"],
  key: Float[Array, "batch keys kv_heads d_k"],
  value: Float[Array, "batch keys kv_heads d_v"],
  visibility: Visibility,
  bias: PositionBias | None = None,
  scale: float | None = None,
  chunk: int = CHUNK,
) -> Float[Array, "batch queries heads d_v"]:
  """What `scaled_dot_product_attention` gives under the mask of `visibility`, equal within rounding.

  Only a query that may see nothing gets another mean of the values, of no use in either.

  Args:
    bias: is added to the scaled scores.
    scale: of the scores; None: 1 / sqrt(d_k).
    chunk: queries, and keys, that are worked off at a time; shorter rows are one chunk.
  """
  batch, num_queries, heads, d_k = query.shape
  num_keys = key.shape[1]
  chunk = min(chunk, max(num_queries, num_keys))
  scale = 1.0 / math.sqrt(d_k) if scale is None else scale
  groups = heads // key.shape[2]

  def chunks(x: jax.Array) -> jax.Array:  # [batch, length, ...] -> [chunks, batch, chunk, ...], filled up with zeros
    x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % chunk)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(batch, -1, chunk, *x.shape[2:]).swapaxes(0, 1)

  query_segments, key_segments = visibility.query_segments, visibility.key_segments
  if query_segments is None or key_segments is None:  # padding and neighbours may be seen, what fills up may not
    query_segments, key_segments = (jnp.ones((batch, length), jnp.int32) for length in (num_queries, num_keys))
  query_segments, key_segments = chunks(query_segments), chunks(key_segments)
  keys = chunks(key), chunks(value), key_segments, jnp.arange(len(key_segments))

  def for_queries(queries: tuple[jax.Array, ...]) -> jax.Array:
    q, q_segments, number = queries
    query_places = number * chunk + jnp.arange(chunk)

    def add_keys(sums: tuple[jax.Array, ...], k: jax.Array, v: jax.Array, k_segments: jax.Array, places: jax.Array):
      largest, normaliser, total = sums
      if groups > 1:
        k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
      scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * scale
      if bias is not None:
        scores = scores + bias(query_places, places)
      mask = visible(query_places, places, q_segments, k_segments, visibility.causal, visibility.window)
      scores = hide(scores, mask)
      new_largest = jnp.maximum(largest, scores.max(axis=-1))  # [batch, heads, queries]
      shrink = jnp.exp(largest - new_largest)
      weights = jnp.exp(scores - new_largest[..., None])
      normaliser = normaliser * shrink + weights.sum(axis=-1)
      added = jnp.einsum("bhqk,bkhd->bhqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
      return new_largest, normaliser, total * shrink[..., None] + added

    @jax.checkpoint
    def step(sums: tuple[jax.Array, ...], keys: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], None]:
      k, v, k_segments, number_of_keys = keys
      places = number_of_keys * chunk + jnp.arange(chunk)
      needed = some_seen(query_places, places, visibility)
      return jax.lax.cond(needed, add_keys, lambda sums, *_: sums, sums, k, v, k_segments, places), None

    start = (
      jnp.full((batch, heads, chunk), jnp.finfo(jnp.float32).min),
      jnp.zeros((batch, heads, chunk)),
      jnp.zeros((batch, heads, chunk, value.shape[-1])),
    )
    (_, normaliser, total), _ = jax.lax.scan(step, start, keys)
    return (total / normaliser[..., None]).astype(value.dtype).swapaxes(1, 2)  # [batch, queries, heads, d_v]

  queries = chunks(query), query_segments, jnp.arange(len(query_segments))
  heads_of_chunks = jax.lax.map(jax.checkpoint(for_queries), queries)  # [chunks, batch, chunk, heads, d_v]
  return heads_of_chunks.swapaxes(0, 1).reshape(batch, -1, heads, value.shape[-1])[:, :num_queries]


def some_seen(query_places: jax.Array, key_places: jax.Array, visibility: Visibility) -> Bool[Array, ""]:
  """Whether any of these queries can see any of these keys, both being places in a row without a gap."""
  seen = jnp.array(True)
  if visibility.causal:
    seen &= key_places[0] <= query_places[-1]
  if visibility.window:
    seen &= key_places[0] - query_places[-1] <= visibility.window
    seen &= query_places[0] - key_places[-1] <= visibility.window
  return seen
