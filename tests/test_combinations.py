"""Combinations of model fields that cannot be: one line each, naming the fields."""

import pytest

from transformer_jax.checks import check
from transformer_jax.config import default_config
from transformer_jax.errors import UserError

IMPOSSIBLE = [
  ({"d_model": 500}, "divisible by model.num_heads"),
  ({"num_kv_heads": 3}, "divisible by model.num_kv_heads"),
  ({"tie_projections": "qv", "d_v": 32}, "model.tie_projections"),
  ({"tie_projections": "qk", "num_kv_heads": 2}, "as many key and value heads"),
  ({"kernel": "cudnn"}, "bfloat16"),
  ({"kernel": "cudnn", "dtype": "bfloat16", "d_k": 32}, "model.d_k equal to model.d_v"),
  ({"kernel": "chunked", "attention_dropout": 0.1}, "model.attention_dropout"),
  ({"kernel": "chunked", "positions": "shaw"}, "model.positions"),
  ({"deepnorm": True, "norm": "pre"}, "model.deepnorm"),
  ({"deepnorm": True, "residual_feed_forward": False}, "residual"),
  ({"positions": "rotary", "d_k": 63, "d_v": 64}, "even"),
  ({"rotary_scaling": "ntk", "rotary_factor": 2.0}, 'model.positions "rotary"'),
  ({"positions": "rotary", "rotary_scaling": "ntk"}, "model.rotary_factor"),
  ({"positions": "rotary", "rotary_factor": 2.0}, "model.rotary_scaling"),
  ({"positions": "alibi", "positions_in": "every"}, "model.positions_in"),
  ({"positions": "t5", "t5_buckets": 6}, "model.t5_buckets"),
  ({"positions": "learned", "max_positions": 305}, "model.max_positions 305"),
  ({"local_window_in": ("cross",), "local_window_size": 4}, "cross"),
  ({"local_window_in": ("encoders",)}, "encoders"),
  ({"positions": "sinus"}, "sinusoidal"),
]
CLASSIFY = {"task": "classify", "batch.packing": False, "vocabulary.shared": False, "vocabulary.target_kind": "words"}
LM = {"task": "lm", "batch.row_length": 64}
MLM = {"task": "mlm", "data.test": ()}
IMPOSSIBLE_TASKS = [
  ({**CLASSIFY, "batch.packing": True}, "batch.packing"),
  ({**CLASSIFY, "vocabulary.shared": True}, "vocabulary.shared"),
  ({**CLASSIFY, "vocabulary.target_kind": ""}, "vocabulary.target_kind"),
  ({**CLASSIFY, "model.kind": "lstm"}, "model.kind"),
  ({**CLASSIFY, "model.positions": "learned", "model.max_positions": 256, "model.pooling": "first"}, "data.max_length"),
  ({**LM, "data.weights": (1.0,)}, "data.weights"),
  ({**LM, "batch.row_length": 0}, "batch.row_length"),
  ({**LM, "batch.row_length": 100_000}, "batch.tokens"),
  ({**LM, "vocabulary.shared": False}, "vocabulary.shared"),
  ({**LM, "model.causal_mask": False}, "model.causal_mask"),
  ({**LM, "model.positions": "learned", "model.max_positions": 63}, "than the 64 positions that batch.row_length"),
  ({**MLM, "data.test": ("reverse",)}, "data.test"),
  ({**MLM, "vocabulary.shared": False}, "vocabulary.shared"),
]
POSSIBLE_TASKS = [
  CLASSIFY,
  {**CLASSIFY, "model.positions": "learned", "model.max_positions": 256},
  {**LM, "model.positions": "learned", "model.max_positions": 64},
  MLM,
]
POSSIBLE = [
  {"d_model": 500, "d_k": 64, "d_v": 64},
  {"tie_projections": "qk", "d_v": 32},
  {"positions": "learned", "max_positions": 306},
  {"positions": "learned", "max_positions": 10, "beyond_positions": "clip"},
  {"kernel": "chunked", "positions": "t5", "d_k": 32},
  {"local_window_in": ("encoder",), "local_window_size": 4},
]


def config_with(changes):
  config = default_config()
  config.model.update(changes)
  return config


@pytest.mark.parametrize(("changes", "words"), IMPOSSIBLE, ids=str)
def test_impossible(changes, words):
  with pytest.raises(UserError) as error:
    check(config_with(changes))
  assert words in str(error.value) and "\n" not in str(error.value) and "model." in str(error.value)


@pytest.mark.parametrize("changes", POSSIBLE, ids=str)
def test_possible(changes):
  check(config_with(changes))


def config_of_task(changes):
  config = default_config()
  with config.ignore_type():
    config.update_from_flattened_dict({"data.train": ("reverse",), "data.valid": "reverse", **changes})
  return config


@pytest.mark.parametrize(("changes", "words"), IMPOSSIBLE_TASKS, ids=str)
def test_impossible_in_a_task(changes, words):
  with pytest.raises(UserError) as error:
    check(config_of_task(changes))
  assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("changes", POSSIBLE_TASKS, ids=str)
def test_possible_in_a_task(changes):
  check(config_of_task(changes))
