"""The product with a weight matrix, whose gradient reads the arrays as they lie in memory."""

import functools
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Float

Axes = tuple[int, ...]
Dimensions = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]  # those of `jax.lax.dot_general`


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def weight_product(
  x: Float[Array, "..."],
  weights: Float[Array, "..."],
  dimensions: Dimensions,
  precision: Any = None,
  preferred_element_type: Any = None,
) -> Float[Array, "..."]:
  """`jax.lax.dot_general` for the last axes of x and the first of the weights, for the `dot_general` of Flax's layers.

  JAX's own gradient for the weights has the gradient y' of the result as left factor, y'^T x, and transposes the outcome. On a
  CPU, XLA copies a left factor that is transposed; y' is no array yet there but the end of a long chain of sums back through
  the residual stream, which is computed once more, and out of order, for that copy. x^T y' is the same matrix, copies x, which
  exists, and saves an eighth of the time of an update of the quickstart (2 cores, docs/results/quickstart).

  Raises:
    ValueError: other axes are contracted, or some are batch axes.
  """
  (x_axes, weight_axes), batch = dimensions
  count = len(x_axes)
  if any(batch) or tuple(x_axes) != tuple(range(x.ndim - count, x.ndim)) or tuple(weight_axes) != tuple(range(count)):
    raise ValueError(f"x's last axes and the weights' first ones are contracted here, not {dimensions}")
  return lax.dot_general(x, weights, dimensions, precision=precision, preferred_element_type=preferred_element_type)


def _forward(x, weights, dimensions, precision, preferred_element_type):
  return weight_product(x, weights, dimensions, precision, preferred_element_type), (x, weights)


def _backward(dimensions, precision, preferred_element_type, saved, y_gradient):
  x, weights = saved
  count = len(dimensions[0][0])
  product = functools.partial(lax.dot_general, precision=precision, preferred_element_type=preferred_element_type)
  lead, outputs = tuple(range(x.ndim - count)), tuple(range(x.ndim - count, y_gradient.ndim))
  weight_outputs = tuple(range(count, weights.ndim))
  x_gradient = product(y_gradient, weights, ((outputs, weight_outputs), ((), ())))  # [*lead, *inputs]
  weights_gradient = product(x, y_gradient, ((lead, lead), ((), ())))  # [*inputs, *outputs]
  return x_gradient.astype(x.dtype), weights_gradient.astype(weights.dtype)


weight_product.defvjp(_forward, _backward)
