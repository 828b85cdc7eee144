"""What training minimises: the label-smoothed cross-entropy (paper, section 5.4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Sums(NamedTuple):
  """Sums over target pieces. Divided by `pieces` they are means, whatever the number of devices, parts or batches."""

  loss: Float[Array, ""]  # label-smoothed cross-entropy, nats
  nll: Float[Array, ""]  # negative log-likelihood, nats: without smoothing, comparable between runs
  pieces: Float[Array, ""]  # target pieces, end of sentence included, padding not


def smoothed_cross_entropy(
  logits: Float[Array, "rows length vocabulary"],
  targets: Int[Array, "rows length"],
  is_piece: Bool[Array, "rows length"],
  label_smoothing: float | Float[Array, ""],
) -> Sums:
  """Sums -sum_v q(v) log p(v) over the pieces, with q = 1 - e for the target and e / (V - 1) for each other piece.

  (Other systems spread e over all V pieces, the target included: that is this loss with e (V - 1) / V in place of e.)
  Positions where `is_piece` is False count nowhere. Computed in float32 without an array of the shape of q:
  sum_v q(v) log p(v) = (1 - e) log p(target) + e / (V - 1) (sum_v log p(v) - log p(target)).
  """
  logits = logits.astype(jnp.float32)
  vocabulary = logits.shape[-1]
  log_normaliser = jax.nn.logsumexp(logits, axis=-1)  # [rows, length]
  target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  nll = log_normaliser - target_logits  # -log p(target)
  all_nll = vocabulary * log_normaliser - logits.sum(axis=-1)  # -sum_v log p(v)
  loss = (1.0 - label_smoothing) * nll + label_smoothing / (vocabulary - 1) * (all_nll - nll)

  def total(values: jax.Array) -> jax.Array:  # a non-finite value on padding must not reach the sum
    return jnp.where(is_piece, values, 0.0).sum()

  return Sums(total(loss), total(nll), is_piece.sum(dtype=jnp.float32))


def least_loss(vocabulary: int, label_smoothing: float) -> float:
  """The lowest value that the smoothed loss can take, in nats: the entropy of the smoothed target."""
  import math

  if label_smoothing == 0.0:
    return 0.0
  return -(1 - label_smoothing) * math.log(1 - label_smoothing) - label_smoothing * math.log(
    label_smoothing / (vocabulary - 1)
  )
