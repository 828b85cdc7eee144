"""The optimizer and its learning rate (paper, section 5.3), put together from optax."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers, scale_by_muon


def learning_rate_schedule(
  optimizer: ConfigDict, d_model: int, steps: int, peak: float | Float[Array, ""] | None = None
) -> optax.Schedule:
  """Returns the rate of each update as a function of the number of updates made before it (0 for the first).

  The formulas count from 1: the first update has step 1, which is the count plus one. A `peak` that is given stands for
  `optimizer.learning_rate`; the "paper" schedule has none.
  """
  peak, warmup = optimizer.learning_rate if peak is None else peak, optimizer.warmup_steps

  def paper(count):
    step = count + 1.0
    return d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

  def rising(count):  # to 1 at the last step of the warm-up
    return jnp.minimum(1.0, (count + 1.0) / max(warmup, 1))

  def progress(count):  # 0 at the end of the warm-up, 1 at the last step
    return jnp.clip((count + 1.0 - warmup) / max(steps - warmup, 1), 0.0, 1.0)

  final = optimizer.final_fraction
  shapes = {
    "constant": lambda count: 1.0,
    "linear": lambda count: 1.0 - (1.0 - final) * progress(count),
    "cosine": lambda count: final + (1.0 - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress(count))),
    "inverse_sqrt": lambda count: jnp.sqrt(warmup / jnp.maximum(count + 1.0, warmup)),
  }
  if optimizer.schedule == "paper":
    return paper
  shape = shapes[optimizer.schedule]
  return lambda count: peak * rising(count) * shape(count)


def make_optimizer(optimizer: ConfigDict, schedule: optax.Schedule) -> optax.GradientTransformation:
  """Returns clipping, the optimizer named by `config.optimizer` and the learning rate as one gradient transformation."""
  parts = [optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
  adam = optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
  by_name = {
    "adam": lambda: adam,
    "adamw": lambda: adam,
    "adafactor": adafactor,
    "lion": lambda: optax.scale_by_lion(optimizer.beta1, optimizer.beta2),
    "muon": lambda: optax.partition({"muon": muon(), "adam": adam}, muon_or_adam),
  }
  parts.append(by_name[optimizer.name]())
  if optimizer.weight_decay:
    parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=matrices))
  parts.append(optax.scale_by_learning_rate(schedule))
  return optax.chain(*parts)


def adafactor() -> optax.GradientTransformation:
  """Adafactor without momentum (Shazeer & Stern 2018, arXiv:1804.04235): second moments kept by row and column.

  As in the paper, updates are clipped to a root mean square of 1 and scaled by that of their parameter, so that the learning
  rate is relative (0.01 is usual).
  """
  return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms())


def matrices(params: PyTree) -> PyTree:
  """True for matrices, False for biases and the parameters of norms."""
  return jax.tree.map(lambda x: x.ndim > 1, params)


def muon_or_adam(params: PyTree) -> PyTree:
  """The label of each array: Muon is for the matrices of the layers; Adam for all that is looked up or added.

  These are the embeddings, the output layer, tables of positions, biases and norms.
  """

  def label(path: tuple, x: jax.Array) -> str:
    return "muon" if x.ndim > 1 and path[0].key in ("encoder", "decoder") and path[-1].key == "kernel" else "adam"

  return jax.tree_util.tree_map_with_path(label, params)


def muon(update_rms: float = 0.2) -> optax.GradientTransformation:
  """Muon (Jordan et al. 2024): the momentum of each matrix is replaced by the nearest orthogonal matrix.

  The update is scaled to a root mean square of about `update_rms`, that of Adam's updates, so that both share one learning
  rate (Liu et al. 2025, arXiv:2502.16982, equation 4). The arithmetic is optax's; here the matrices of one shape are stacked
  before it, which makes a few large products of many small ones. Four Newton-Schulz steps from a matrix that is scaled row by
  row (AOL, Boissin et al. 2025, arXiv:2512.04632) come about as near as the usual five from one that is divided by its norm:
  0.21 against 0.22 on Gaussian 128 x 128 matrices, root mean square over the singular directions; 0.23 against 0.20 where the
  singular values fall like 1, 1/2, 1/3, …
  """
  inner = scale_by_muon(
    ns_steps=4,
    preconditioning="aol",
    weight_dimension_numbers=lambda stacks: jax.tree.map(lambda _: MuonDimensionNumbers(1, 2), stacks),
  )

  def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
    stacks, state = inner.update(stack(updates), state)
    stacks = {shape: x * (update_rms * math.sqrt(max(x.shape[1:]))) for shape, x in stacks.items()}
    return unstack(stacks, updates), state

  return optax.GradientTransformation(lambda params: inner.init(stack(params)), update)


def as_matrix(path: tuple, x: Array) -> tuple[tuple[int, ...], bool]:
  """Returns the two-dimensional shape of a matrix and whether it is to be transposed, so that it is never tall.

  The heads of attention are an axis of their own: they belong to the output of the projections into them, and to the input
  of the projection out of them.
  """
  inputs = x.ndim - 1 if path[-2].key == "output_projection" else 1
  rows, columns = math.prod(x.shape[:inputs]), math.prod(x.shape[inputs:])
  return (rows, columns), rows > columns


def stack(tree: PyTree) -> dict[str, Float[Array, "count rows columns"]]:
  """Collects the matrices of each shape in one array; the key of `optax.MaskedNode`s is left out."""
  groups: dict[str, list[jax.Array]] = {}
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    shape, tall = as_matrix(path, x)
    matrix = x.reshape(shape).T if tall else x.reshape(shape)
    groups.setdefault("x".join(map(str, matrix.shape)), []).append(matrix)
  return {shape: jnp.stack(group) for shape, group in groups.items()}


def unstack(stacks: dict[str, Float[Array, "count rows columns"]], like: PyTree) -> PyTree:
  """The inverse of `stack`."""
  remaining: dict[str, Iterator[jax.Array]] = {shape: iter(x) for shape, x in stacks.items()}

  def take(path: tuple, x: jax.Array) -> jax.Array:
    (rows, columns), tall = as_matrix(path, x)
    matrix = next(remaining[f"{columns}x{rows}" if tall else f"{rows}x{columns}"])
    return (matrix.T if tall else matrix).reshape(x.shape)

  return jax.tree_util.tree_map_with_path(take, like)
