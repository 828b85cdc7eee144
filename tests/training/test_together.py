"""The update that several runs share is for each of them the update of its own; and what cannot share one is refused."""

import jax
import numpy as np
import pytest
from helpers.batches_of import packed_batch, random_pairs
from helpers.tiny_run import devices, tiny_config

from transformer_jax.data.batches import Shape
from transformer_jax.errors import UserError
from transformer_jax.model.build import build_model
from transformer_jax.training import step as programs
from transformer_jax.training.feed import empty_batch
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer
from transformer_jax.training.together import check_together, train_together
from transformer_jax.training.vectorised import make_programs, settings_that_differ, stacked_batches, stacked_states

VOCABULARY, SHAPE = 19, Shape(4, 24, 24)
RUNS = (
  {"seed": 2**32 - 1, "model__ffn_dropout": 0.2},
  {"seed": 1, "model__dropout": 0.0, "training__label_smoothing": 0.0, "optimizer__learning_rate": 0.003},
)


def random_batch(seed):
  pairs = random_pairs(8, VOCABULARY, 6, seed)
  return packed_batch([pairs[:2], pairs[2:4], pairs[4:7], pairs[7:]], SHAPE.source_length, SHAPE.target_length)


def separate_update(config):
  """The compiled update of a run of its own."""
  model = build_model(config, VOCABULARY, VOCABULARY)
  schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps)
  optimizer = make_optimizer(config.optimizer, schedule)
  smoothing, accumulate = config.training.label_smoothing, config.training.accumulate
  return jax.jit(programs.make_train_step(model, optimizer, schedule, smoothing, accumulate))


def programs_of(configs):
  with devices(1):
    return make_programs(configs, build_model(configs[0], VOCABULARY, VOCABULARY), SHAPE, programs.data_mesh())


def test_every_run_trains_as_by_itself(tmp_path):
  """Its own seed, batches, dropout (also none), smoothing (also none) and learning rate: the losses are a separate program's."""
  configs = [tiny_config(tmp_path, **run) for run in RUNS]
  together = programs_of(configs)
  states = [together.begin(np.uint32(config.seed)) for config in configs]
  for config, state in zip(configs, states, strict=True):
    dropout_key = jax.random.split(jax.random.key(config.seed))[1]
    np.testing.assert_array_equal(state.key, jax.random.key_data(dropout_key))
  of_all, updates = stacked_states(states), [separate_update(config) for config in configs]
  for step in range(20):
    batches = [random_batch(100 * lane + step) for lane in range(2)]
    of_all, metrics = together.step(of_all, stacked_batches(batches, programs.data_mesh(jax.devices()[:1])))
    for lane, update in enumerate(updates):
      states[lane], expected = update(states[lane], batches[lane])
      assert metrics.sums.pieces[lane] == expected.sums.pieces and metrics.skipped[lane] == 0
      loss = metrics.sums.loss[lane] / metrics.sums.pieces[lane]
      assert loss == pytest.approx(float(expected.sums.loss / expected.sums.pieces), abs=1e-4)
      assert metrics.learning_rate[lane] == pytest.approx(float(expected.learning_rate), rel=1e-6)


@pytest.mark.parametrize(
  "common",
  [
    {"model__kind": "lstm", "model__recurrent_size": 8, "training__accumulate": 2, "optimizer__name": "adafactor"},
    {
      "model__kernel": "chunked",
      "model__dtype": "bfloat16",
      "optimizer__name": "muon",
      "optimizer__schedule": "cosine",
    },
  ],
)
def test_other_models_and_optimizers_can_be_vectorised(tmp_path, common):
  """They trace, to the shapes of a run of its own with an axis of runs before them."""
  configs = [tiny_config(tmp_path, **common, **run) for run in RUNS]
  together = programs_of(configs)
  states = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), together.abstract)
  batch = jax.tree.map(lambda x: np.stack([x, x]), empty_batch(SHAPE))
  after, metrics = jax.eval_shape(together.step, states, batch)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), states)
  assert metrics.learning_rate.shape == (2,)


def test_what_all_runs_share_stays_a_constant_of_the_program(tmp_path):
  """Without dropout in any run no random bits are drawn."""
  configs = [
    tiny_config(tmp_path, model__dropout=0.0, seed=seed, training__label_smoothing=0.1 * seed) for seed in (0, 1)
  ]
  assert list(settings_that_differ(configs)) == ["training.label_smoothing"]
  together = programs_of(configs)
  state = jax.eval_shape(lambda: stacked_states([together.begin(np.uint32(0))] * 2))
  batch = jax.tree.map(lambda x: np.stack([x, x]), empty_batch(SHAPE))
  assert "random_bits" not in str(jax.make_jaxpr(together.step)(state, batch))


@pytest.mark.parametrize(
  ("common", "change", "message"),
  [
    ({}, {"model__d_model": 32}, "model.d_model is 16 in one run and 32 in another"),
    ({}, {"training__steps": 17}, "training.steps is 16 in one run and 17 in another"),
    ({}, {"model__attention_dropout": 0.1}, "model.attention_dropout is 0.0 in one run and 0.1 in another"),
    ({"batch__packing": False}, {"seed": 1}, "batch.packing must be True"),
    ({"model__kernel": "cudnn", "model__dtype": "bfloat16"}, {"seed": 1}, 'model.kernel "cudnn" cannot be vectorised'),
  ],
)
def test_runs_that_do_not_go_together_are_refused_in_one_line(tmp_path, common, change, message):
  configs = [tiny_config(tmp_path, **common), tiny_config(tmp_path, **common, **change)]
  with pytest.raises(UserError, match=message) as refused:
    check_together(configs)
  assert "\n" not in str(refused.value)


def test_no_run_and_a_field_out_of_range_are_refused(tmp_path):
  with pytest.raises(UserError, match="there is no run"):
    check_together([])
  config = tiny_config(tmp_path, optimizer__schedule="paper", optimizer__learning_rate=0.0)
  check_together([config, config])
  other = config.copy_and_resolve_references()
  other.optimizer.learning_rate = 0.1
  with pytest.raises(UserError, match=r"optimizer\.learning_rate must be 0 with optimizer\.schedule"):
    check_together([config, other])


def test_a_machine_or_directories_that_do_not_do_are_refused_and_nothing_is_written(tmp_path):
  configs = [tiny_config(tmp_path, seed=seed) for seed in (0, 1)]
  with devices(1), pytest.raises(UserError, match=r"two runs have the run directory .*a: give each its own"):
    train_together(configs, [tmp_path / "a", tmp_path / "b" / ".." / "a"])
  with devices(4), pytest.raises(UserError, match="runs train together on one device, and here are 4"):
    train_together(configs, [tmp_path / "a", tmp_path / "b"])
  with devices(1), jax.default_prng_impl("rbg"), pytest.raises(UserError, match="jax_default_prng_impl is rbg"):
    train_together(configs, [tmp_path / "a", tmp_path / "b"])
  with devices(1), pytest.raises(UserError, match=r"train\.en"):  # there is no corpus
    train_together(configs, [tmp_path / "a", tmp_path / "b"])
  assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()
