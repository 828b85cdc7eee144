"""Our own attention against `jax.nn.dot_product_attention` and against the equation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equations

from transformer_jax.model.attention import attend, scaled_dot_product_attention
from transformer_jax.model.visibility import Visibility


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


@pytest.mark.parametrize(("causal", "window"), [(False, 2), (True, 2), (True, 0), (False, 1)])
def test_windows_are_those_of_jax(causal, window):
  """Local windows against `jax.nn.dot_product_attention`'s own, and against the distances one by one."""
  keys = jax.random.split(jax.random.key(0), 3)
  query, key, value = (jax.random.normal(k, (2, 7, 3, 4)) for k in keys)
  mask = Visibility(None, None, causal, window).mask(7, 7)
  for q in range(7):
    for k in range(7):
      assert mask[0, 0, q, k] == ((not causal or k <= q) and (not window or abs(q - k) <= window))

  @jax.jit
  def both(query, key, value):
    theirs = jax.nn.dot_product_attention(
      query, key, value, is_causal=causal, local_window_size=window or None, implementation="xla"
    )
    return attend(query, key, value, mask), theirs

  np.testing.assert_allclose(*both(query, key, value), atol=1e-6)


def test_cudnn_gets_even_lengths(monkeypatch):
  """cuDNN's kernel refuses odd ones: they are filled up, and what fills up is not seen. (Its place is taken by XLA's here.)"""
  real, lengths = jax.nn.dot_product_attention, []

  def instead(query, key, value, bias, mask, scale, implementation):
    lengths.append((query.shape[1], key.shape[1], mask.shape[2:], implementation))
    return real(query, key, value, bias, mask, scale=scale, implementation="xla")

  query, key, value, mask = random_inputs(4, 4)
  bias = jax.random.normal(jax.random.key(5), (1, 3, 5, 7))
  expected = jax.jit(scaled_dot_product_attention)(query, key, value, mask, bias)[0]
  monkeypatch.setattr(jax.nn, "dot_product_attention", instead)
  result = jax.jit(attend, static_argnames="kernel")(query, key, value, mask, bias, kernel="cudnn")
  assert lengths == [(6, 8, (6, 8), "cudnn")]
  seeing = np.asarray(mask).any(axis=-1)[:, 0, :, None, None]
  np.testing.assert_allclose(np.where(seeing, result, 0), np.where(seeing, expected, 0), atol=1e-5)
