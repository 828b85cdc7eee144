"""Where a piece stands in its sentence (paper, section 3.5)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


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
