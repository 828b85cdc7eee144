"""Prints the sizes of a model: parameters per part, work per token and step, memory. Nothing is allocated.

python -m transformer_jax.describe --config=configs/wmt14_en_de_big.py
"""

import math
from typing import NamedTuple

import flax.linen as nn
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
from transformer_jax.model.build import build_model, count
from transformer_jax.model.config import ModelConfig
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer
from transformer_jax.training.step import TrainState, initial_state


class Work(NamedTuple):
  """Floating-point operations of the matrix products (2 per multiply and add), per token of a side, forward pass."""

  source: (
    float  # per source piece: encoder, the keys and values that the decoder takes from the memory, recovery of masks
  )
  target: float  # per target piece (a label is one): decoder and output layer


def shape_batch(rows: int, source_length: int, target_length: int) -> Batch:
  """A batch of zeros' shapes, for `jax.eval_shape`."""
  source = jax.ShapeDtypeStruct((rows, source_length), jnp.int32)
  target = jax.ShapeDtypeStruct((rows, target_length), jnp.int32)
  return Batch(source, source, source, target, target, target, target)


def abstract_state(config: ConfigDict, model: nn.Module) -> TrainState:
  """The shapes of the whole training state."""
  schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps)
  optimizer = make_optimizer(config.optimizer, schedule)
  return jax.eval_shape(lambda batch: initial_state(model, optimizer, batch, config.seed), shape_batch(1, 8, 8))


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
    elif names[1] == "positions":
      part = f"{stack} positions"
    else:
      part = f"{stack} norms"
    totals[part] = totals.get(part, 0) + math.prod(leaf.shape)
  order = ["source_embedding", "target_embedding", "output_layer"]
  return dict(
    sorted(totals.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))
  )


def forward_work(
  config: ModelConfig, source_length: float | int, target_length: float | int, task: str = "translate"
) -> Work:
  """Counts the matrix products of one pair (of one text, where there is one side) from the sizes.

  The lengths matter for attention alone. A local window counts as the work that it leaves, which the "chunked" kernel does (in
  whole chunks), and "xla" does not. Shaw's two products with the distances are left out, and the element by element work of
  additive attention.
  """
  if config.kind == "transformer":
    work = transformer_work(config, source_length, target_length)
  else:
    work = recurrent_work(config, source_length)
  if task == "mlm":  # every place goes through a layer of its own before the embedding as output layer
    return work._replace(source=work.source + 2 * config.d_model**2 + 2 * config.d_model * config.source_vocabulary)
  return work._replace(target=work.target + 2 * config.d_model * config.target_vocabulary)


def pieces_of_step(config: ConfigDict, sentence_length: float | int) -> tuple[float | int, float | int]:
  """How many source and target pieces a full batch of a task has."""
  tokens = config.batch.tokens
  return {
    "translate": (tokens, tokens),
    "lm": (0, tokens),
    "classify": (tokens, tokens / sentence_length),
    "mlm": (tokens, 0),
  }[config.task]


def transformer_work(config: ModelConfig, source_length: float | int, target_length: float | int) -> Work:
  """`forward_work` of encoder and decoder."""
  heads, widths = config.num_heads, config.d_k + config.d_v
  memory_projections = 2 * config.d_model * config.num_kv_heads * widths  # key and value
  if config.tie_projections == "kv":
    memory_projections //= 2
  projections = 2 * config.d_model * heads * widths + memory_projections  # query and output besides
  matrices = 3 if config.activation in ("swiglu", "geglu") else 2
  feed_forward = matrices * 2 * config.d_model * config.d_ff

  def attention(
    keys: float | int, place: str = ""
  ) -> float | int:  # one query: its scores, and the weighted sum of values
    if config.local_window_size and place in config.local_window_in:
      keys = min(keys, 2 * config.local_window_size + 1)
    return 2 * keys * heads * widths

  encoder_layer = projections + attention(source_length, "encoder") + feed_forward
  decoder_layer = projections + attention(target_length, "decoder") + feed_forward
  source, target = config.num_encoder_layers * encoder_layer, config.num_decoder_layers * decoder_layer
  if config.num_encoder_layers and config.num_decoder_layers:  # cross-attention
    source += config.num_decoder_layers * memory_projections
    target += config.num_decoder_layers * (projections - memory_projections + attention(source_length))
  return Work(source, target)


def recurrent_work(config: ModelConfig, source_length: float | int) -> Work:
  """`forward_work` of the recurrent encoder and decoder."""
  size, gates = config.recurrent_size, 4 if config.kind == "lstm" else 3
  attention = config.recurrent_attention != "none"

  def cell(inputs: int, outputs: int) -> int:
    return 2 * (inputs + outputs) * gates * outputs

  context = size if attention else 0
  source: float = sum(
    2 * cell(size if layer else config.d_model, size // 2) for layer in range(config.num_encoder_layers)
  )
  target: float = sum(
    cell((size if layer else config.d_model) + context, size) for layer in range(config.num_decoder_layers)
  )
  target += 2 * (size + context) * config.d_model
  if attention:
    source += 2 * size * size  # its key
    target += 2 * size * size + 2 * source_length * 2 * size  # a query, its scores, and the weighted sum
  return Work(source, target)


def describe(config: ConfigDict, sentence_length: int = 30) -> dict:
  """Returns the sizes of the model of a configuration, for sentences of so many pieces on both sides (task lm: full windows).

  Keys: `parts` (name → parameters), `parameters`, `without_embeddings`, `work` (forward, per source and target piece),
  `step_pieces` (of source and target in a full batch), `step_flops` (its forward and backward), `length`, `parameter_bytes`,
  `optimizer_bytes`.
  """
  vocabulary = config.vocabulary
  model = build_model(config, vocabulary.size, vocabulary.target_size or vocabulary.size)
  state = abstract_state(config, model)
  by_part = parts(state.params)
  length = config.batch.row_length if config.task == "lm" else sentence_length
  work = forward_work(model.config, length, length, config.task)
  source, target = pieces_of_step(config, length)
  embeddings = sum(by_part.get(name, 0) for name in ("source_embedding", "target_embedding", "output_layer"))
  return {
    "parts": by_part,
    "parameters": count(state.params),
    "without_embeddings": count(state.params) - embeddings,
    "work": work,
    "length": length,
    "step_pieces": (source, target),
    "step_flops": 3 * (source * work.source + target * work.target),  # the backward pass costs twice the forward pass
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
  work, sides = sizes["work"], [f"{round(pieces):,}" for pieces in sizes["step_pieces"] if pieces]
  console.print(f"vocabulary: {config.vocabulary.size:,} pieces (what the configuration asks for)")
  per_piece = [f"a {side} piece: {value / 1e6:,.2f} MFLOP" for side, value in work._asdict().items() if value]
  rows = "windows" if config.task == "lm" else "sentences"
  console.print(f"forward work {', '.join(per_piece)}")
  console.print(
    f"work of a full step ({' + '.join(sides)} pieces, {rows} of {sizes['length']}, forward and backward): "
    + (f"{flops / 1e12:,.3f} TFLOP" if (flops := sizes["step_flops"]) > 1e11 else f"{flops / 1e9:,.3f} GFLOP")
  )
  mib = 1 << 20
  console.print(
    f"memory: parameters {sizes['parameter_bytes'] / mib:,.1f} MiB, optimizer {sizes['optimizer_bytes'] / mib:,.1f} MiB, "
    f"gradients {sizes['parameter_bytes'] / mib:,.1f} MiB; activations come on top"
  )


if __name__ == "__main__":
  run_command(main)
