"""Muon: against the singular value decomposition in float64, and against optax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers

from transformer_jax.config import default_config
from transformer_jax.training.muon import POLYNOMIALS, muon, orthogonal
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer


def test_the_polynomials_bring_singular_values_near_one():
  """To within 0.28 from 0.01 on, and 78 times nearer from below: what the module's comment and `orthogonal` say."""
  x = np.concatenate([np.geomspace(1e-6, 0.01, 1000), np.linspace(0.01, 1.0, 100_000)])
  y = x
  for a, b, c in POLYNOMIALS:
    y = a * y + b * y**3 + c * y**5
  assert np.abs(y - 1)[x >= 0.01].max() < 0.28
  assert (y > 0).all() and y[0] / x[0] == pytest.approx(78, rel=0.01)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (1, 128, 128), (1, 4, 128), (2, 1, 5)])
def test_orthogonal_is_the_polynomials_of_the_singular_values(shape):
  """For each matrix U S V^T, its rows scaled: U p(S) V^T, from NumPy's decomposition."""
  matrices = np.random.default_rng(0).normal(size=shape) * 1e-3
  scaled = matrices / np.sqrt(np.abs(matrices @ matrices.mT).sum(axis=-1, keepdims=True))
  left, values, right = np.linalg.svd(scaled, full_matrices=False)
  assert values.max() < 1 + 1e-9
  for a, b, c in POLYNOMIALS:
    values = a * values + b * values**3 + c * values**5
  expected = left @ (values[..., None] * right)
  np.testing.assert_allclose(jax.jit(orthogonal)(jnp.asarray(matrices, jnp.float32)), expected, atol=2e-4)


@pytest.mark.parametrize("shape", [(128, 512), (32, 128)])
def test_orthogonal_is_near_the_nearest_orthogonal_matrix(shape):
  matrix = np.random.default_rng(0).normal(size=shape)
  left, _, right = np.linalg.svd(matrix, full_matrices=False)
  found = np.asarray(orthogonal(jnp.asarray(matrix, jnp.float32)[None]))[0]
  assert np.abs(np.linalg.svd(found, compute_uv=False) - 1).max() < 0.28
  assert np.linalg.norm(found - left @ right) / np.sqrt(shape[0]) < 0.3


def test_a_matrix_of_zeros_has_no_update():
  np.testing.assert_array_equal(orthogonal(jnp.zeros((1, 4, 8))), 0)


def arrays(random):
  """A layer's kernels and a bias, and an embedding, all random."""

  def array(*shape):
    return jnp.asarray(random.normal(size=shape), jnp.float32)

  layer = {
    "query_projection": {"kernel": array(8, 2, 4)},
    "output_projection": {"kernel": array(2, 4, 8)},
    "inner": {"kernel": array(8, 24), "bias": array(24)},
    "outer": {"kernel": array(24, 8)},
  }
  return {"encoder": layer, "target_embedding": array(10, 8)}


def test_muon_is_optaxs_head_by_head():
  """The first update is optax's own with the same polynomials and heads as batch axes; all else is Adam's."""
  params, gradients = arrays(np.random.default_rng(0)), arrays(np.random.default_rng(1))
  dimensions = {
    "query_projection": {"kernel": MuonDimensionNumbers(0, 2)},  # axis 1, the heads, is neither
    "output_projection": {"kernel": MuonDimensionNumbers(1, 2)},
    "inner": {"kernel": MuonDimensionNumbers(0, 1), "bias": None},
    "outer": {"kernel": MuonDimensionNumbers(0, 1)},
  }
  config = default_config().optimizer
  config.name, config.schedule, config.learning_rate, config.warmup_steps = "muon", "constant", 0.01, 0
  ours = make_optimizer(config, learning_rate_schedule(config, 8, 10))
  theirs = optax.contrib.muon(
    0.01,
    ns_coeffs=POLYNOMIALS,
    ns_steps=len(POLYNOMIALS),
    muon_weight_dimension_numbers={"encoder": dimensions, "target_embedding": None},
    consistent_rms=0.17,
    preconditioning="aol",
  )
  adam = optax.adam(0.01, config.beta1, config.beta2, config.epsilon)
  update, muon_update, adam_update = (
    jax.jit(optimizer.update)(gradients, optimizer.init(params), params)[0] for optimizer in (ours, theirs, adam)
  )
  for name, layer in update["encoder"].items():
    np.testing.assert_allclose(layer["kernel"], muon_update["encoder"][name]["kernel"], rtol=1e-3, atol=1e-6)
    assert 0.7 < float(jnp.sqrt((layer["kernel"] ** 2).mean())) / (0.01 * 0.17) < 1.3
  np.testing.assert_allclose(update["target_embedding"], adam_update["target_embedding"], rtol=1e-5)
  np.testing.assert_allclose(update["encoder"]["inner"]["bias"], adam_update["encoder"]["inner"]["bias"], rtol=1e-5)


def test_momentum_is_nesterovs():
  """The third update is that of g_3 + 0.95 (g_3 + 0.95 g_2 + 0.95^2 g_1)."""
  random = np.random.default_rng(0)
  gradients = [random.normal(size=(4, 6)) for _ in range(3)]
  optimizer = muon(momentum=0.95, update_rms=0.2)

  def tree(matrix):
    return {"encoder": {"inner": {"kernel": jnp.asarray(matrix, jnp.float32)}}}

  state = optimizer.init(tree(gradients[0]))
  for gradient in gradients:
    update, state = optimizer.update(tree(gradient), state)
  first, second, third = gradients
  direction = third + 0.95 * (third + 0.95 * second + 0.95**2 * first)
  expected = orthogonal(jnp.asarray(direction, jnp.float32)[None])[0] * 0.2 * np.sqrt(6)
  np.testing.assert_allclose(update["encoder"]["inner"]["kernel"], expected, rtol=1e-4, atol=1e-6)


def test_a_heads_update_is_its_own():
  """Other gradients in one head change no other head's update; without heads as matrices of their own they would."""
  params = arrays(np.random.default_rng(0))["encoder"]
  optimizer = muon()
  updates = []
  for factor in (1.0, 30.0):
    kernel = params["query_projection"]["kernel"].at[:, 1, :2].multiply(factor)
    changed = {"encoder": {"self": {"query_projection": {"kernel": kernel}}}}
    updates.append(
      optimizer.update(changed, optimizer.init(changed))[0]["encoder"]["self"]["query_projection"]["kernel"]
    )
  np.testing.assert_allclose(updates[0][:, 0], updates[1][:, 0], rtol=1e-5)
  assert float(jnp.abs(updates[0][:, 1] - updates[1][:, 1]).max()) > 0.01
