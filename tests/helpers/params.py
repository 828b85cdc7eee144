"""Random parameters without a compilation: `model.init` as a program takes seconds to compile."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.model.build import parameter_shapes


def random_params(model, seed=0, gain=1.0):
  """Parameters of a whole model."""
  return random_tree(parameter_shapes(model), seed, gain)


def random_tree(shapes, seed=0, gain=1.0):
  """Parameters of these shapes: matrices like fresh ones times `gain`, norms near 1 and biases near 0, but not there.

  (At 1 and 0, a norm or a bias that is left out would not be noticed.)
  """
  random = np.random.default_rng(seed)

  def values(path, leaf):
    x = random.normal(size=leaf.shape)
    if leaf.ndim > 1:
      inputs = leaf.shape[0]
      if path[-1].key != "kernel":  # an embedding
        inputs = leaf.shape[-1]
      elif path[-2].key == "output_projection":  # [heads, d_v, d_model]
        inputs = np.prod(leaf.shape[:-1])
      return jnp.asarray(gain * x / np.sqrt(inputs), jnp.float32)
    return jnp.asarray((path[-1].key == "scale") + 0.1 * x, jnp.float32)

  return jax.tree_util.tree_map_with_path(values, shapes)
