"""The label-smoothed loss against its definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.training.objective import least_loss, smoothed_cross_entropy


def defined(logits, targets, is_piece, smoothing):
  """-sum q log p with q written out, piece by piece."""
  loss = nll = 0.0
  vocabulary = logits.shape[-1]
  for row, column in zip(*np.nonzero(is_piece), strict=True):
    scores = logits[row, column].astype(np.float64)
    log_p = scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
    q = np.full(vocabulary, smoothing / (vocabulary - 1))
    q[targets[row, column]] = 1 - smoothing
    loss -= (q * log_p).sum()
    nll -= log_p[targets[row, column]]
  return loss, nll


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_is_its_definition_and_padding_never_counts(smoothing):
  """Users hit 4: e / (V - 1) on each wrong piece, the plain negative log-likelihood beside it."""
  random = np.random.default_rng(0)
  logits = random.normal(size=(3, 5, 11)).astype(np.float32) * 3
  targets = random.integers(0, 11, (3, 5)).astype(np.int32)
  is_piece = random.random((3, 5)) < 0.6
  sums = smoothed_cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(is_piece), smoothing)
  loss, nll = defined(logits, targets, is_piece, smoothing)
  assert sums.loss == pytest.approx(loss, rel=1e-5) and sums.nll == pytest.approx(nll, rel=1e-5)
  assert sums.pieces == is_piece.sum()
  # Whatever stands on padding, even NaN, reaches neither the loss nor its gradient.
  spoiled = np.where(is_piece[..., None], logits, np.nan)
  gradient = jax.grad(lambda x: smoothed_cross_entropy(x, jnp.asarray(targets), jnp.asarray(is_piece), smoothing).loss)(
    jnp.asarray(logits)
  )
  assert smoothed_cross_entropy(
    jnp.asarray(spoiled), jnp.asarray(targets), jnp.asarray(is_piece), smoothing
  ).loss == pytest.approx(loss, rel=1e-5)
  assert (np.asarray(gradient)[~is_piece] == 0.0).all()


def test_least_loss_is_that_of_the_paper_and_is_reached():
  """1.3769 nats at 37,000 pieces and smoothing 0.1 (facts.md); the smoothed distribution itself attains it."""
  assert least_loss(37_000, 0.1) == pytest.approx(1.3769, abs=5e-5)
  vocabulary, smoothing = 50, 0.1
  logits = np.full((1, 1, vocabulary), np.log(smoothing / (vocabulary - 1)), np.float32)
  logits[0, 0, 7] = np.log(1 - smoothing)
  sums = smoothed_cross_entropy(jnp.asarray(logits), jnp.array([[7]]), jnp.array([[True]]), smoothing)
  assert sums.loss == pytest.approx(least_loss(vocabulary, smoothing), rel=1e-5)


def test_bfloat16_logits_are_summed_in_float32():
  """Users hit 2: 300 equal logits of 1 have the normaliser 1 + log 300, which bfloat16 sums could not hold."""
  logits = jnp.ones((1, 1, 300), jnp.bfloat16)
  sums = smoothed_cross_entropy(logits, jnp.array([[0]]), jnp.array([[True]]), 0.0)
  assert sums.nll.dtype == jnp.float32 and sums.nll == pytest.approx(np.log(300), rel=1e-6)
