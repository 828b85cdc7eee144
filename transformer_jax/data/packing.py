"""Packing: which pairs share a row, so that rows of fixed lengths hold little padding."""

import numpy as np
from jaxtyping import Int32, Integer

OPEN_ROWS = 32  # rows that a lane keeps open; more pack tighter and slower
_LANE = 4_096  # pairs that one lane packs, at least
_MAX_LANES = 512


def pack(
  source_lengths: Integer[np.ndarray, " pairs"],
  target_lengths: Integer[np.ndarray, " pairs"],
  source_length: int,
  target_length: int,
  open_rows: int = OPEN_ROWS,
) -> tuple[Int32[np.ndarray, " pairs"], int]:
  """Packs pairs, in the order given, into rows with room for `source_length` and `target_length` pieces.

  Best fit with a bounded number of open rows: a pair goes into the open row that it leaves least room in; where it fits
  none, the fullest open row is closed and a new one opened. The pairs are dealt out in equal runs to lanes, which pack
  side by side, one pair of each at a time, so that NumPy does the inner loop; the lanes depend on the number of pairs
  only.

  Returns:
    The row of each pair, and the number of rows. Every pair must fit an empty row.
  """
  pairs = len(source_lengths)
  lanes = int(np.clip(pairs // _LANE, 1, _MAX_LANES))
  steps = -(-pairs // lanes)
  sources = _deal(source_lengths, lanes, steps)  # [steps, lanes]
  targets = _deal(target_lengths, lanes, steps)
  # Room left in the open rows, source and target; nothing is open at first.
  room = np.zeros((2, lanes, open_rows), np.int32)
  open_row = np.zeros((lanes, open_rows), np.int32)  # each lane counts its own rows
  opened = np.zeros(lanes, np.int32)
  row = np.zeros((steps, lanes), np.int32)
  lane = np.arange(lanes)
  # Source and target room are compared as shares of a row.
  share = np.float32(target_length / source_length)
  for step in range(steps):
    source, target = sources[step], targets[step]  # [lanes]
    left_source = room[0] - source[:, None]  # [lanes, open_rows]
    left_target = room[1] - target[:, None]
    left = left_source * share + left_target
    unfit = (left_source < 0) | (left_target < 0)
    best = np.where(unfit, np.float32(np.inf), left).argmin(axis=1)  # [lanes]
    closes = unfit[lane, best]
    if closes.any():
      fullest = (room[0] * share + room[1]).argmin(axis=1)
      best = np.where(closes, fullest, best)
      closing, slot = lane[closes], best[closes]
      room[0, closing, slot], room[1, closing, slot] = source_length, target_length
      open_row[closing, slot] = opened[closing]
      opened[closing] += 1
    room[0, lane, best] -= source
    room[1, lane, best] -= target
    row[step] = open_row[lane, best]
  first = np.concatenate([[0], np.cumsum(opened)]).astype(np.int32)  # the lanes' rows behind each other
  rows = (row + first[:-1]).T.reshape(-1)[:pairs]
  return np.ascontiguousarray(rows, dtype=np.int32), int(first[-1])


def _deal(lengths: np.ndarray, lanes: int, steps: int) -> np.ndarray:
  """[pairs] -> [steps, lanes]: lane l holds the l-th run of `steps` pairs; the end is filled with empty pairs."""
  filled = np.zeros(lanes * steps, np.int32)
  filled[: len(lengths)] = lengths
  return np.ascontiguousarray(filled.reshape(lanes, steps).T)
