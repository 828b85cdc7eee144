"""Learning rates against their formulas, updates against Adam written out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers

from transformer_jax.config import default_config
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer, muon


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


def test_muons_update_is_near_the_nearest_orthogonal_matrix():
  """U V^T of the gradient's singular value decomposition in float64, with what the docstring says of the distance."""
  random = np.random.default_rng(0)
  for shape in ((128, 128), (128, 512)):
    gradient = random.normal(size=shape)
    left, _, right = np.linalg.svd(gradient, full_matrices=False)
    params = {"encoder": {"inner": {"kernel": jnp.asarray(gradient, jnp.float32)}}}
    optimizer = muon(update_rms=1.0)
    update, _ = jax.jit(optimizer.update)(params, optimizer.init(params))
    orthogonal = np.asarray(update["encoder"]["inner"]["kernel"]) / np.sqrt(max(shape))
    assert np.linalg.norm(orthogonal - left @ right) / np.sqrt(128) < 0.22


def test_muon_is_optaxs_muon_matrix_by_matrix():
  """Stacking matrices of a shape, and taking heads as part of a matrix, changes nothing against optax's own Muon."""
  random = np.random.default_rng(0)

  def array(*shape):
    return jnp.asarray(random.normal(size=shape), jnp.float32)

  layer = {
    "query_projection": {"kernel": array(8, 2, 4)},
    "output_projection": {"kernel": array(2, 4, 8)},
    "inner": {"kernel": array(8, 24), "bias": array(24)},
    "outer": {"kernel": array(24, 8)},
  }
  params = {"encoder": layer, "target_embedding": array(10, 8)}
  dimensions = {
    "query_projection": {"kernel": MuonDimensionNumbers(0, (1, 2))},
    "output_projection": {"kernel": MuonDimensionNumbers((0, 1), 2)},
    "inner": {"kernel": MuonDimensionNumbers(0, 1), "bias": None},
    "outer": {"kernel": MuonDimensionNumbers(0, 1)},
  }
  config = default_config().optimizer
  config.name, config.schedule, config.learning_rate, config.warmup_steps = "muon", "constant", 0.01, 0
  ours = make_optimizer(config, learning_rate_schedule(config, 8, 10))
  theirs = optax.contrib.muon(
    0.01,
    muon_weight_dimension_numbers={"encoder": dimensions, "target_embedding": None},
    consistent_rms=0.2,
    ns_steps=4,
    preconditioning="aol",
  )
  adam = optax.adam(0.01, config.beta1, config.beta2, config.epsilon)
  states = [optimizer.init(params) for optimizer in (ours, theirs, adam)]
  updates = [jax.jit(optimizer.update) for optimizer in (ours, theirs, adam)]  # op by op it would take a minute
  for _ in range(3):
    gradients = jax.tree.map(lambda x: array(*x.shape), params)
    results = [update(gradients, state, params) for update, state in zip(updates, states, strict=True)]
    states = [state for _, state in results]
    (update, _), (muon_update, _), (adam_update, _) = results
    for name in layer:
      kernel = update["encoder"][name]["kernel"]
      np.testing.assert_allclose(kernel, muon_update["encoder"][name]["kernel"], rtol=1e-3, atol=1e-6)
      assert 0.1 < float(jnp.sqrt((kernel**2).mean())) / (0.01 * 0.2) < 1.5
    np.testing.assert_allclose(update["target_embedding"], adam_update["target_embedding"], rtol=1e-5)
    np.testing.assert_allclose(update["encoder"]["inner"]["bias"], adam_update["encoder"]["inner"]["bias"], rtol=1e-5)


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
