"""The optimizer and its learning rate (paper, section 5.3), put together from optax."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree
from ml_collections import ConfigDict

from transformer_jax.training.muon import muon, muon_or_adam


def learning_rate_schedule(
  optimizer: ConfigDict, d_model: int, steps: int, peak: float | Float[Array, ""] | None = None
) -> optax.Schedule:
  """Returns the rate of each update as a function of the number of updates made before it (0 for the first).

  The formulas count from 1: the first update has step 1, which is the count plus one. A `peak` that is given stands for
  `optimizer.learning_rate`; the "paper" schedule has none.
  """
  peak, warmup = optimizer.learning_rate if peak is None else peak, optimizer.warmup_steps

  def paper(count):
    step = count + 1.0
    return d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

  def rising(count):  # to 1 at the last step of the warm-up
    return jnp.minimum(1.0, (count + 1.0) / max(warmup, 1))

  def progress(count):  # 0 at the end of the warm-up, 1 at the last step
    return jnp.clip((count + 1.0 - warmup) / max(steps - warmup, 1), 0.0, 1.0)

  final = optimizer.final_fraction
  shapes = {
    "constant": lambda count: 1.0,
    "linear": lambda count: 1.0 - (1.0 - final) * progress(count),
    "cosine": lambda count: final + (1.0 - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress(count))),
    "inverse_sqrt": lambda count: jnp.sqrt(warmup / jnp.maximum(count + 1.0, warmup)),
  }
  if optimizer.schedule == "paper":
    return paper
  shape = shapes[optimizer.schedule]
  return lambda count: peak * rising(count) * shape(count)


def make_optimizer(optimizer: ConfigDict, schedule: optax.Schedule) -> optax.GradientTransformation:
  """Returns clipping, the optimizer named by `config.optimizer` and the learning rate as one gradient transformation."""
  parts = [optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
  adam = optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
  by_name = {
    "adam": lambda: adam,
    "adamw": lambda: adam,
    "adafactor": adafactor,
    "lion": lambda: optax.scale_by_lion(optimizer.beta1, optimizer.beta2),
    "muon": lambda: optax.partition({"muon": muon(), "adam": adam}, muon_or_adam),
  }
  parts.append(by_name[optimizer.name]())
  if optimizer.weight_decay:
    parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=matrices))
  parts.append(optax.scale_by_learning_rate(schedule))
  return optax.chain(*parts)


def adafactor() -> optax.GradientTransformation:
  """Adafactor without momentum (Shazeer & Stern 2018, arXiv:1804.04235): second moments kept by row and column.

  As in the paper, updates are clipped to a root mean square of 1 and scaled by that of their parameter, so that the learning
  rate is relative (0.01 is usual).
  """
  return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms())


def matrices(params: PyTree) -> PyTree:
  """True for matrices, False for biases and the parameters of norms."""
  return jax.tree.map(lambda x: x.ndim > 1, params)
