"""The recurrent encoder-decoder that the Transformer replaced: LSTM or GRU, with attention or without.

Bidirectional encoder, decoder whose first input at each step is the piece before and what attention read from the source
(Bahdanau et al. 2015, arXiv:1409.0473); the cells are Flax's. Layers after the first have residual connections, and the
output is taken from the last cell and the context (Luong et al. 2015; Wu et al. 2016). Embeddings, data, loss and search
are those of the Transformer. In packed rows the state starts anew with each pair.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer_jax.data.batches import Batch
from transformer_jax.model.cache import DecoderCache
from transformer_jax.model.config import ModelConfig
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.embeddings import embed, embeddings, logits_of
from transformer_jax.model.visibility import hide, padding_mask


def recurrent_cell(config: ModelConfig, features: int, name: str | None = None) -> nn.RNNCellBase:
  """Flax's cell of the configuration. The state of an LSTM is (memory, output), that of a GRU is its output."""
  cell = nn.OptimizedLSTMCell if config.kind == "lstm" else nn.GRUCell
  return cell(features, dtype=config.dtype, name=name)


def output_of(state: PyTree) -> jax.Array:
  """The output h in the state of a cell."""
  return state[1] if isinstance(state, tuple) else state


def chosen(condition: Bool[Array, "*batch"], state: PyTree, other: PyTree) -> PyTree:
  """For each row, `state` where the condition holds, else `other`."""
  return jax.tree.map(lambda a, b: jnp.where(condition[..., None], a, b), state, other)


def zero_state(config: ModelConfig, shape: tuple[int, ...]) -> PyTree:
  """The state before the first piece."""
  zeros = jnp.zeros(shape, config.dtype)
  return (zeros, zeros) if config.kind == "lstm" else zeros


class Direction(nn.Module):
  """A cell run over rows, forwards or backwards; its state is zero where a pair begins. Returns the state at every place."""

  config: ModelConfig
  features: int
  reverse: bool = False

  @nn.compact
  def __call__(self, x: Float[Array, "batch length width"], starts: Bool[Array, "batch length"]) -> PyTree:
    def step(cell: nn.RNNCellBase, state: PyTree, inputs: tuple[jax.Array, jax.Array]) -> tuple[PyTree, PyTree]:
      x, starts = inputs
      state = chosen(starts, jax.tree.map(jnp.zeros_like, state), state)
      state, _ = cell(state, x)
      return state, state

    scan = nn.scan(
      step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1, reverse=self.reverse
    )
    cell = recurrent_cell(self.config, self.features, name="cell")
    return scan(cell, zero_state(self.config, (x.shape[0], self.features)), (x, starts))[1]


