"""Our own attention against `jax.nn.dot_product_attention` and against the equation."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import equations

from transformer_jax.model.attention import attend, scaled_dot_product_attention


def random_inputs(d_k, d_v):
  keys = jax.random.split(jax.random.key(0), 4)
  query = jax.random.normal(keys[0], (2, 5, 3, d_k))
  key = jax.random.normal(keys[1], (2, 7, 3, d_k))
  value = jax.random.normal(keys[2], (2, 7, 3, d_v))
  mask = jax.random.bernoulli(keys[3], 0.6, (2, 1, 5, 7)).at[0, 0, 2].set(False).at[:, :, 0, 0].set(True)
  return query, key, value, mask


def test_own_attention_is_that_of_jax_where_both_apply():
  """Results and gradients, also for a query whose mask hides everything."""
  query, key, value, mask = random_inputs(4, 4)

  def own(*qkv):
    return scaled_dot_product_attention(*qkv, mask)[0]

  def jaxs(*qkv):
    return attend(*qkv, mask)

  def value_and_gradients(function):
    return jax.jit(jax.value_and_grad(lambda *qkv: jnp.sin(function(*qkv)).sum(), argnums=(0, 1, 2)))(query, key, value)

  np.testing.assert_allclose(jax.jit(own)(query, key, value), jax.jit(jaxs)(query, key, value), atol=1e-6)
  (_, ours), (_, theirs) = value_and_gradients(own), value_and_gradients(jaxs)
  for one, other in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_unmasked_attention_is_equation_1():
  query, key, value, _ = random_inputs(4, 6)
  result, weights = jax.jit(scaled_dot_product_attention)(query, key, value, jnp.ones((2, 1, 5, 7), bool))
  np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)
  for batch in range(2):
    for head in range(3):
      q, k, v = (np.asarray(x[batch, :, head], np.float64) for x in (query, key, value))
      np.testing.assert_allclose(result[batch, :, head], equations.attention(q, k, v, causal=False), atol=1e-5)


def test_hidden_keys_have_weight_zero_and_a_blind_query_stays_finite():
  """Users hit 2: the mask is the least finite value of float32, also for bfloat16 inputs."""
  query, key, value, mask = random_inputs(4, 4)
  for dtype in (jnp.float32, jnp.bfloat16):
    result, weights = jax.jit(scaled_dot_product_attention)(*(x.astype(dtype) for x in (query, key, value)), mask)
    seeing = np.broadcast_to(np.asarray(mask).any(axis=-1, keepdims=True), weights.shape)
    hidden = np.broadcast_to(~np.asarray(mask), weights.shape) & seeing
    assert (np.asarray(weights)[hidden] == 0.0).all() and weights.dtype == jnp.float32
    np.testing.assert_allclose(weights[0, :, 2], 1 / 7, rtol=1e-5)  # sees nothing: all alike
    assert np.isfinite(np.asarray(result, np.float32)).all()
