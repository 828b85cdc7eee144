"""The product with a weight matrix: JAX's product and gradients, in another order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.model.products import weight_product

CASES = {
  "dense": ((3, 5, 4), (4, 6), (((2,), (0,)), ((), ()))),
  "into heads": ((3, 5, 4), (4, 2, 3), (((2,), (0,)), ((), ()))),
  "out of heads": ((3, 5, 2, 3), (2, 3, 4), (((2, 3), (0, 1)), ((), ()))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_product_and_gradients_are_jaxs(name, dtype):
  """Also where the products of bfloat16 arrays are to be float32, as those of the output layer are."""
  x_shape, weights_shape, dimensions = CASES[name]
  random = np.random.default_rng(0)
  x, weights = (jnp.asarray(random.normal(size=shape), dtype) for shape in (x_shape, weights_shape))

  def gradients(product):
    def total(x, weights):
      return jnp.sin(product(x, weights, dimensions, preferred_element_type=jnp.float32)).sum()

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(x, weights)

  (ours, (x_ours, weights_ours)), (theirs, (x_theirs, weights_theirs)) = map(
    gradients, (weight_product, jax.lax.dot_general)
  )
  assert (x_ours.dtype, x_ours.shape, weights_ours.dtype, weights_ours.shape) == (dtype, x_shape, dtype, weights_shape)
  tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == jnp.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
  np.testing.assert_allclose(ours, theirs, rtol=1e-5)
  for one, other in ((x_ours, x_theirs), (weights_ours, weights_theirs)):
    np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), **tolerance)


def test_gradient_against_the_equation():
  """dL/dx = y' W^T and dL/dW = x^T y' in float64 NumPy; rows of several sentences add up."""
  random = np.random.default_rng(1)
  x, weights, y_gradient = random.normal(size=(2, 3, 4)), random.normal(size=(4, 5)), random.normal(size=(2, 3, 5))
  product = jax.jit(
    lambda x, weights: jax.vjp(lambda *p: weight_product(*p, (((2,), (0,)), ((), ()))), x, weights)[1](
      jnp.asarray(y_gradient, jnp.float32)
    )
  )
  x_gradient, weights_gradient = product(jnp.asarray(x, jnp.float32), jnp.asarray(weights, jnp.float32))
  np.testing.assert_allclose(x_gradient, y_gradient @ weights.T, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(weights_gradient, x.reshape(6, 4).T @ y_gradient.reshape(6, 5), rtol=1e-4, atol=1e-5)


def test_runs_together_have_weights_of_their_own():
  """`jax.vmap` over weights, as runs that train as one program need it."""
  random = np.random.default_rng(2)
  x, weights = (jnp.asarray(random.normal(size=s), jnp.float32) for s in ((2, 3, 4), (2, 4, 5)))

  def gradient(x, weights):
    return jax.grad(lambda w: (weight_product(x, w, (((1,), (0,)), ((), ()))) ** 2).sum())(weights)

  together = jax.jit(jax.vmap(gradient))(x, weights)
  for run in range(2):
    np.testing.assert_allclose(together[run], 2 * x[run].T @ (x[run] @ weights[run]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  "dimensions", [(((0,), (0,)), ((), ())), (((1,), (1,)), ((), ())), (((1,), (0,)), ((0,), (1,)))]
)
def test_other_axes_are_refused(dimensions):
  with pytest.raises(ValueError, match="last axes"):
    weight_product(jnp.ones((4, 4)), jnp.ones((4, 4)), dimensions)
