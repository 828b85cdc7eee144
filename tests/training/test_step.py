"""One update: the same on any number of devices and parts, skipped when not finite, with dropout for the global batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.batches_of import packed_batch, random_pairs
from helpers.models import small_config
from helpers.params import random_params

from transformer_jax.model.dropout import dropout
from transformer_jax.model.transformer import Transformer
from transformer_jax.training import step as programs

VOCABULARY = 19
MODEL = small_config(
  source_vocabulary=VOCABULARY,
  target_vocabulary=VOCABULARY,
  num_layers=1,
  d_model=16,
  d_ff=32,
  num_heads=2,
  dropout=0.0,
)


def uneven_batch(seed=0):
  """Eight rows: the first ones full of pairs, the later ones almost or quite empty."""
  pairs = random_pairs(13, VOCABULARY, 6, seed)
  return packed_batch([pairs[:4], pairs[4:8], pairs[8:11], pairs[11:12], pairs[12:], [], [], []], 32, 32)


def start(model, optimizer, seed=0):
  """A state before the first update, without a compilation: the moments of Adam and all counters are 0."""
  params = random_params(model, seed)
  moments = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(optimizer.init, params))
  zero = np.zeros((), np.int32)
  return programs.TrainState(zero, params, moments, np.array([0, 7], np.uint32), zero, zero)


def updates(devices=1, accumulate=1, rate=0.0, steps=3, fsdp=False, batch=None, learning_rate=0.01):
  """Runs a few updates; returns the final state and the metrics of each update."""
  model = Transformer(dataclasses.replace(MODEL, dropout=rate))
  mesh = programs.data_mesh(jax.devices()[:devices])
  optimizer = optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(learning_rate))
  state = start(model, optimizer)
  shardings = programs.state_shardings(jax.eval_shape(lambda: state), mesh, fsdp)
  update = programs.make_train_step(model, optimizer, lambda count: learning_rate, 0.1, accumulate)
  train_step = programs.compile_train_step(update, shardings, mesh)
  state, metrics = jax.device_put(state, shardings), []
  for number in range(steps):
    batch_now = uneven_batch(number) if batch is None else batch(number)
    state, reported = train_step(state, programs.put_batch(batch_now, mesh))
    metrics.append(jax.device_get(reported))
  return state, metrics


undisturbed = functools.cache(updates)  # what several tests compare with


def close(one, other, atol):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), jax.device_get(one), jax.device_get(other)
  )


@pytest.mark.parametrize(
  "setting", [{"devices": 4}, {"accumulate": 4}, {"devices": 2, "accumulate": 2}, {"devices": 4, "fsdp": True}]
)
def test_devices_and_parts_do_not_change_an_update(setting):
  """Users hit 5: sums over pieces divided by their global number, although the shards hold very different numbers."""
  expected, metrics = undisturbed()
  state, other_metrics = updates(**setting)
  close(state.params, expected.params, 2e-5)
  for one, other in zip(metrics, other_metrics, strict=True):
    assert other.sums.pieces == one.sums.pieces
    assert other.sums.loss == pytest.approx(one.sums.loss, rel=1e-5)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)


def test_one_update_is_the_gradient_of_the_mean_over_pieces():
  """Users hit 5: against the loss of one row at a time, weighted by hand."""
  model = Transformer(MODEL)
  batch = uneven_batch()
  params = random_params(model, 1)
  gradients_of = jax.jit(lambda batch: programs.summed_gradients(model, params, batch, jax.random.key(0), 0.1, 1))
  gradients, sums = gradients_of(jax.tree.map(jnp.asarray, batch))
  by_row = [gradients_of(jax.tree.map(lambda x, r=row: jnp.asarray(x[r : r + 1]), batch)) for row in range(8)]
  assert sums.pieces == sum(row_sums.pieces for _, row_sums in by_row)
  close(gradients, jax.tree.map(lambda *rows: sum(rows), *[row for row, _ in by_row]), 1e-4)


def test_a_non_finite_update_is_skipped_and_counted():
  """Users hit 3: parameters and optimizer state stay to the bit, the counts rise, and fall back when it is over."""
  model = Transformer(MODEL)
  optimizer = optax.adam(0.01)
  update = jax.jit(programs.make_train_step(model, optimizer, lambda count: 0.01, 0.1))
  state, metrics = update(start(model, optimizer), uneven_batch(0))
  assert metrics.skipped == 0
  spoiled = state._replace(
    params={**state.params, "target_embedding": state.params["target_embedding"].at[5].set(jnp.nan)}
  )
  skipped, metrics = update(spoiled, uneven_batch(1))
  assert metrics.skipped == 1 and metrics.skipped_in_a_row == 1 and skipped.step == 2
  for before, after in zip(
    jax.tree.leaves((spoiled.params, spoiled.optimizer)),
    jax.tree.leaves((skipped.params, skipped.optimizer)),
    strict=True,
  ):
    np.testing.assert_array_equal(before, after)
  again, metrics = update(skipped, uneven_batch(2))
  assert metrics.skipped == 2 and metrics.skipped_in_a_row == 2
  healed, metrics = update(again._replace(params=state.params), uneven_batch(3))
  assert metrics.skipped == 2 and metrics.skipped_in_a_row == 0 and healed.skipped == 2
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(healed.params))


@pytest.mark.parametrize("devices", [2, 4])
def test_dropout_is_drawn_for_the_global_batch(devices):
  """Users hit 23: the same masks on any number of devices."""
  expected, metrics = undisturbed(rate=0.3)
  state, other = updates(rate=0.3, devices=devices)
  close(state.params, expected.params, 2e-5)
  assert other[0].sums.loss == pytest.approx(metrics[0].sums.loss, rel=1e-5)


def test_rows_of_the_batch_get_different_dropout_masks():
  """Users hit 23: rows on different devices do not share a mask, and a replayed step draws the same."""
  pair = random_pairs(1, VOCABULARY, 6)[0]
  batch = packed_batch([[pair]] * 4, 8, 8)
  model = Transformer(dataclasses.replace(MODEL, dropout=0.5))
  params = random_params(model)
  mesh = programs.data_mesh()
  run = jax.jit(lambda key, batch: model.apply({"params": params}, batch, train=True, rngs={"dropout": key}))
  on_devices = programs.put_batch(batch, mesh)
  logits = np.asarray(run(jax.random.key(1), on_devices))
  for row in range(1, 4):
    assert np.abs(logits[row] - logits[0]).max() > 1e-3
  np.testing.assert_array_equal(logits, run(jax.random.key(1), on_devices))
  assert np.abs(logits - np.asarray(run(jax.random.key(2), on_devices))).max() > 1e-3


def test_appended_empty_rows_do_not_change_the_masks_of_the_others():
  """Users hit 23: more devices append rows of padding; the rows before them keep their masks."""
  ones = jnp.ones((4, 8, 16))
  np.testing.assert_array_equal(
    dropout(jax.random.key(0), jnp.ones((7, 8, 16)), 0.3)[:4], dropout(jax.random.key(0), ones, 0.3)
  )


def test_dropout_keeps_the_mean_and_takes_a_traced_rate():
  x = jnp.ones((400, 400))
  for rate in (0.1, 0.5):
    kept = jax.jit(dropout)(jax.random.key(0), x, rate)
    values, counts = np.unique(np.asarray(kept), return_counts=True)
    np.testing.assert_allclose(values, [0.0, 1 / (1 - rate)], rtol=1e-6)
    assert counts[0] / x.size == pytest.approx(rate, abs=0.005)


def test_the_reported_learning_rate_is_that_of_the_update():
  """Users hit 6: logged as it is applied, also after a skipped update, which the optimizer does not count."""
  model = Transformer(MODEL)
  schedule = lambda count: 0.1 / (count + 1.0)  # noqa: E731
  optimizer = optax.scale_by_learning_rate(schedule)
  update = jax.jit(programs.make_train_step(model, optimizer, schedule, 0.0))
  state = start(model, optimizer)
  before = state.params["target_embedding"]
  for number in range(2):
    spoiled = state._replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))
    if number == 1:
      _, _ = update(spoiled, uneven_batch())
    state, metrics = update(state, uneven_batch())
    moved = np.abs(np.asarray(state.params["target_embedding"] - before)).max()
    assert moved > 0 and metrics.learning_rate == pytest.approx(0.1 / (number + 1))
    before = state.params["target_embedding"]
