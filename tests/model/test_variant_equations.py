"""The variants of attention, norm and feed-forward network against float64 NumPy, written from the papers' equations."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models import small_config
from helpers.params import random_tree

from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.initializers import deepnorm_constants
from transformer_jax.model.layers import FeedForward, Residual
from transformer_jax.model.norms import rms_norm
from transformer_jax.model.positions import alibi, alibi_slopes, rotary_frequencies, t5_bias, t5_buckets
from transformer_jax.model.visibility import Visibility

LENGTH = 9


def softmax(scores):
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return weights / weights.sum(axis=-1, keepdims=True)


def multi_head(x, parameters, score=None, value=None, kv_heads=None, causal=False):
  """Head by head; `score(q, k, m, n, head)` is one query's and one key's score, `value(weights, v)` their mean."""
  kernels = {role: parameters[f"{role}_projection"]["kernel"] for role in ("query", "key", "value", "output")}
  num_heads = kernels["query"].shape[1]
  group = num_heads // (kv_heads or num_heads)
  total = np.zeros((len(x), kernels["output"].shape[-1]))
  for head in range(num_heads):
    q, k, v = (x @ kernels[role][:, head if role == "query" else head // group] for role in ("query", "key", "value"))
    scores = np.full((len(x), len(x)), -np.inf)
    for m in range(len(x)):
      for n in range(m + 1 if causal else len(x)):
        plain = q[m] @ k[n] / math.sqrt(q.shape[-1])
        scores[m, n] = plain if score is None else score(q[m], k[n], m, n, head)
    weights = softmax(scores)
    mean = weights @ v if value is None else value(weights, v)
    total += mean @ kernels["output"][head]
  return total


def run_random(module, *arguments):
  """A module's result with random parameters; returns both."""
  params = random_tree(jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments)).get("params", {}))
  with jax.default_matmul_precision("highest"):
    return params, jax.jit(lambda params: module.apply({"params": params}, *arguments))(params)


def run_attention(bias=None, causal=False, **changes):
  """Our multi-head attention on a random row; returns (row, parameters, result), in float64."""
  config = small_config(**changes)
  module = MultiHeadAttention(config, self_attention=True)
  x = jax.random.normal(jax.random.key(3), (1, LENGTH, config.d_model))
  positions = jnp.arange(LENGTH)[None]

  visibility = Visibility(None, None, causal)
  parameters, result = run_random(module, x, x, visibility, positions, bias)
  exact = jax.tree.map(lambda p: np.asarray(p, np.float64), parameters)
  return np.asarray(x[0], np.float64), exact, np.asarray(result[0])


def close(result, expected):
  np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("ntk", 4.0)])
