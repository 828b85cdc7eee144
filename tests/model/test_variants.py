"""Every variant of the model: masks and cache. What each computes is held to equations elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches_of import packed_batch, random_pairs
from helpers.models import VOCABULARY, initialised, small_config

HEADS = {"d_model": 16, "num_heads": 4}
VARIANTS = {
  "sinusoidal positions in every layer": {"positions_in": "every", "num_layers": 2},
  "learned positions": {"positions": "learned"},
  "learned positions in every layer": {"positions": "learned", "positions_in": "every", "num_layers": 2},
  "learned positions, clipped": {"positions": "learned", "max_positions": 3, "beyond_positions": "clip"},
  "shaw positions": {"positions": "shaw", "shaw_clip": 3},
  "t5 positions": {"positions": "t5", "t5_buckets": 8},
  "rotary positions": {"positions": "rotary"},
  "rotary positions, linear": {"positions": "rotary", "rotary_scaling": "linear", "rotary_factor": 4.0},
  "rotary positions, ntk": {"positions": "rotary", "rotary_scaling": "ntk", "rotary_factor": 4.0},
  "alibi positions": {"positions": "alibi"},
  "no positions": {"positions": "none"},
  "post-norm": {},
  "pre-norm": {"norm": "pre"},
  "both norms": {"norm": "both"},
  "no norm": {"norm": "none", "init": "normal"},
  "RMSNorm, post": {"norm_kind": "rms"},
  "RMSNorm, pre": {"norm_kind": "rms", "norm": "pre"},
  "DeepNorm": {"deepnorm": True, "init": "deepnorm"},
  "one head": {"num_heads": 1},
  "32 heads": {"d_model": 32, "num_heads": 32},
  "d_k and d_v apart": {"d_k": 6, "d_v": 2},
  "grouped queries": {**HEADS, "num_kv_heads": 2},
  "one key head": {**HEADS, "num_kv_heads": 1, "positions": "rotary"},
  "grouped queries, d_k and d_v apart": {**HEADS, "num_kv_heads": 2, "d_k": 6, "d_v": 2},
  "tied queries and keys": {"tie_projections": "qk"},
  "tied queries and values": {"tie_projections": "qv"},
  "tied keys and values": {"tie_projections": "kv"},
  "all tied": {"tie_projections": "qkv", "qk_norm": True},
  "query-key norm": {"qk_norm": True},
  "scale by d_model": {"attention_scale": "d_model"},
  "no scale": {"attention_scale": "none"},
  "learned scale": {"attention_scale": "learned"},
  "biases turned round": {"attention_bias": True, "ffn_bias": False},
  "gelu": {"activation": "gelu"},
  "swiglu": {"activation": "swiglu", "norm": "pre"},
  "geglu": {"activation": "geglu"},
  "all dropouts": {"dropout": 0.1, "attention_dropout": 0.1, "ffn_dropout": 0.1, "layer_drop": 0.1},
  "local window": {"local_window_size": 2},
  "local window in the encoder": {"local_window_size": 1, "local_window_in": ("encoder",)},
  "chunked": {"kernel": "chunked"},
  "chunked, t5 positions, window": {"kernel": "chunked", "positions": "t5", "local_window_size": 2},
  "chunked, alibi, grouped": {**HEADS, "kernel": "chunked", "positions": "alibi", "num_kv_heads": 2},
  "unscaled embeddings": {"scale_embeddings": False, "init": "unit_scaling"},
  "lstm, additive attention": {"kind": "lstm", "recurrent_size": 10, "num_layers": 2},
  "lstm, dot attention": {"kind": "lstm", "recurrent_size": 10, "recurrent_attention": "dot"},
  "gru, without attention": {"kind": "gru", "recurrent_size": 10, "recurrent_attention": "none"},
  "no residual around attention": {"residual_self_attention": False, "norm": "pre"},
  "no residual around the other two": {"residual_cross_attention": False, "residual_feed_forward": False},
}
LENGTH = 8


def variant_config(variant, **changes):
  """One layer each, or as many as the variant needs: programs that compile quickly."""
  return small_config(**{"num_layers": 1, "dropout": 0.0, **VARIANTS[variant], **changes})


def rows_of(pairs):
  """Each pair alone in its row; the first three together in one; then the last pair with other padding, and changed late."""
  batch = packed_batch([[pair] for pair in pairs] + [pairs[:3]], 24, 24)
  last = len(pairs) - 1
  other_padding = jax.tree.map(lambda x: x[last].copy(), batch)
  padding = other_padding.source_segments == 0
  other_padding.source[padding], other_padding.source_positions[padding] = 17, 3
  other_padding.target_inputs[other_padding.target_segments == 0] = 18
  changed = jax.tree.map(lambda x: x[last].copy(), batch)
  changed.target_inputs[LENGTH // 2] = 20
  return jax.tree.map(lambda x, *more: np.concatenate([x, np.stack(more)]), batch, other_padding, changed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_masks_and_cache(variant):
  """Users hit 7, 11: nothing leaks from the future, from padding or from neighbours; steps give teacher forcing's logits."""
  model, params = initialised(variant_config(variant))
  pairs = random_pairs(3, VOCABULARY, 7, seed=5)
  pairs.append(([5, 6, 7, 8, 2], [9, 10, 11, 12, 13, 14, 15, 2]))
  batch = rows_of(pairs)

  @jax.jit
  def forced(params, batch):
    return model.apply({"params": params}, batch)

  @jax.jit
  def stepwise(params, batch):  # two beams, the second one reads other pieces
    def apply(method, *arguments):
      return model.apply({"params": params}, *arguments, method=method)

    memory = apply("encode", batch.source, batch.source_positions, batch.source_segments)
    cache = apply("start_cache", memory, batch.source_segments, 2, LENGTH + 3)
    inputs = batch.target_inputs[:, :LENGTH].T  # [length, rows]
    tokens = jnp.stack([inputs, inputs * 7 % VOCABULARY], axis=-1)  # [length, rows, beams]
    return jax.lax.scan(lambda cache, tokens: apply("step", tokens, cache)[::-1], cache, tokens)[1]

  logits = np.asarray(forced(params, batch))
  last = len(pairs) - 1
  start = 0
  for row, (_, target) in enumerate(pairs[:3]):  # packed behind others, as alone
    np.testing.assert_allclose(logits[len(pairs), start : start + len(target)], logits[row, : len(target)], atol=2e-5)
    start += len(target)
  np.testing.assert_allclose(logits[last + 2, :LENGTH], logits[last, :LENGTH], atol=1e-6)  # other padding
  np.testing.assert_allclose(
    logits[last + 3, : LENGTH // 2], logits[last, : LENGTH // 2], atol=1e-6
  )  # before the change
  assert np.abs(logits[last + 3, LENGTH // 2] - logits[last, LENGTH // 2]).max() > 1e-4

  alone = jax.tree.map(lambda x: jnp.asarray(x[: len(pairs)]), batch)
  steps = np.asarray(stepwise(params, alone))[:, :, 0]  # [length, rows, vocabulary]
  for row, (_, target) in enumerate(pairs):
    np.testing.assert_allclose(steps[: len(target), row], logits[row, : len(target)], atol=2e-5)


MASKS = ("causal_mask", "source_padding_mask", "cross_padding_mask")


@pytest.mark.parametrize("off", [None, *MASKS])
def test_what_each_mask_protects(off):
  """With a mask taken off, exactly what it hides is seen: later target pieces, or the source's padding."""
  model, params = initialised(variant_config("post-norm", **({off: False} if off else {})))
  batch = jax.tree.map(jnp.asarray, packed_batch([[([5, 6, 7, 8, 2], [9, 10, 11, 12, 13, 2])]], 8, 8))
  forced = jax.jit(lambda batch: model.apply({"params": params}, batch))
  encode = jax.jit(
    lambda b: model.apply({"params": params}, b.source, b.source_positions, b.source_segments, method="encode")
  )
  future = batch._replace(target_inputs=batch.target_inputs.at[0, 4].set(20))
  padding = batch._replace(source=batch.source.at[0, 6].set(17))

  def differs(one, other):
    return np.abs(np.asarray(one) - np.asarray(other)).max() > 1e-5

  before, memory = forced(batch), encode(batch)
  assert differs(forced(future)[0, :4], before[0, :4]) == (off == "causal_mask")
  assert differs(encode(padding)[0, :5], memory[0, :5]) == (off == "source_padding_mask")
  assert differs(forced(padding)[0, :6], before[0, :6]) == (off in ("source_padding_mask", "cross_padding_mask"))
