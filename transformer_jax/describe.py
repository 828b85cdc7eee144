"""Prints the sizes of a model: parameters per part, work per token and step, memory. Nothing is allocated.

python -m transformer_jax.describe --config=configs/wmt14_en_de_big.py
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from transformer_jax.checks import parse_arguments
from transformer_jax.commands import run_command
from transformer_jax.data.batches import Batch
from transformer_jax.errors import UserError
from transformer_jax.model.config import ModelConfig, model_config
from transformer_jax.model.transformer import Transformer
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer
from transformer_jax.training.step import TrainState, initial_state


class Work(NamedTuple):
  """Floating-point operations of the matrix products (2 per multiply and add), per token of a side, forward pass."""

  source: float  # per source piece: encoder, and the keys and values that the decoder takes from the memory
  target: float  # per target piece: decoder and output layer


def shape_batch(rows: int, source_length: int, target_length: int) -> Batch:
  """A batch of zeros' shapes, for `jax.eval_shape`."""
  source = jax.ShapeDtypeStruct((rows, source_length), jnp.int32)
  target = jax.ShapeDtypeStruct((rows, target_length), jnp.int32)
  return Batch(source, source, source, target, target, target, target)


def abstract_state(config: ConfigDict, model: Transformer) -> TrainState:
  """The shapes of the whole training state."""
  schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps)
  optimizer = make_optimizer(config.optimizer, schedule)
  return jax.eval_shape(lambda batch: initial_state(model, optimizer, batch, config.seed), shape_batch(1, 8, 8))


def count(tree: PyTree) -> int:
  """The number of elements of all arrays."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def memory(tree: PyTree) -> int:
  """The bytes of all arrays."""
  return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def parts(params: PyTree) -> dict[str, int]:
  """Parameters by part, in the order of the data: embeddings and output, then each sub-layer's kind in encoder and decoder."""
  totals: dict[str, int] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    names = [entry.key for entry in path]
    stack = names[0]
    if stack not in ("encoder", "decoder"):
      part = stack
    elif names[1].startswith("layer_"):
      part = f"{stack} {'norms' if names[2].endswith('_residual') else names[2]}"
    else:
      part = f"{stack} norms"
    totals[part] = totals.get(part, 0) + math.prod(leaf.shape)
  order = ["source_embedding", "target_embedding", "output_layer"]
  return dict(
    sorted(totals.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))
  )


def forward_work(config: ModelConfig, source_length: float | int, target_length: float | int) -> Work:
  """Counts the matrix products of one sentence pair from the sizes; the lengths matter for attention alone."""
  heads = config.num_heads
  projections = 2 * config.d_model * heads * (2 * config.d_k + 2 * config.d_v)  # query, key, value, output
  feed_forward = 2 * 2 * config.d_model * config.d_ff

  def attention(keys: float | int) -> float | int:  # one query: its scores, and the weighted sum of the values
    return 2 * keys * heads * (config.d_k + config.d_v)

  memory_projections = 2 * config.d_model * heads * (config.d_k + config.d_v)  # key and value, per source piece
  encoder_layer = projections + attention(source_length) + feed_forward
  decoder_layer = projections + attention(target_length) + feed_forward
  decoder_layer += projections - memory_projections + attention(source_length)
  return Work(
    source=config.num_encoder_layers * encoder_layer + config.num_decoder_layers * memory_projections,
    target=config.num_decoder_layers * decoder_layer + 2 * config.d_model * config.target_vocabulary,
  )


def describe(config: ConfigDict, sentence_length: int = 30) -> dict:
  """Returns the sizes of the model of a configuration, for sentences of so many pieces on both sides.

  Keys: `parts` (name → parameters), `parameters`, `without_embeddings`, `work` (forward, per source and target piece),
  `step_flops` (forward and backward of a full batch), `parameter_bytes`, `optimizer_bytes`.
  """
  vocabulary = config.vocabulary
  sizes = model_config(config.model, vocabulary.size, vocabulary.target_size or vocabulary.size)
  state = abstract_state(config, Transformer(sizes))
  by_part = parts(state.params)
  work = forward_work(sizes, sentence_length, sentence_length)
  embeddings = sum(by_part.get(name, 0) for name in ("source_embedding", "target_embedding", "output_layer"))
  return {
    "parts": by_part,
    "parameters": count(state.params),
    "without_embeddings": count(state.params) - embeddings,
    "work": work,
    "step_flops": 3
    * config.batch.tokens
    * (work.source + work.target),  # the backward pass costs twice the forward pass
    "parameter_bytes": memory(state.params),
    "optimizer_bytes": memory(state.optimizer),
  }


def main(arguments: list[str]) -> None:
  """Prints the tables of a configuration given as in `transformer_jax.main`."""
  config, left = parse_arguments(arguments)
  if left:
    raise UserError(f"unknown argument {left[0]}: describe takes --config and --config.FIELD=VALUE")
  sizes = describe(config)
  console = Console(highlight=False)
  table = Table(title="Parameters")
  table.add_column("part")
  table.add_column("parameters", justify="right")
  table.add_column("share", justify="right")
  for part, number in sizes["parts"].items():
    table.add_row(part, f"{number:,}", f"{number / sizes['parameters']:.1%}")
  table.add_section()
  table.add_row("all", f"{sizes['parameters']:,}", "")
  table.add_row("without embeddings", f"{sizes['without_embeddings']:,}", "")
  console.print(table)
  work, tokens = sizes["work"], config.batch.tokens
  console.print(f"vocabulary: {config.vocabulary.size:,} pieces (what the configuration asks for)")
  console.print(
    f"forward work a source piece: {work.source / 1e6:,.2f} MFLOP, a target piece: {work.target / 1e6:,.2f} MFLOP"
  )
  console.print(
    f"work of a full step ({tokens:,} + {tokens:,} pieces, sentences of 30, forward and backward): "
    f"{sizes['step_flops'] / 1e12:,.3f} TFLOP"
  )
  mib = 1 << 20
  console.print(
    f"memory: parameters {sizes['parameter_bytes'] / mib:,.1f} MiB, optimizer {sizes['optimizer_bytes'] / mib:,.1f} MiB, "
    f"gradients {sizes['parameter_bytes'] / mib:,.1f} MiB; activations come on top"
  )


if __name__ == "__main__":
  run_command(main)