def test_rotary(scaling, factor):
  """RoFormer's complex form, equation 12 there: Re[q k* e^(i (m - n) θ)], pair by pair."""
  x, parameters, result = run_attention(positions="rotary", d_k=6, d_v=4, rotary_scaling=scaling, rotary_factor=factor)

  def score(q, k, m, n, head):
    d = len(q)
    base = 10_000 * factor ** (d / (d - 2)) if scaling == "ntk" else 10_000
    distance = (m - n) / factor if scaling == "linear" else m - n
    total = 0
    for i in range(d // 2):
      theta = base ** (-2 * i / d)
      total += (
        (q[2 * i] + 1j * q[2 * i + 1]) * np.conj(k[2 * i] + 1j * k[2 * i + 1]) * np.exp(1j * distance * theta)
      ).real
    return total / math.sqrt(d)

  close(result, multi_head(x, parameters, score))
  slowest = rotary_frequencies(6)[-1] / rotary_frequencies(6, scaling, factor)[-1]
  assert slowest == pytest.approx(factor)  # both scalings stretch the slowest pair by the factor


@pytest.mark.parametrize("num_heads", [3, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_alibi(num_heads, causal):
  """Scores minus slope times distance, with slopes 2^(-8 i / heads)."""
  x, parameters, result = run_attention(alibi(num_heads), causal, d_model=24, num_heads=num_heads, positions="alibi")
  slopes = {3: [1 / 16, 1 / 256, 1 / 4], 4: [1 / 4, 1 / 16, 1 / 64, 1 / 256], 8: [2.0**-i for i in range(1, 9)]}[
    num_heads
  ]
  np.testing.assert_allclose(alibi_slopes(num_heads), slopes)
  close(
    result,
    multi_head(x, parameters, lambda q, k, m, n, h: q @ k / math.sqrt(len(q)) - slopes[h] * abs(m - n), causal=causal),
  )


def t5_bucket(distance, bidirectional, buckets, max_distance):
  """One bucket with whole numbers only: bucket exact + s begins at exact (max_distance / exact)^(s / wide)."""
  first = 0
  if bidirectional:
    buckets //= 2
    first = buckets if distance > 0 else 0
  elif distance > 0:
    return 0
  distance, exact = abs(distance), buckets // 2
  if distance < exact:
    return first + distance
  wide, step = buckets - exact, 0
  while step < wide - 1 and Fraction(distance, exact) ** wide >= Fraction(max_distance, exact) ** (step + 1):
    step += 1
  return first + exact + step


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
def test_t5_buckets(bidirectional, buckets, max_distance):
  distances = np.arange(-300, 301)
  expected = [t5_bucket(int(d), bidirectional, buckets, max_distance) for d in distances]
  np.testing.assert_array_equal(t5_buckets(jnp.asarray(distances), bidirectional, buckets, max_distance), expected)
  assert (min(expected), max(expected)) == (0, buckets - 1)


def test_t5_bias():
  table = np.random.default_rng(0).normal(size=(8, 3))

  def bias(queries, keys):
    return t5_bias(queries, keys, jnp.asarray(table, jnp.float32), bidirectional=True)

  x, parameters, result = run_attention(bias, positions="t5", t5_buckets=8)
  close(
    result,
    multi_head(
      x, parameters, lambda q, k, m, n, h: q @ k / math.sqrt(len(q)) + table[t5_bucket(n - m, True, 8, 128), h]
    ),
  )


def test_shaw():
  """Equations 3 and 4 of Shaw et al.: keys and values plus a vector for the clipped distance."""
  x, parameters, result = run_attention(positions="shaw", shaw_clip=2)

  def row(m, n):
    return max(-2, min(2, n - m)) + 2

  def score(q, k, m, n, head):
    return q @ (k + parameters["distance_keys"][row(m, n)]) / math.sqrt(len(q))

  def value(weights, v):
    return np.array(
      [
        sum(weights[m, n] * (v[n] + parameters["distance_values"][row(m, n)]) for n in range(LENGTH))
        for m in range(LENGTH)
      ]
    )

  close(result, multi_head(x, parameters, score, value))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries(kv_heads):
  """Query head i uses key and value head i // group."""
  x, parameters, result = run_attention(d_model=16, num_heads=4, num_kv_heads=kv_heads)
  assert parameters["key_projection"]["kernel"].shape == (16, kv_heads, 4)
  close(result, multi_head(x, parameters, kv_heads=kv_heads))


def test_scales():
  """The four scales of the scores; the learned one starts at 1 / sqrt(d_k)."""
  for name in ("d_model", "none", "learned"):
    x, parameters, result = run_attention(attention_scale=name)
    scales = {"d_model": [12**-0.5] * 3, "none": [1.0] * 3, "learned": parameters.get("scale")}[name]
    close(result, multi_head(x, parameters, lambda q, k, m, n, h, scales=scales: q @ k * scales[h]))
  module = MultiHeadAttention(small_config(attention_scale="learned"), self_attention=True)
  x = jnp.zeros((1, 2, 12))
  start = jax.jit(lambda: module.init(jax.random.key(0), x, x, Visibility(None, None)))()
  np.testing.assert_allclose(start["params"]["scale"], 0.5)


@pytest.mark.parametrize("tied", ["qk", "qv", "kv", "qkv"])
def test_tied_projections(tied):
  """One matrix serves the roles that are named together."""
  x, parameters, result = run_attention(tie_projections=tied)
  owner = {"query": "query", "key": "key", "value": "value"}
  for role in ("key", "value"):
    if role[0] in tied:
      owner[role] = "query" if "q" in tied else "key"
  assert {f"{role}_projection" for role in owner.values()} | {"output_projection"} == parameters.keys()
  untied = {f"{role}_projection": parameters[f"{name}_projection"] for role, name in owner.items()}
  close(result, multi_head(x, {**parameters, **untied}))


def layer_norm(x, parameters):
  normed = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
  return normed * parameters["scale"] + parameters["bias"]


def test_query_key_norm():
  x, parameters, result = run_attention(qk_norm=True)

  def score(q, k, m, n, head):
    return layer_norm(q, parameters["query_norm"]) @ layer_norm(k, parameters["key_norm"]) / math.sqrt(len(q))

  close(result, multi_head(x, parameters, score))


def test_rms_norm():
  x, scale = np.random.default_rng(0).normal(2.0, 3.0, (4, 7)), np.linspace(0.5, 2.0, 7)
  expected = [row / math.sqrt((row**2).mean() + 1e-6) * scale for row in x]
  close(rms_norm(jnp.asarray(x, jnp.float32), jnp.asarray(scale, jnp.float32)), expected)


def relu(x):
  return np.maximum(x, 0)


def gelu(x):  # x times the normal distribution's share below x
  return x * np.array([[0.5 * (1 + math.erf(value / math.sqrt(2))) for value in row] for row in x])


def silu(x):
  return x / (1 + np.exp(-x))


@pytest.mark.parametrize(("name", "function"), [("relu", relu), ("gelu", gelu), ("swiglu", silu), ("geglu", gelu)])
def test_activations(name, function):
  """act(x W + b) W_2 + b_2, gated by x V + c: FFN_SwiGLU and FFN_GEGLU of Shazeer 2020, equation 6."""
  module = FeedForward(small_config(activation=name))
  x = jax.random.normal(jax.random.key(1), (1, 5, 12))

  parameters, result = run_random(module, x, False)
  parameters = jax.tree.map(lambda p: np.asarray(p, np.float64), parameters)

  def dense(y, part):
    return y @ parameters[part]["kernel"] + parameters[part]["bias"]

  row = np.asarray(x[0], np.float64)
  inner = function(dense(row, "inner")) * (dense(row, "gate") if name in ("swiglu", "geglu") else 1)
  assert ("gate" in parameters) == (name in ("swiglu", "geglu"))
  close(result[0], dense(inner, "outer"))


@pytest.mark.parametrize("placement", ["post", "pre", "both", "none"])
@pytest.mark.parametrize("connected", [True, False])
def test_residual_connections(placement, connected):
  """Where the norms stand, with and without x +; alpha multiplies x."""
  alpha = 1.7 if placement == "post" else 1.0
  module = Residual(small_config(norm=placement), connected, alpha)
  x = jax.random.normal(jax.random.key(1), (1, 1, 12))

  parameters, result = run_random(module, x, jnp.sin, False)
  row = np.asarray(x[0, 0], np.float64)
  rest = alpha * row if connected else 0
  expected = {
    "post": lambda: layer_norm(rest + np.sin(row), parameters["norm"]),
    "pre": lambda: rest + np.sin(layer_norm(row, parameters["norm"])),
    "both": lambda: rest + layer_norm(np.sin(layer_norm(row, parameters["norm"])), parameters["norm_after"]),
    "none": lambda: rest + np.sin(row),
  }[placement]()
  close(result[0, 0], expected)


def test_deepnorm_constants():
  """Table 1 of the paper, by hand: 18 + 6 layers, and stacks that stand alone."""
  (alpha_e, beta_e), (alpha_d, beta_d) = deepnorm_constants(18, 6)
  assert (alpha_e, beta_e) == pytest.approx((0.81 * (18**4 * 6) ** 0.0625, 0.87 / (18**4 * 6) ** 0.0625))
  assert (alpha_d, beta_d) == pytest.approx((18**0.25, 72**-0.25))
  assert deepnorm_constants(12, 0)[0] == pytest.approx((24**0.25, 96**-0.25))
  assert deepnorm_constants(0, 12)[1] == pytest.approx((24**0.25, 96**-0.25))
