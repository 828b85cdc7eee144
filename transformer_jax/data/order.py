"""Which pairs an epoch holds and in which order, from (seed, epoch) and the sizes of the corpora alone."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from transformer_jax.errors import UserError

# Which draw a permutation is for; part of its seed.
_PAIRS, _ROWS, _SHARES, PARTS = 0, 1, 2, 3


def permutation(size: int, *seed: int) -> Int64[np.ndarray, " size"]:
  """A random order of 0 … size - 1.

  It sorts the raw output of PCG64, which NumPy promises never to change; `Generator.permutation` may change between its
  versions, and a run that goes on under another one must find its place.
  """
  keys = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(size)
  return np.argsort(keys, kind="stable")


def epoch_pairs(corpus_offsets: Sequence[int], weights: Sequence[float], seed: int, epoch: int) -> np.ndarray:
  """The pairs of one epoch, corpus after corpus (int64 [pairs of the epoch]).

  A corpus of weight w appears floor(w) times whole; of the rest, a share of its pairs appears once more. The shares of
  following epochs lie behind each other on one fixed random order, so weight 0.5 passes over every pair in two epochs.
  """
  parts = [np.zeros(0, np.int64)]
  for corpus, weight in enumerate(weights):
    start, end = corpus_offsets[corpus], corpus_offsets[corpus + 1]
    size = end - start
    whole = int(weight)
    parts += [np.arange(start, end)] * whole
    share = round((weight - whole) * size)
    if share:
      places = (epoch * share + np.arange(share)) % size
      parts.append(start + permutation(size, seed, _SHARES, corpus)[places])
  pairs = np.concatenate(parts)
  if not len(pairs):
    raise UserError(f"data.weights = {tuple(weights)} leaves no pair in an epoch; give larger numbers")
  return pairs


def shuffled(pairs: np.ndarray, seed: int, epoch: int) -> np.ndarray:
  """The pairs of an epoch in random order."""
  return pairs[permutation(len(pairs), seed, _PAIRS, epoch)]


def row_order(rows: int, seed: int, epoch: int) -> np.ndarray:
  """A random order of the rows or batches of an epoch."""
  return permutation(rows, seed, _ROWS, epoch)
