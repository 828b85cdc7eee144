"""Which pieces temperature, top-k and top-p leave, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.sampling import draw, likeliest


def reference(logits, top_k, top_p):
  """The pieces that stay, by the definition, one after the other."""
  order = sorted(range(len(logits)), key=lambda piece: (-logits[piece], piece))
  order = [piece for piece in order if np.isfinite(logits[piece])][: top_k or None]
  probabilities = np.exp(logits[order].astype(np.float64))
  probabilities /= probabilities.sum()
  stay, together = [], 0.0
  for piece, probability in zip(order, probabilities, strict=True):
    if stay and together >= top_p:
      break
    stay.append(piece)
    together += probability
  return set(stay)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.5), (3, 1.0), (5, 0.7), (1, 0.9), (0, 1e-6), (100, 0.999)])
def test_likeliest_pieces_and_no_others_stay(top_k, top_p):
  logits = np.random.default_rng(0).normal(0, 2, (4, 5, 12)).astype(np.float32)
  logits[..., :2] = -np.inf
  stays = np.asarray(likeliest(jnp.asarray(logits), top_k, top_p))
  for place in np.ndindex(4, 5):
    assert set(np.flatnonzero(stays[place])) == reference(logits[place], top_k, top_p)


def test_equal_logits_leave_exactly_top_k():
  stays = likeliest(jnp.zeros((1, 9)), 4, 1.0)
  np.testing.assert_array_equal(np.flatnonzero(stays[0]), [0, 1, 2, 3])


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.8), (4, 0.9)])
def test_draws_every_piece_that_stays_and_no_other(top_k, top_p):
  logits = np.random.default_rng(1).normal(0, 1, 10).astype(np.float32)
  keys = jax.random.split(jax.random.key(0), 1)
  drawn = draw(keys, jnp.broadcast_to(logits, (1, 4000, 10)), 1.0, top_k, top_p)
  stay = sorted(reference(logits, top_k, top_p))
  counts = np.bincount(np.asarray(drawn)[0], minlength=10)
  assert sorted(np.flatnonzero(counts)) == stay
  expected = np.exp(logits[stay]) / np.exp(logits[stay]).sum()  # the pieces that stay share the probability
  np.testing.assert_allclose(counts[stay] / 4000, expected, atol=0.03)


def test_temperature_divides_the_logits():
  logits = jnp.asarray(np.random.default_rng(2).normal(0, 1, (1, 1, 8)), jnp.float32)
  keys = jax.random.split(jax.random.key(0), 1)
  drawn = draw(keys, jnp.broadcast_to(logits, (1, 2000, 8)), 0.25, 0, 1.0)
  counts = np.bincount(np.asarray(drawn)[0], minlength=8)
  np.testing.assert_allclose(counts / 2000, jax.nn.softmax(logits[0, 0] / 0.25), atol=0.03)
