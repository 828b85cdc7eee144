"""Whole encoders and decoders, and multi-head attention, against PyTorch's on the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models import small_config
from helpers.params import random_tree

from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.stacks import Decoder, Encoder
from transformer_jax.model.visibility import Visibility

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra [peers]")

D_MODEL, D_FF, HEADS, LAYERS = 12, 20, 3, 2
SOURCE, TARGET = 7, 5


def tensor(x):
  return torch.tensor(np.asarray(x))


def copy_attention(ours, theirs):
  """Query, key and value are one matrix there, [3 d_model, d_model], each head's rows together; biases stay 0."""
  roles = (
    np.asarray(ours[f"{role}_projection"]["kernel"]).reshape(D_MODEL, D_MODEL).T for role in ("query", "key", "value")
  )
  with torch.no_grad():
    theirs.in_proj_weight.copy_(tensor(np.concatenate(list(roles))))
    theirs.out_proj.weight.copy_(tensor(np.asarray(ours["output_projection"]["kernel"]).reshape(D_MODEL, D_MODEL).T))
    theirs.in_proj_bias.zero_()
    theirs.out_proj.bias.zero_()


def copy_norm(ours, theirs):
  with torch.no_grad():
    theirs.weight.copy_(tensor(ours["scale"]))
    theirs.bias.copy_(tensor(ours["bias"]))


def copy_layer(ours, theirs, decoder):
  copy_attention(ours["self_attention"], theirs.self_attn)
  copy_norm(ours["self_attention_residual"]["norm"], theirs.norm1)
  if decoder:
    copy_attention(ours["cross_attention"], theirs.multihead_attn)
    copy_norm(ours["cross_attention_residual"]["norm"], theirs.norm2)
  copy_norm(ours["feed_forward_residual"]["norm"], theirs.norm3 if decoder else theirs.norm2)
  with torch.no_grad():
    for name, linear in (("inner", theirs.linear1), ("outer", theirs.linear2)):
      linear.weight.copy_(tensor(np.asarray(ours["feed_forward"][name]["kernel"]).T))
      linear.bias.copy_(tensor(ours["feed_forward"][name]["bias"]))


def started(module, *arguments):
  """Parameters that are all random, norms and biases too."""
  return random_tree(jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments))["params"])


@pytest.fixture
def rows():
  random = np.random.default_rng(0)
  x = random.normal(size=(2, SOURCE, D_MODEL)).astype(np.float32)
  y = random.normal(size=(2, TARGET, D_MODEL)).astype(np.float32)
  lengths = np.array([SOURCE, 4])
  segments = (np.arange(SOURCE) < lengths[:, None]).astype(np.int32)
  return x, y, segments


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_and_decoder(rows, norm, activation):
  """With padding in the source and a causal target; PyTorch's final norm is left out for post-norm, where the paper has none."""
  x, y, segments = rows
  config = small_config(norm=norm, positions="none", activation=activation)
  here = {
    "d_model": D_MODEL,
    "nhead": HEADS,
    "dim_feedforward": D_FF,
    "dropout": 0.0,
    "activation": activation,
    "batch_first": True,
  }
  here.update(layer_norm_eps=1e-6, norm_first=norm == "pre")
  last = [torch.nn.LayerNorm(D_MODEL, eps=1e-6) if norm == "pre" else None for _ in range(2)]
  their_encoder = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(**here), LAYERS, norm=last[0], enable_nested_tensor=False
  ).eval()
  their_decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**here), LAYERS, norm=last[1]).eval()

  encoder, decoder = Encoder(config), Decoder(config)
  positions = np.broadcast_to(np.arange(SOURCE), (2, SOURCE))
  target_segments = jnp.ones((2, TARGET), jnp.int32)
  encoder_inputs = (jnp.asarray(x), jnp.asarray(positions), jnp.asarray(segments), False)
  encoder_params = started(encoder, *encoder_inputs)
  memory = jax.jit(lambda p: encoder.apply({"params": p}, *encoder_inputs))(encoder_params)
  decoder_inputs = (
    jnp.asarray(y),
    jnp.asarray(positions[:, :TARGET]),
    target_segments,
    memory,
    jnp.asarray(segments),
    False,
  )
  decoder_params = started(decoder, *decoder_inputs)
  decoded = jax.jit(lambda p: decoder.apply({"params": p}, *decoder_inputs))(decoder_params)

  for params, theirs in ((encoder_params, their_encoder), (decoder_params, their_decoder)):
    for index in range(LAYERS):
      copy_layer(params[f"layer_{index}"], theirs.layers[index], theirs is their_decoder)
    if norm == "pre":
      copy_norm(params["norm"], theirs.norm)
  padding = torch.tensor(segments == 0)
  with torch.no_grad():
    their_memory = their_encoder(tensor(x), src_key_padding_mask=padding)
    future = torch.nn.Transformer.generate_square_subsequent_mask(TARGET)
    their_decoded = their_decoder(tensor(y), their_memory, tgt_mask=future, memory_key_padding_mask=padding)
  np.testing.assert_allclose(np.asarray(memory)[segments > 0], their_memory.numpy()[segments > 0], atol=1e-5)
  np.testing.assert_allclose(decoded, their_decoded.numpy(), atol=1e-5)


def test_multi_head_attention(rows):
  """Attention from one row to another with padding, result and weights."""
  x, y, segments = rows
  module = MultiHeadAttention(small_config(), self_attention=False)
  visibility = Visibility(jnp.ones((2, TARGET), jnp.int32), jnp.asarray(segments))
  params = started(module, jnp.asarray(y), jnp.asarray(x), visibility)
  run = jax.jit(
    lambda p: module.apply({"params": p}, jnp.asarray(y), jnp.asarray(x), visibility, mutable=["intermediates"])
  )
  result, sown = run(params)
  theirs = torch.nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True).eval()
  copy_attention(params, theirs)
  with torch.no_grad():
    expected, weights = theirs(
      tensor(y), tensor(x), tensor(x), key_padding_mask=torch.tensor(segments == 0), average_attn_weights=False
    )
  np.testing.assert_allclose(result, expected.numpy(), atol=1e-5)
  np.testing.assert_allclose(sown["intermediates"]["weights"][0], weights.numpy(), atol=1e-5)
