"""The whole model against float64 NumPy, its masks, its numerics, its cache and its size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equations
from helpers.batches_of import packed_batch, random_pairs
from helpers.models import VOCABULARY, initialised, small_config

from transformer_jax.config import default_config
from transformer_jax.describe import abstract_state
from transformer_jax.model.build import count
from transformer_jax.model.config import model_config
from transformer_jax.model.transformer import Transformer
from transformer_jax.training.objective import smoothed_cross_entropy

SMALL = small_config(num_decoder_layers=3)
VARIANTS = {
  "post": {},
  "pre": {"norm": "pre"},
  "d_k and d_v apart": {"d_k": 5, "d_v": 2},
  "target shared": {"share_embeddings": "target", "source_vocabulary": 31},
  "nothing shared, odd d_model": {"share_embeddings": "none", "d_model": 15, "norm": "pre"},
}


def run(model, params, batch):
  """The model's logits, compiled: op by op each shape would be compiled op by op."""
  return np.asarray(jax.jit(lambda params, batch: model.apply({"params": params}, batch))(params, batch))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_with_the_equations_in_float64(variant):
  config = dataclasses.replace(SMALL, **VARIANTS[variant])
  model, params = initialised(config)
  pairs = random_pairs(6, VOCABULARY, 7)
  batch = packed_batch([pairs[:3], pairs[3:5], pairs[5:]], 24, 24)
  with jax.default_matmul_precision("highest"):
    logits = run(model, params, batch)
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  for row, row_pairs in enumerate([pairs[:3], pairs[3:5], pairs[5:]]):
    start = 0
    for source, target in row_pairs:
      expected = equations.logits(exact, source, [1, *target[:-1]], config.norm, config.share_embeddings)
      np.testing.assert_allclose(logits[row, start : start + len(target)], expected, atol=1e-5, rtol=1e-5)
      start += len(target)


def test_packed_neighbours_do_not_see_each_other():
  """Users hit 7: the logits of a pair are the same alone, packed behind others, and with other padding."""
  model, params = initialised(SMALL)
  first, second, third = random_pairs(3, VOCABULARY, 7, seed=3)
  alone = run(model, params, packed_batch([[second]], 8, 8))
  packed = run(model, params, packed_batch([[first, second, third]], 24, 24))
  start = len(first[1])
  here = slice(start, start + len(second[1]))
  np.testing.assert_allclose(packed[0, here], alone[0, : len(second[1])], atol=1e-5)


def test_a_target_piece_changes_no_logit_before_it():
  """Users hit 7: causality, and changing what stands in the padding changes nothing, to the bit."""
  model, params = initialised(SMALL)
  source, target = [5, 6, 7, 8, 2], [9, 10, 11, 12, 13, 2]
  batch = packed_batch([[(source, target)]], 8, 8)
  logits_of = jax.jit(lambda batch: model.apply({"params": params}, batch))
  before = np.asarray(logits_of(batch))
  for place in range(1, len(target)):
    inputs = batch.target_inputs.copy()
    inputs[0, place] = 20
    after = np.asarray(logits_of(batch._replace(target_inputs=inputs)))
    np.testing.assert_array_equal(after[0, :place], before[0, :place])
    assert np.abs(after[0, place] - before[0, place]).max() > 1e-4
  other = batch._replace(
    source=np.where(batch.source_segments > 0, batch.source, 17),
    target_inputs=np.where(batch.target_segments > 0, batch.target_inputs, 18),
    source_positions=np.where(batch.source_segments > 0, batch.source_positions, 3),
  )
  after = np.asarray(logits_of(other))
  np.testing.assert_array_equal(after[0, : len(target)], before[0, : len(target)])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_row_of_padding_is_harmless(norm):
  """Users hit 1: an all-padding row gives finite loss and gradients and leaves the other rows exactly as they were."""
  model, params = initialised(dataclasses.replace(SMALL, norm=norm))
  pairs = random_pairs(2, VOCABULARY, 7)
  full = packed_batch([[pairs[0]], [pairs[1]]], 8, 8)
  with_empty_row = packed_batch([[pairs[0]], []], 8, 8)

  def loss(params, batch):
    logits = model.apply({"params": params}, batch)
    sums = smoothed_cross_entropy(
      logits, jnp.asarray(batch.target_outputs), jnp.asarray(batch.target_segments > 0), 0.1
    )
    return sums.loss, logits

  both = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (_, reference), _ = both(params, full)
  (value, logits), gradients = both(params, with_empty_row)
  assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  length = len(pairs[0][1])
  np.testing.assert_array_equal(logits[0, :length], reference[0, :length])
  # A source without a piece: every query of the row's target may see nothing.
  no_source = full._replace(source_segments=full.source_segments * np.array([[1], [0]], np.int32))
  (value, logits), gradients = both(params, no_source)
  assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  np.testing.assert_array_equal(logits[0, :length], reference[0, :length])


