"""Attention in chunks against attention at once: results and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiling import RIGHT

from transformer_jax.config import default_config
from transformer_jax.model.attention import MultiHeadAttention, scaled_dot_product_attention
from transformer_jax.model.chunked import chunked_attention
from transformer_jax.model.config import model_config
from transformer_jax.model.positions import alibi, t5_bias
from transformer_jax.model.visibility import Visibility

SEGMENTS = np.array([[1] * 9 + [2] * 10 + [3] * 2 + [0] * 2, [1] * 20 + [0] * 3])
CASES = {
  "everything": {},
  "causal": {"causal": True},
  "segments": {"segments": True},
  "segments, causal": {"segments": True, "causal": True},
  "window": {"window": 3},
  "window, causal, segments": {"window": 5, "causal": True, "segments": True},
  "alibi, causal": {"bias": alibi(4), "causal": True},
  "grouped, segments": {"kv_heads": 2, "segments": True},
  "other scale, one key head": {"kv_heads": 1, "scale": 0.1},
  "fewer keys than queries": {"keys": 13},
  "d_k and d_v apart": {"d_v": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_chunks_change_nothing(case):
  """Chunks of 8 in a row of 23: the last ones are filled up, and some are skipped."""
  options = {
    "causal": False,
    "segments": False,
    "window": 0,
    "bias": None,
    "kv_heads": 4,
    "scale": None,
    "keys": 23,
    "d_v": 6,
  }
  options |= CASES[case]
  keys = jax.random.split(jax.random.key(0), 4)
  query = jax.random.normal(keys[0], (2, 23, 4, 6))
  key = jax.random.normal(keys[1], (2, options["keys"], options["kv_heads"], 6))
  value = jax.random.normal(keys[2], (2, options["keys"], options["kv_heads"], options["d_v"]))
  segments = jnp.asarray(SEGMENTS) if options["segments"] else None
  visibility = Visibility(segments, segments, options["causal"], options["window"])
  seeing = (SEGMENTS > 0)[:, :, None, None] if options["segments"] else np.ones((2, 23, 1, 1), bool)
  weight = jnp.asarray(seeing) * jax.random.normal(keys[3], (2, 23, 4, options["d_v"]))

  def at_once(query, key, value):
    mask = visibility.mask(23, options["keys"])
    bias = options["bias"] and options["bias"](jnp.arange(23), jnp.arange(options["keys"]))[None]
    return scaled_dot_product_attention(query, key, value, mask, bias, options["scale"])[0]

  def in_chunks(query, key, value):
    return chunked_attention(query, key, value, visibility, options["bias"], options["scale"], chunk=8)

  def both(attention):
    def loss(*qkv):
      result = attention(*qkv)
      return (result * weight).sum(), result

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True), compiler_options=RIGHT)(query, key, value)

  (_, expected), expected_gradients = both(at_once)
  (_, result), gradients = both(in_chunks)
  np.testing.assert_allclose(np.where(seeing, result, 0), np.where(seeing, expected, 0), atol=1e-5)
  for ours, theirs in zip(gradients, expected_gradients, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert np.isfinite(result).all()


def test_the_gradient_of_a_learned_bias():
  """T5's table gets the same gradient through the chunks."""
  keys = jax.random.split(jax.random.key(1), 4)
  query, key, value, weight = (jax.random.normal(k, (1, 19, 2, 4)) for k in keys)
  visibility = Visibility(None, None, causal=True)

  def chunked(table):
    bias = functools.partial(t5_bias, table=table, bidirectional=False)
    return (chunked_attention(query, key, value, visibility, bias, chunk=8) * weight).sum()

  def at_once(table):
    bias = t5_bias(jnp.arange(19), jnp.arange(19), table, bidirectional=False)[None]
    return (scaled_dot_product_attention(query, key, value, visibility.mask(19, 19), bias)[0] * weight).sum()

  table = jax.random.normal(keys[0], (8, 2))
  np.testing.assert_allclose(
    jax.jit(jax.grad(chunked), compiler_options=RIGHT)(table), jax.jit(jax.grad(at_once))(table), atol=1e-5
  )


def test_a_row_without_a_visible_key_stays_finite():
  """Users hit 1: padding alone, forward and backward."""
  query = jax.random.normal(jax.random.key(0), (1, 19, 2, 4))
  nothing = jnp.zeros((1, 19), jnp.int32)

  def loss(query):
    return jnp.square(chunked_attention(query, query, query, Visibility(nothing, nothing), chunk=8)).sum()

  value, gradient = jax.jit(jax.value_and_grad(loss), compiler_options=RIGHT)(query)
  assert np.isfinite(value) and np.isfinite(gradient).all()


def test_weights_can_be_seen():
  """Where a figure of the weights is drawn, the chunks give way to attention at once; what comes out is the same."""
  config = default_config().model
  config.update({"d_model": 16, "num_heads": 2, "kernel": "chunked"})
  module = MultiHeadAttention(model_config(config, 8, 8), self_attention=True)
  x = jax.random.normal(jax.random.key(0), (1, 19, 16))
  visibility = Visibility(None, None, causal=True)
  params = module.init(jax.random.key(1), x, x, visibility)
  result, seen = module.apply(params, x, x, visibility, mutable="intermediates")
  (weights,) = seen["intermediates"]["weights"]
  assert weights.shape == (1, 2, 19, 19)
  np.testing.assert_allclose(result, module.apply(params, x, x, visibility), atol=1e-5)
