"""Every variant learns: fifty compiled updates in bfloat16 lower the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.batches_of import packed_batch, random_pairs
from helpers.compiling import RIGHT
from helpers.models import VOCABULARY, initialised, small_config
from jax.flatten_util import ravel_pytree

from transformer_jax.training.step import batch_loss

HEADS = {"d_model": 16, "num_heads": 4}
# Each choice once: a program for every variant alone would take ten minutes to compile.
LEARNERS = [
  {"norm": "pre", "positions_in": "every", "num_layers": 2, "tie_projections": "kv", "activation": "gelu"},
  {
    "positions": "learned",
    "max_positions": 3,
    "beyond_positions": "clip",
    "norm": "both",
    "activation": "geglu",
    "qk_norm": True,
    "attention_bias": True,
    "ffn_bias": False,
  },
  {"positions": "shaw", "shaw_clip": 3, "norm_kind": "rms", "d_k": 6, "d_v": 2},
  {"positions": "t5", "t5_buckets": 8, "norm": "pre", "norm_kind": "rms", "kernel": "chunked", "local_window_size": 2},
  {
    **HEADS,
    "positions": "rotary",
    "rotary_scaling": "linear",
    "rotary_factor": 4.0,
    "num_kv_heads": 1,
    "activation": "swiglu",
    "attention_scale": "learned",
  },
  {"positions": "rotary", "rotary_scaling": "ntk", "rotary_factor": 4.0, "deepnorm": True, "init": "deepnorm"},
  {**HEADS, "positions": "alibi", "kernel": "chunked", "num_kv_heads": 2, "attention_scale": "d_model"},
  {"positions": "none", "norm": "none", "init": "normal", "tie_projections": "qk", "scale_embeddings": False},
  {
    "d_model": 32,
    "num_heads": 32,
    "tie_projections": "qv",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "ffn_dropout": 0.1,
  },
  {"num_heads": 1, "init": "unit_scaling", "tie_projections": "qkv", "attention_scale": "none", "layer_drop": 0.1},
  {"residual_self_attention": False, "norm": "pre", "local_window_size": 1, "local_window_in": ("encoder",)},
  {"residual_cross_attention": False, "residual_feed_forward": False},
  {"kind": "lstm", "recurrent_size": 16},
  {"kind": "gru", "recurrent_size": 16, "recurrent_attention": "dot"},
]


@pytest.mark.parametrize("changes", LEARNERS, ids=str)
def test_fifty_bfloat16_steps_lower_the_loss(changes):
  """A compiled update in bfloat16, fifty times on one batch."""
  model, start = initialised(small_config(**{"num_layers": 1, "dropout": 0.0, "dtype": "bfloat16", **changes}))
  batch = jax.tree.map(jnp.asarray, packed_batch([[pair] for pair in random_pairs(8, VOCABULARY, 7)], 8, 8))
  optimizer = optax.adam(0.01)
  vector, tree_of = ravel_pytree(start)  # one array to update instead of thirty: quicker to compile

  def train(vector):
    def mean_loss(vector, key):
      sums = batch_loss(model, tree_of(vector), batch, key, 0.0)
      return sums.loss / sums.pieces

    def step(carry, key):
      vector, state = carry
      loss, gradient = jax.value_and_grad(mean_loss)(vector, key)
      update, state = optimizer.update(gradient, state)
      return (vector + update, state), loss

    return jax.lax.scan(step, (vector, optimizer.init(vector)), jax.random.split(jax.random.key(1), 50))

  options = RIGHT if changes.get("kernel") == "chunked" else None
  (vector, _), losses = jax.jit(train, compiler_options=options)(vector)
  assert vector.dtype == jnp.float32 and np.isfinite(losses).all()
  assert losses[-5:].mean() < 0.8 * losses[0]
