"""Where a piece stands in its sentence: the paper's encoding (section 3.5) and what came after it.

Three families, each chosen by name in `config.model.positions`:

- added to the embeddings: "sinusoidal" (the paper), "learned" (Gehring et al. 2017);
- in the scores of self-attention: "shaw" (Shaw et al. 2018), "t5" (Raffel et al. 2020), "alibi" (Press et al. 2022);
- turning queries and keys: "rotary" (Su et al. 2021).

What depends on a distance takes it from the places in the row. That is right for packed rows too: inside a pair the
distance of two places is that of their positions, and pairs do not see each other.
"""

import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Places of queries and of keys -> what is added to the scores, [heads, queries, keys].
PositionBias = Callable[[Int[Array, "queries"], Int[Array, "keys"]], Float[Array, "heads queries keys"]]

# ----------------------------------------------------------------------------------------------- added to the embeddings


def sinusoidal_table(length: int, d_model: int) -> np.ndarray:
  """Returns the encodings of positions 0 to length - 1, float32 [length, d_model].

  PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos of the same angle: sine and cosine alternate along
  the features, as printed in the paper. The angles are worked out in float64, since float32 would be off by 3e-5 at
  position 256 already.
  """
  positions = np.arange(length, dtype=np.float64)[:, None]  # [length, 1]
  even_features = np.arange(0, d_model, 2, dtype=np.float64)  # 2i: [ceil(d_model / 2)]
  angles = positions / 10_000.0 ** (even_features / d_model)  # [length, ceil(d_model / 2)]
  table = np.empty((length, d_model))
  table[:, 0::2] = np.sin(angles)
  table[:, 1::2] = np.cos(angles)[:, : d_model // 2]
  return table.astype(np.float32)


def sinusoidal_positions(
  positions: Int[Array, "batch length"], d_model: int, max_length: int
) -> Float[Array, "batch length d_model"]:
  """Encodes positions, which must be below max_length (a table of that length is a constant of the program)."""
  return jnp.asarray(sinusoidal_table(max_length, d_model))[positions]


def learned_positions(
  positions: Int[Array, "batch length"], table: Float[Array, "max_positions d_model"]
) -> Float[Array, "batch length d_model"]:
  """Looks positions up in a learned table; those beyond it get its last row (`checks` refuses them before, unless asked)."""
  return table[jnp.minimum(positions, table.shape[0] - 1)]


# ------------------------------------------------------------------------------------------------ turning queries and keys


def rotary_frequencies(width: int, scaling: str = "none", factor: float = 1.0) -> np.ndarray:
  """Returns the angle per position of each pair of features, float64 [width / 2]: 10000^(-2i / width).

  For inputs `factor` times as long as those trained on, "linear" squeezes all positions into the trained range (Chen et al.
  2023, arXiv:2306.15595); "ntk" raises the base by factor^(width / (width - 2)) instead, which leaves the quickest pair as it
  is and slows the slowest one by `factor` (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1).
  """
  base = 10_000.0
  if scaling == "ntk" and width > 2:
    base *= factor ** (width / (width - 2))
  frequencies = base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
  return frequencies / factor if scaling == "linear" else frequencies


def rotate(
  x: Float[Array, "batch length heads width"], positions: Int[Array, "batch length"], frequencies: np.ndarray
) -> Float[Array, "batch length heads width"]:
  """Turns each pair of features (2i, 2i + 1) by position times its frequency (RoFormer, equation 15).

  The product of a turned query and a turned key depends on the distance of their positions only. In float32.
  """
  angles = positions[:, :, None, None] * jnp.asarray(frequencies, jnp.float32)  # [batch, length, 1, width / 2]
  sine, cosine = jnp.sin(angles), jnp.cos(angles)
  even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
  turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)  # [..., width / 2, 2]
  return turned.reshape(x.shape).astype(x.dtype)


# --------------------------------------------------------------------------------------------- in the scores of attention


def alibi_slopes(num_heads: int) -> np.ndarray:
  """Returns the slope of each head, float64 [heads]: 2^(-8i / heads) for heads a power of two (section 3).

  For other numbers, as the authors do: the slopes of the next lower power of two, then every other one of the next higher.
  """

  def powers(heads: int) -> list[float]:
    return [2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)]

  lower = 1 << (num_heads.bit_length() - 1)
  return np.array(powers(lower) + powers(2 * lower)[0::2][: num_heads - lower])


def alibi_bias(
  query_places: Int[Array, "queries"], key_places: Int[Array, "keys"], slopes: np.ndarray
) -> Float[Array, "heads queries keys"]:
  """Minus slope times distance: in the encoder, which sees both sides, either way alike."""
  distances = jnp.abs(query_places[:, None] - key_places).astype(jnp.float32)  # [queries, keys]
  return -jnp.asarray(slopes, jnp.float32)[:, None, None] * distances


def t5_buckets(
  distances: Int[Array, "*shape"], bidirectional: bool, buckets: int = 32, max_distance: int = 128
) -> Int[Array, "*shape"]:
  """Returns the bucket of each distance (key's place minus query's).

  Half of the buckets hold one distance each, the others ever more, evenly on a logarithmic scale up to `max_distance`; all
  beyond share the last one. Bidirectional: half of all buckets are for keys after the query.
  """
  first = jnp.zeros_like(distances)
  if bidirectional:
    buckets //= 2
    first = jnp.where(distances > 0, buckets, 0)
    distances = jnp.abs(distances)
  else:
    distances = jnp.maximum(-distances, 0)
  exact = buckets // 2
  # The bounds of the wide buckets as whole numbers, so that no rounding of a logarithm decides.
  ratio = max_distance / exact
  bounds = [math.ceil(exact * ratio ** (step / (buckets - exact)) - 1e-9) for step in range(1, buckets - exact)]
  wide = exact + jnp.searchsorted(jnp.array(bounds, jnp.int32), distances, side="right").astype(distances.dtype)
  return first + jnp.where(distances < exact, distances, wide)


def t5_bias(
  query_places: Int[Array, "queries"],
  key_places: Int[Array, "keys"],
  table: Float[Array, "buckets heads"],
  bidirectional: bool,
) -> Float[Array, "heads queries keys"]:
  """A learned number for each head and bucket of distances (section 2.1); no scale of 1 / sqrt(d_k) is implied here."""
  buckets = t5_buckets(key_places - query_places[:, None], bidirectional, table.shape[0])  # [queries, keys]
  return table.astype(jnp.float32)[buckets].transpose(2, 0, 1)


def shaw_distances(
  query_places: Int[Array, "queries"], key_places: Int[Array, "keys"], clip: int
) -> Int[Array, "queries keys"]:
  """The rows of Shaw's tables: the distance key minus query, clipped to [-clip, clip], plus clip (equation 4 there)."""
  return jnp.clip(key_places - query_places[:, None], -clip, clip) + clip


def alibi(num_heads: int) -> PositionBias:
  """`alibi_bias` for so many heads."""
  return functools.partial(alibi_bias, slopes=alibi_slopes(num_heads))
