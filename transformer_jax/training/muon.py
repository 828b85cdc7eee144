"""Muon, the optimizer that makes the update of every matrix orthogonal (Jordan et al. 2024)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

# Three odd polynomials a x + b x^3 + c x^5. One after the other they take every x from 0.01 to 1 to within 0.28 of 1: each is the
# one of least largest error on the interval that the one before maps to (Amsel et al. 2025, arXiv:2505.16932).
POLYNOMIALS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


def muon_or_adam(params: PyTree) -> PyTree:
  """The label of each array: Muon is for the matrices of the layers; Adam for all that is looked up or added.

  These are the embeddings, the output layer, tables of positions, biases and norms.
  """

  def label(path: tuple, x: jax.Array) -> str:
    return "muon" if x.ndim > 1 and path[0].key in ("encoder", "decoder") and path[-1].key == "kernel" else "adam"

  return jax.tree_util.tree_map_with_path(label, params)


def muon(momentum: float = 0.95, update_rms: float = 0.17) -> optax.GradientTransformation:
  """Nesterov's momentum, of which each matrix is replaced by the nearest orthogonal matrix, roughly.

  The update is scaled to a root mean square of about `update_rms`, near that of Adam's updates, so that both share one learning
  rate (Liu et al. 2025, arXiv:2502.16982, equation 4: 0.2, with polynomials that come out at 0.85 on average). Each head of
  attention is a matrix of its own: with four heads that takes a tenth of the multiplications of whole projections, and costs little
  of what an update teaches (docs/results/quickstart). All matrices of one shape are worked on together, which makes a few large
  products of many small ones.
  """

  def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
    stacks = {shape: orthogonal(x) * (update_rms * math.sqrt(x.shape[2])) for shape, x in stack(updates).items()}
    return unstack(stacks, updates), state

  return optax.chain(
    optax.trace(momentum, nesterov=True), optax.GradientTransformation(lambda params: optax.EmptyState(), update)
  )


def orthogonal(matrices: Float[Array, "count rows columns"]) -> Float[Array, "count rows columns"]:
  """Nearly U V^T for each matrix U S V^T with rows <= columns: its singular values become 0.7 to 1.3, the smallest less.

  First the rows are scaled so that no singular value is above 1 (AOL; Prach & Lampert 2022, arXiv:2208.03160). Then each
  polynomial is applied to the singular values, which takes products of matrices alone (Newton-Schulz): p(X) = (a + b G + c G^2) X
  with G = X X^T. Where the matrices are wide, the powers of X are never made: the factors in front of X are collected and the next
  G follows from the last, which is cheaper by the ratio of columns to rows.
  """
  gram = matrices @ matrices.mT  # [count, rows, rows]
  scale = jax.lax.rsqrt(jnp.maximum(jnp.abs(gram).sum(axis=-1, keepdims=True), 1e-12))  # [count, rows, 1]
  gram = gram * scale * scale.mT
  factors: list[Array] = []
  for number, (a, b, c) in enumerate(POLYNOMIALS, start=1):
    polynomial = a * jnp.eye(gram.shape[-1], dtype=gram.dtype) + b * gram + c * (gram @ gram)
    factors.append(polynomial)
    if number < len(POLYNOMIALS):
      gram = polynomial @ gram @ polynomial
  return functools.reduce(jnp.matmul, reversed(factors)) @ (scale * matrices)


# ---------------------------------------------------------------------------------------------- the matrices of a model


def axes_of(path: tuple, x: Array) -> tuple[int, ...]:
  """The order of an array's axes that makes it matrices: heads (if there are any), the shorter side, the longer side."""
  *batch, rows, columns = range(x.ndim) if x.ndim == 2 or path[-2].key == "output_projection" else (1, 0, 2)
  return (*batch, columns, rows) if x.shape[rows] > x.shape[columns] else (*batch, rows, columns)


def stack(tree: PyTree) -> dict[str, Float[Array, "count rows columns"]]:
  """Collects the matrices of each shape in one array; leaves out `optax.MaskedNode`s."""
  groups: dict[str, list[jax.Array]] = {}
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    x = x.transpose(axes_of(path, x))
    rows, columns = x.shape[-2:]
    groups.setdefault(f"{rows}x{columns}", []).append(x.reshape(-1, rows, columns))
  return {shape: jnp.concatenate(group) for shape, group in groups.items()}


def unstack(stacks: dict[str, Float[Array, "count rows columns"]], like: PyTree) -> PyTree:
  """The inverse of `stack`."""
  used = dict.fromkeys(stacks, 0)

  def take(path: tuple, x: Array) -> Array:
    axes = axes_of(path, x)
    *batch, rows, columns = (x.shape[axis] for axis in axes)
    shape, count = f"{rows}x{columns}", math.prod(batch)
    used[shape] += count
    matrices = stacks[shape][used[shape] - count : used[shape]]
    return matrices.reshape(*batch, rows, columns).transpose(np.argsort(axes))

  return jax.tree_util.tree_map_with_path(take, like)
