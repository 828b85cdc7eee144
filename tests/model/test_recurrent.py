"""The recurrent model against float64 NumPy, written from the cells' equations, and its size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches_of import packed_batch, random_pairs
from helpers.models import VOCABULARY, initialised, small_config

from transformer_jax.config import default_config
from transformer_jax.model.build import build_model, count, parameter_shapes


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def dense(x, parameters):
  return x @ parameters["kernel"] + parameters.get("bias", 0)


def lstm(state, x, p):
  """Hochreiter & Schmidhuber 1997 with forget gates: c = f c + i g, h = o tanh(c)."""
  c, h = state

  def gate(name):
    return dense(x, p[f"i{name}"]) + dense(h, p[f"h{name}"])

  c = sigmoid(gate("f")) * c + sigmoid(gate("i")) * np.tanh(gate("g"))
  return c, sigmoid(gate("o")) * np.tanh(c)


def gru(state, x, p):
  """Cho et al. 2014 with the reset gate behind the product: n = tanh(W x + r (U h + b)), h = (1 - z) n + z h."""
  (h,) = state
  r = sigmoid(dense(x, p["ir"]) + dense(h, p["hr"]))
  z = sigmoid(dense(x, p["iz"]) + dense(h, p["hz"]))
  n = np.tanh(dense(x, p["in"]) + r * dense(h, p["hn"]))
  return ((1 - z) * n + z * h,)


def expected_logits(parameters, source, inputs, kind, attention, size, layers=2):
  cell, parts = (lstm, 2) if kind == "lstm" else (gru, 1)
  embedding, encoder, decoder = (parameters[name] for name in ("target_embedding", "encoder", "decoder"))
  x = embedding[source] * np.sqrt(embedding.shape[1])
  for layer in range(layers):
    outputs = []
    for direction, order in (("forwards", range(len(x))), ("backwards", reversed(range(len(x))))):
      state, h = (np.zeros(size // 2),) * parts, [None] * len(x)
      for place in order:
        state = cell(state, x[place], encoder[f"layer_{layer}_{direction}"]["cell"])
        h[place] = state[-1]
      outputs.append(np.array(h))
    y = np.concatenate(outputs, axis=-1)
    x = x + y if layer else y
  summary = np.concatenate([outputs[0][-1], outputs[1][0]])
  states = [np.split(np.tanh(dense(summary, decoder[f"start_{i}"])), parts) for i in range(layers)]
  logits = []
  for piece in inputs:
    y, context = embedding[piece] * np.sqrt(embedding.shape[1]), np.zeros(0)
    if attention != "none":
      p = decoder["attention"]
      query, keys = dense(states[-1][-1], p["query_projection"]), dense(x, p["key_projection"])
      scores = (
        np.tanh(query + keys) @ p["energy"]["kernel"][:, 0] if attention == "additive" else keys @ query / np.sqrt(size)
      )
      weights = np.exp(scores - scores.max())
      context = weights / weights.sum() @ x
    for i in range(layers):
      states[i] = cell(states[i], np.concatenate([y, context]), decoder[f"cell_{i}"])
      y = y + states[i][-1] if i else states[i][-1]
    logits.append(dense(np.concatenate([y, context]), decoder["output"]) @ embedding.T)
  return np.array(logits)


@pytest.mark.parametrize(
  ("kind", "attention"), [("lstm", "additive"), ("lstm", "dot"), ("gru", "additive"), ("gru", "none")]
)
def test_logits_agree_with_the_equations_in_float64(kind, attention):
  """In packed rows, where the state starts anew with each pair."""
  model, params = initialised(small_config(kind=kind, recurrent_attention=attention, recurrent_size=10))
  pairs = random_pairs(5, VOCABULARY, 7)
  rows = [pairs[:3], pairs[3:]]
  batch = jax.tree.map(jnp.asarray, packed_batch(rows, 24, 24))
  with jax.default_matmul_precision("highest"):
    logits = np.asarray(jax.jit(lambda params, batch: model.apply({"params": params}, batch))(params, batch))
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  for row, row_pairs in enumerate(rows):
    start = 0
    for source, target in row_pairs:
      expected = expected_logits(exact, source, [1, *target[:-1]], kind, attention, 10)
      np.testing.assert_allclose(logits[row, start : start + len(target)], expected, atol=1e-5, rtol=1e-5)
      start += len(target)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_size_gives_the_transformers_number_of_parameters(kind):
  """Within one percent, at the sizes of the quickstart."""
  config = default_config()
  config.model.update({"num_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4})
  budget = count(parameter_shapes(build_model(config, 3_000, 3_000)))
  config.model.kind = kind
  model = build_model(config, 3_000, 3_000)
  assert abs(count(parameter_shapes(model)) - budget) < 0.01 * budget
  assert model.config.recurrent_size % 2 == 0