class RecurrentEncoder(nn.Module):
  """Layers of two cells each, one forwards and one backwards, half of `recurrent_size` wide."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, "batch length d_model"], segments: Int[Array, "batch length"], train: bool
  ) -> tuple[Float[Array, "batch length size"], PyTree]:
    """Returns the outputs of the last layer and its states, forwards and backwards."""
    config, drop = self.config, Dropout(self.config.dropout)
    begins = jnp.diff(segments, axis=1, prepend=-1) != 0
    ends = jnp.diff(segments, axis=1, append=-1) != 0
    states: PyTree = None
    for index in range(config.num_encoder_layers):
      forwards = Direction(config, config.recurrent_size // 2, name=f"layer_{index}_forwards")(x, begins)
      backwards = Direction(config, config.recurrent_size // 2, True, name=f"layer_{index}_backwards")(x, ends)
      states = forwards, backwards
      y = drop(jnp.concatenate([output_of(forwards), output_of(backwards)], axis=-1), train)
      x = x + y if index else y
    return x, states


class SourceAttention(nn.Module):
  """What the decoder reads from the source, by `config.recurrent_attention`.

  "additive": scores v · tanh(W q + U k) (Bahdanau et al. 2015); "dot": (W q) · (U k) / sqrt(size), the Transformer's.
  """

  config: ModelConfig

  def setup(self):
    size, dtype = self.config.recurrent_size, self.config.dtype
    self.query_projection = nn.Dense(size, use_bias=False, dtype=dtype)
    self.key_projection = nn.Dense(size, use_bias=False, dtype=dtype)
    if self.config.recurrent_attention == "additive":
      self.energy = nn.Dense(1, use_bias=False, dtype=dtype)

  def keys(self, memory: Float[Array, "batch keys size"]) -> Float[Array, "batch keys size"]:
    """U k of the whole source, computed once."""
    return self.key_projection(memory)

  def __call__(
    self,
    query: Float[Array, "batch queries size"],
    keys: Float[Array, "batch keys size"],
    memory: Float[Array, "batch keys size"],
    mask: Bool[Array, "batch #queries keys"],
  ) -> Float[Array, "batch queries size"]:
    """The mean of the memory, weighted by the softmax of the scores."""
    query = self.query_projection(query)
    if self.config.recurrent_attention == "additive":
      scores = self.energy(jnp.tanh(query[:, :, None] + keys[:, None]))[..., 0]  # [batch, queries, keys]
    else:
      scores = jnp.einsum("bqd,bkd->bqk", query, keys) * self.config.recurrent_size**-0.5
    weights = jax.nn.softmax(hide(scores.astype(jnp.float32), mask))
    if self.is_mutable_collection("intermediates") and not self.is_initializing():
      self.sow("intermediates", "weights", weights)
    return jnp.einsum("bqk,bkd->bqd", weights.astype(memory.dtype), memory)


class RecurrentDecoder(nn.Module):
  """Cells on top of each other; the same `advance` serves teacher forcing, place by place, and decoding, beam by beam."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.cells = [recurrent_cell(config, config.recurrent_size, f"cell_{i}") for i in range(config.num_decoder_layers)]
    self.starts = [
      nn.Dense((2 if config.kind == "lstm" else 1) * config.recurrent_size, dtype=config.dtype, name=f"start_{i}")
      for i in range(config.num_decoder_layers)
    ]
    self.output = nn.Dense(config.d_model, dtype=config.dtype)
    self.drop = Dropout(config.dropout)
    if config.recurrent_attention != "none":
      self.attention = SourceAttention(config)

  def initial_states(self, summary: Float[Array, "*batch size"]) -> tuple[PyTree, ...]:
    """The state of each cell before the first piece, from a summary of the source."""

    def state(start: nn.Dense) -> PyTree:
      values = jnp.tanh(start(summary))
      return tuple(jnp.split(values, 2, axis=-1)) if self.config.kind == "lstm" else values

    return tuple(state(start) for start in self.starts)

  def keys(self, memory: Float[Array, "batch keys size"]) -> Float[Array, "batch keys width"]:
    """What attention compares with; nothing (width 0) without attention."""
    return self.attention.keys(memory) if self.config.recurrent_attention != "none" else memory[..., :0]

  def advance(
    self,
    states: tuple[PyTree, ...],
    x: Float[Array, "batch n d_model"],
    keys: Float[Array, "batch keys width"],
    memory: Float[Array, "batch keys size"],
    mask: Bool[Array, "batch #n keys"],
    train: bool,
  ) -> tuple[tuple[PyTree, ...], Float[Array, "batch n d_model"]]:
    """Reads one embedded piece in each of n places of a sentence (one, or its beams); returns new states and outputs."""
    context = None
    if self.config.recurrent_attention != "none":
      context = self.attention(output_of(states[-1]), keys, memory, mask)

    def with_context(y: jax.Array) -> jax.Array:
      return y if context is None else jnp.concatenate([y, context], axis=-1)

    new_states = []
    for index, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
      state, y = cell(state, with_context(x))
      y = self.drop(y, train)
      x = x + y if index else y
      new_states.append(state)
    return tuple(new_states), self.output(with_context(x))

  def __call__(
    self,
    x: Float[Array, "batch length d_model"],
    starts: Bool[Array, "batch length"],
    summary: Float[Array, "batch length size"],
    memory: Float[Array, "batch keys size"],
    mask: Bool[Array, "batch length keys"],
    train: bool,
  ) -> Float[Array, "batch length d_model"]:
    """Teacher forcing: where a pair starts, the states are those that its source's summary gives."""
    keys, initial = self.keys(memory), self.initial_states(summary)

    def step(self: Any, states: PyTree, inputs: tuple) -> tuple[PyTree, jax.Array]:
      x, starts, initial, mask = jax.tree.map(lambda array: array[:, None], inputs)  # one place of each sentence
      states, y = self.advance(chosen(starts, initial, states), x, keys, memory, mask, train)
      return states, y[:, 0]

    scan = nn.scan(
      step,
      variable_axes={"intermediates": 1},
      variable_broadcast="params",
      split_rngs={"params": False, "dropout": True},
      in_axes=1,
      out_axes=1,
    )
    before = jax.tree.map(lambda state: jnp.zeros_like(state[:, :1]), initial)
    return scan(self, before, (x, starts, initial, mask))[1]


