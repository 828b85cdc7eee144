"""Learning rates against their formulas, updates against Adam written out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.config import default_config
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer


def rate(step, steps=100_000, d_model=512, **fields):
  """The rate of update number `step`, counted from 1 as in the paper."""
  optimizer = default_config().optimizer
  for name, value in fields.items():
    optimizer[name] = value
  return float(learning_rate_schedule(optimizer, d_model, steps)(jnp.int32(step - 1)))


def test_the_papers_rate():
  """Users hit 6: the formula at steps 1, warm-up and 100,000 (facts.md)."""
  assert rate(1) == pytest.approx(1.7469e-7, rel=1e-4)
  assert rate(4_000) == pytest.approx(6.9877e-4, rel=1e-4)
  assert rate(100_000) == pytest.approx(1.3975e-4, rel=1e-4)
  assert rate(4_001) < rate(4_000) > rate(3_999)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "inverse_sqrt"])
def test_other_schedules_rise_linearly_to_the_peak(schedule):
  fields = {"schedule": schedule, "learning_rate": 0.01, "warmup_steps": 10, "final_fraction": 0.1}
  assert rate(1, steps=110, **fields) == pytest.approx(0.001)
  assert rate(10, steps=110, **fields) == pytest.approx(0.01)
  expected_half_way, expected_end = {
    "constant": (0.01, 0.01),
    "linear": (0.0055, 0.001),
    "cosine": (0.0055, 0.001),
    "inverse_sqrt": (0.01 * (10 / 60) ** 0.5, 0.01 * (10 / 110) ** 0.5),
  }[schedule]
  assert rate(60, steps=110, **fields) == pytest.approx(expected_half_way, rel=1e-5)
  assert rate(110, steps=110, **fields) == pytest.approx(expected_end, rel=1e-5)


def test_without_warm_up_the_first_update_has_the_peak():
  assert rate(1, schedule="constant", learning_rate=0.01, warmup_steps=0) == pytest.approx(0.01)


def test_updates_are_adamw_with_clipping():
  """Three updates of a matrix and a bias, against Adam's equations in float64; the decay spares the bias."""
  config = default_config().optimizer
  config.name, config.weight_decay, config.clip_norm = "adamw", 0.1, 1.0
  config.schedule, config.learning_rate, config.warmup_steps, config.beta2 = "constant", 0.01, 0, 0.98
  optimizer = make_optimizer(config, learning_rate_schedule(config, 512, 10))
  random = np.random.default_rng(0)
  params = {"kernel": random.normal(size=(2, 3)), "bias": random.normal(size=3)}
  ours = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
  state = optimizer.init(ours)
  first = {name: np.zeros_like(value) for name, value in params.items()}
  second = {name: np.zeros_like(value) for name, value in params.items()}
  for step in range(1, 4):
    gradients = {name: random.normal(size=value.shape) * 3 for name, value in params.items()}
    updates, state = optimizer.update({k: jnp.asarray(v, jnp.float32) for k, v in gradients.items()}, state, ours)
    ours = {name: ours[name] + updates[name] for name in ours}
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    for name, gradient in gradients.items():
      gradient = gradient / max(norm, 1.0)
      first[name] = 0.9 * first[name] + 0.1 * gradient
      second[name] = 0.98 * second[name] + 0.02 * gradient**2
      update = first[name] / (1 - 0.9**step) / (np.sqrt(second[name] / (1 - 0.98**step)) + 1e-9)
      decay = 0.1 * params[name] if name == "kernel" else 0.0
      params[name] = params[name] - 0.01 * (update + decay)
      np.testing.assert_allclose(ours[name], params[name], rtol=2e-5)


@pytest.mark.parametrize("name", ["lion", "adafactor"])
def test_optimizers_by_name_are_optaxs(name):
  """Clipping aside, three updates are those of optax's own alias with the same settings."""
  config = default_config().optimizer
  config.update({"name": name, "beta2": 0.99, "schedule": "constant", "learning_rate": 0.01, "warmup_steps": 0})
  if name == "lion":
    config.weight_decay = 0.1
  ours = make_optimizer(config, learning_rate_schedule(config, 8, 10))
  theirs = {
    "lion": lambda: optax.lion(0.01, 0.9, 0.99, weight_decay=0.1, mask={"kernel": True, "bias": False}),
    "adafactor": lambda: optax.adafactor(0.01),
  }[name]()
  random = np.random.default_rng(0)
  params = {"kernel": random.normal(size=(160, 130)), "bias": random.normal(size=130)}  # large enough to be factored
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  steps = [jax.jit(optimizer.update) for optimizer in (ours, theirs)]
  states, both = [optimizer.init(params) for optimizer in (ours, theirs)], [params, params]
  for _ in range(3):
    gradients = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape), jnp.float32), params)
    for number, step in enumerate(steps):
      updates, states[number] = step(gradients, states[number], both[number])
      both[number] = optax.apply_updates(both[number], updates)
  for one, other in zip(*map(jax.tree.leaves, both), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
