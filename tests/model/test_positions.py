"""Sinusoidal positions: the paper's equation, to the last digits of float32."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equations

from transformer_jax.model.positions import sinusoidal_positions, sinusoidal_table


@pytest.mark.parametrize("d_model", [8, 9, 512])
def test_table_is_the_papers_equation(d_model):
  np.testing.assert_allclose(sinusoidal_table(60, d_model), equations.positional_encoding(60, d_model), atol=6e-8)


def test_wavelengths_and_interleaving():
  """At d_model 512 the longest wavelength is 60,611.5 (facts.md); the variant with all sines first has 62,831.9."""
  table = sinusoidal_table(2, 512).astype(np.float64)
  longest = 2 * np.pi / np.arctan2(table[1, 510], table[1, 511])
  assert longest == pytest.approx(60_611.5, rel=1e-4)
  np.testing.assert_array_equal(table[0], np.tile([0.0, 1.0], 256))


def test_far_positions_lose_no_digits():
  assert sinusoidal_table(5_001, 4)[5_000, 0] == pytest.approx(np.sin(5_000.0), abs=6e-8)


def test_positions_are_looked_up_where_they_restart():
  positions = jnp.array([[0, 1, 2, 0, 1, 0]])
  np.testing.assert_array_equal(sinusoidal_positions(positions, 8, 6)[0], sinusoidal_table(6, 8)[[0, 1, 2, 0, 1, 0]])