class Recurrent(nn.Module):
  """The recurrent model with the interface of `Transformer`."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.embeddings = embeddings(self, config)
    self.encoder = RecurrentEncoder(config)
    self.decoder = RecurrentDecoder(config)
    self.drop = Dropout(config.dropout)

  def __call__(self, batch: Batch, train: bool = False) -> Float[Array, "rows target_length vocabulary"]:
    """Teacher forcing, as `Transformer.__call__`."""
    batch = jax.tree.map(jnp.asarray, batch)
    memory, states = self._encode(batch.source, batch.source_segments, train)
    summary = summary_of(states, batch.source_segments, batch.target_segments)
    x = self.drop(embed(self.config, self.embeddings.target, batch.target_inputs).astype(self.config.dtype), train)
    mask = padding_mask(batch.target_segments, batch.source_segments)[:, 0]
    starts = batch.target_positions == 0
    return logits_of(self.decoder(x, starts, summary, memory, mask, train), self.embeddings.output)

  def encode(
    self,
    source: Int[Array, "batch length"],
    positions: Int[Array, "batch length"],
    segments: Int[Array, "batch length"],
    train: bool = False,
  ) -> tuple[Float[Array, "batch length size"], Float[Array, "batch size"]]:
    """Returns the encoder's outputs and the summary of each row, which holds one source."""
    memory, states = self._encode(source, segments, train)
    return memory, summary_of(states, segments, jnp.ones_like(segments[:, :1]))[:, 0]

  def start_cache(
    self, memory: tuple[jax.Array, jax.Array], segments: Int[Array, "batch source_length"], beams: int, max_length: int
  ) -> DecoderCache:
    """As `Transformer.start_cache`; the states need no room for max_length positions."""
    outputs, summary = memory
    states = self.decoder.initial_states(jnp.repeat(summary[:, None], beams, axis=1))
    return DecoderCache(jnp.zeros((), jnp.int32), states, (self.decoder.keys(outputs), outputs), segments > 0)

  def step(
    self, tokens: Int[Array, "batch beams"], cache: DecoderCache
  ) -> tuple[Float[Array, "batch beams vocabulary"], DecoderCache]:
    """As `Transformer.step`."""
    x = embed(self.config, self.embeddings.target, tokens).astype(self.config.dtype)
    states, x = self.decoder.advance(cache.beams, x, *cache.memory, cache.memory_mask[:, None], False)
    return logits_of(x, self.embeddings.output), cache._replace(position=cache.position + 1, beams=states)

  def _encode(self, source: jax.Array, segments: jax.Array, train: bool) -> tuple[jax.Array, PyTree]:
    x = self.drop(embed(self.config, self.embeddings.source, source).astype(self.config.dtype), train)
    return self.encoder(x, segments, train)


def summary_of(
  states: PyTree, source_segments: Int[Array, "batch source_length"], target_segments: Int[Array, "batch length"]
) -> Float[Array, "batch length size"]:
  """For every target place the outputs at the ends of its source: forwards at the last piece, backwards at the first."""
  forwards, backwards = (output_of(state) for state in states)  # [batch, source_length, size / 2]
  own = target_segments[:, :, None] == source_segments[:, None, :]  # [batch, length, source_length]
  first = jnp.argmax(own, axis=-1)
  last = own.shape[-1] - 1 - jnp.argmax(own[:, :, ::-1], axis=-1)
  ends = [
    jnp.take_along_axis(forwards, last[..., None], axis=1),
    jnp.take_along_axis(backwards, first[..., None], axis=1),
  ]
  return jnp.concatenate(ends, axis=-1)
