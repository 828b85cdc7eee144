"""The optimizer and its learning rate (paper, section 5.3), put together from optax."""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from transformer_jax.errors import UserError


def learning_rate_schedule(optimizer: ConfigDict, d_model: int, steps: int) -> optax.Schedule:
  """Returns the rate of each update as a function of the number of updates made before it (0 for the first).

  The formulas count from 1: the first update has step 1, which is the count plus one.
  """
  peak, warmup = optimizer.learning_rate, optimizer.warmup_steps

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
  """Returns clipping, Adam or AdamW and the learning rate as one gradient transformation."""
  if optimizer.name not in ("adam", "adamw"):
    raise UserError(f"optimizer.name must be adam or adamw, not {optimizer.name!r}")
  parts = [optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
  parts.append(optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.epsilon))
  if optimizer.name == "adamw" and optimizer.weight_decay:
    matrices_only = lambda params: jax.tree.map(lambda x: x.ndim > 1, params)  # noqa: E731
    parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=matrices_only))
  parts.append(optax.scale_by_learning_rate(schedule))
  return optax.chain(*parts)
