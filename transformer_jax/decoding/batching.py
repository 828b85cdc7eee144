"""Sentences of about the same length as one batch. Its shape is chosen by the sentence alone, and few shapes are compiled."""

import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer_jax.data.pieces import PAD

# XLA on a CPU rounds differently in matrices of fewer than 16 rows, so a batch has at least so many.
FEWEST_ROWS = 16


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[tuple[int, int, list[int]]]:
  """Groups sentences into batches: (padded length, rows, places of the sentences in the list). Length 0 is left out.

  A padded length has at most three numbers of rows (16, a quarter of the full batch, and the full batch of about
  `batch_tokens` pieces), so that a few lines do not cost as much as thousands.
  """
  groups: dict[int, list[int]] = {}
  for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):  # by length, then as they came
    if lengths[place]:
      groups.setdefault(padded_length(lengths[place]), []).append(place)
  for length, places in groups.items():
    full = max(batch_tokens // length // FEWEST_ROWS, 1) * FEWEST_ROWS
    quarter = math.ceil(full / 4 / FEWEST_ROWS) * FEWEST_ROWS
    rows = next((rows for rows in (FEWEST_ROWS, quarter) if len(places) <= rows <= full), full)
    for start in range(0, len(places), rows):
      yield length, rows, places[start : start + rows]


def padded_length(length: int) -> int:
  """The length that a sentence is padded to: a power of two, at least 16."""
  return max(16, 1 << (length - 1).bit_length())


def padded(sentences: Sequence[Sequence[int]], rows: int, length: int) -> Int[np.ndarray, "rows length"]:
  """Sentences as the first rows of an array that is filled up with PAD."""
  array = np.full((rows, length), PAD, np.int32)
  for row, ids in enumerate(sentences):
    array[row, : len(ids)] = ids
  return array


def positions_of(ids: Int[Array, "rows length"]) -> Int[Array, "rows length"]:
  """0, 1, 2, … in every row."""
  return jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