def test_bfloat16_with_padding_agrees_with_float32():
  """Users hit 2: the same loss within bfloat16's rounding, float32 logits and parameters, although rows hold padding."""
  pairs = random_pairs(8, VOCABULARY, 7)
  batch = packed_batch([[pair] for pair in pairs], 16, 16)
  losses = {}
  for dtype in ("float32", "bfloat16"):
    model, params = initialised(dataclasses.replace(SMALL, dtype=jnp.dtype(dtype)))
    logits = jax.jit(model.apply)({"params": params}, batch)
    assert logits.dtype == jnp.float32 and all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    sums = smoothed_cross_entropy(
      logits, jnp.asarray(batch.target_outputs), jnp.asarray(batch.target_segments > 0), 0.1
    )
    losses[dtype] = float(sums.loss / sums.pieces)
  assert abs(losses["bfloat16"] - losses["float32"]) < 0.02 * losses["float32"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_with_the_cache_give_the_teacher_forced_logits(variant):
  """Users hit 11: step-by-step logits equal teacher-forced ones, with padding, for every beam."""
  config = dataclasses.replace(SMALL, **VARIANTS[variant])
  model, params = initialised(config)
  pairs = random_pairs(4, VOCABULARY, 7, seed=5)
  batch = jax.tree.map(jnp.asarray, packed_batch([[pair] for pair in pairs], 16, 8))
  expected = run(model, params, batch)

  @jax.jit
  def start(batch):
    memory = model.apply(
      {"params": params}, batch.source, batch.source_positions, batch.source_segments, method="encode"
    )
    return model.apply({"params": params}, memory, batch.source_segments, 2, 11, method="start_cache")

  step = jax.jit(lambda tokens, cache: model.apply({"params": params}, tokens, cache, method="step"))
  cache = start(batch)
  for position in range(8):
    tokens = jnp.repeat(batch.target_inputs[:, position, None], 2, axis=1)  # both beams read the same
    logits, cache = step(tokens, cache)
    for row, (_, target) in enumerate(pairs):
      if position < len(target):
        for beam in range(2):
          np.testing.assert_allclose(logits[row, beam], expected[row, position], atol=1e-5)


def parameters_of(**changes):
  """Number of parameters of the base model with some fields changed, at the paper's vocabulary."""
  config = default_config()
  for name, value in changes.items():
    config.model[name] = value
  state = abstract_state(config, Transformer(model_config(config.model, 37_000, 37_000)))
  return count(state.params)


def test_parameter_counts_of_table_3():
  """The differences between the rows, in millions, and the rows A, which have as many as the base model (facts.md)."""
  base = parameters_of()
  assert base == pytest.approx(63.0e6, abs=0.06e6)
  embedding = 37_000 * 512
  assert base - embedding == pytest.approx(44.10e6, abs=0.006e6)
  assert parameters_of(num_heads=16) == base
  for changes, millions in (
    ({"d_k": 16}, 37.02),
    ({"d_k": 32}, 39.38),
    ({"num_layers": 2}, 14.70),
    ({"d_ff": 1024}, 31.51),
    ({"d_ff": 4096}, 69.29),
  ):
    assert parameters_of(**changes) - embedding == pytest.approx(millions * 1e6, abs=0.006e6), changes
  for changes, millions in (
    ({"d_model": 256, "d_k": 32, "d_v": 32}, 17.34),
    ({"d_model": 1024, "d_k": 128, "d_v": 128}, 125.93),
    ({"d_model": 1024, "d_ff": 4096, "num_heads": 16}, 176.28),
  ):
    without_embedding = parameters_of(**changes) - 37_000 * changes["d_model"]
    assert without_embedding == pytest.approx(millions * 1e6, abs=0.006e6), changes
