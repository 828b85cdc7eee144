"""Length buckets: which row lengths are compiled when every pair has a row of its own."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.errors import UserError

MAX_BUCKETS = 6  # shapes chosen from the corpus, at most; each is compiled
_STRETCHES = tuple(0.7 + 0.1 * step for step in range(9))  # factors of the source lengths that are tried
_WORTH = 0.02  # share of all computed pieces that one more shape must save


def rows_for(tokens: int, longest: int) -> int:
  """Rows of a batch whose longer side has `longest` pieces a row: from 32, 64 and 128 on a multiple of 2, 4 and 8.

  Raises:
    UserError: naming batch.tokens, where not even one row fits.
  """
  rows = tokens // longest
  if rows < 1:
    raise UserError(f"batch.tokens = {tokens} is less than one row of {longest} pieces; give at least {longest}")
  step = next(step for step in (8, 4, 2, 1) if rows >= 16 * step or step == 1)  # so that little of the budget is lost
  return rows - rows % step


def checked_buckets(buckets: Sequence[int], longest: int) -> list[tuple[int, int]]:
  """The boxes (source length, target length) for `batch.buckets`; `longest` is the longest side of any pair."""
  lengths = sorted(set(buckets))
  if not lengths or lengths[0] < 1:
    raise UserError(f"batch.buckets = {tuple(buckets)} must be row lengths of 1 and more")
  if lengths[-1] < longest:
    raise UserError(
      f"batch.buckets = {tuple(buckets)} has no bucket for the longest pair ({longest} pieces): "
      f"add one of at least {longest}, or lower data.max_length"
    )
  return [(length, length) for length in lengths]


def choose_buckets(source_lengths: np.ndarray, target_lengths: np.ndarray, tokens: int) -> list[tuple[int, int]]:
  """At most `MAX_BUCKETS` nested boxes (source length, target length) that hold every pair with little padding.

  Pairs are sorted by their longer side, after the source lengths are stretched by a common factor, and cut into runs,
  each a box. Dynamic programming finds the cuts with the fewest computed pieces in an epoch (a box computes whole
  batches, so a nearly empty one is not worth having), for each of several factors; the best factor is taken.
  """
  width = int(target_lengths.max()) + 1
  counts = np.bincount(source_lengths.astype(np.int64) * width + target_lengths)
  lengths = np.stack(np.divmod(np.flatnonzero(counts), width), axis=1)  # [kinds, 2]: the (source, target) that occur
  plans = [_cut(lengths, counts[counts > 0], tokens, stretch) for stretch in _STRETCHES]
  return min(plans, key=lambda plan: plan[0])[1]


def _cut(lengths: np.ndarray, counts: np.ndarray, tokens: int, stretch: float) -> tuple[float, list[tuple[int, int]]]:
  """The pieces that an epoch computes in the best boxes for one factor, and the boxes."""
  keys = np.maximum(np.ceil(lengths[:, 0] * stretch).astype(np.int64), lengths[:, 1])
  values, which = np.unique(keys, return_inverse=True)
  longest = np.zeros((len(values), 2), np.int64)  # of the pairs up to each value: source and target
  np.maximum.at(longest, which, lengths)
  longest = np.maximum.accumulate(longest)
  rows = np.array([rows_for(tokens, int(length)) for length in longest.max(axis=1)])
  before = np.concatenate([[0], np.cumsum(np.bincount(which, counts).astype(np.int64))])
  pairs = before[1:] - before[:-1, None]  # [i, j]: pairs from value i to value j
  cost = (-(-pairs // rows) * rows * longest.sum(axis=1)).astype(float)  # of one box from value i to value j
  cost[np.tri(len(values), k=-1, dtype=bool)] = np.inf
  best, cuts = cost[0], []  # [values]: the pairs up to value j in so many boxes
  totals = [best[-1]]
  for _ in range(min(MAX_BUCKETS, len(values)) - 1):
    options = best[:-1, None] + cost[1:]  # [i, j]: the pairs up to value i in the boxes so far, i + 1 … j in one more
    cuts.append(options.argmin(axis=0))
    best = options.min(axis=0)
    totals.append(best[-1])
  number = 1
  while number < len(totals) and totals[number] < totals[number - 1] * (1 - _WORTH):
    number += 1
  ends = [len(values) - 1]
  for cut in reversed(cuts[: number - 1]):
    ends.append(int(cut[ends[-1]]))
  return float(totals[number - 1]), [(int(longest[end, 0]), int(longest[end, 1])) for end in reversed(ends)]
