"""Dropout: how many elements it keeps, what becomes of them, and with which rates and shapes it works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.model.dropout import dropout


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.97])
def test_an_element_is_dropped_with_the_probability_asked_for(rate):
  x = jnp.full((1_000, 1_001), 2.0)
  y = np.asarray(dropout(jax.random.key(3), x, rate))
  dropped = y == 0.0
  deviation = np.sqrt(rate * (1 - rate) / x.size)
  assert abs(dropped.mean() - rate) < 4 * deviation + 2**-17
  np.testing.assert_allclose(y[~dropped], 2.0 / (1.0 - rate), rtol=1e-6)


def test_elements_are_dropped_independently():
  """Two elements share a number drawn: whether one is kept must say nothing of its neighbours, rows or other keys."""
  x = jnp.ones((2_000, 500))
  kept = np.asarray(dropout(jax.random.key(0), x, 0.3)) != 0.0
  other = np.asarray(dropout(jax.random.key(1), x, 0.3)) != 0.0
  pairs = [
    (kept[:, ::2], kept[:, 1::2]),
    (kept[:, 1:-1:2], kept[:, 2::2]),
    (kept[::2], kept[1::2]),
    (kept, other),
    (kept[:, : -(-500 // 2)], kept[:, 250:]),
  ]
  for a, b in pairs:
    correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(a.size)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 5), (4, 6)])
def test_any_shape_and_a_rate_known_only_at_run_time(shape):
  x = jnp.ones(shape)
  key = jax.random.key(5)
  fixed = dropout(key, x, 0.25)
  assert fixed.shape == shape
  np.testing.assert_array_equal(fixed, jax.jit(dropout)(key, x, jnp.float32(0.25)))
  rates = jnp.array([0.0, 0.25, 0.5])
  together = jax.vmap(dropout, in_axes=(None, None, 0))(key, x, rates)
  np.testing.assert_array_equal(together[0], x)
  np.testing.assert_array_equal(together[1], fixed)


def test_bfloat16_stays_bfloat16():
  x, key = jax.random.normal(jax.random.key(1), (8, 8), jnp.bfloat16), jax.random.key(0)
  np.testing.assert_array_equal(dropout(key, x, 0.1), dropout(key, x, jnp.float32(0.1)))  # known at run time only
  y = dropout(jax.random.key(0), jnp.ones((8, 8), jnp.bfloat16), 0.5)
  assert y.dtype == jnp.bfloat16
  assert set(np.unique(np.asarray(y, np.float32))) <= {0.0, 2.0}
