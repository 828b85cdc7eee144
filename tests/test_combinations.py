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
