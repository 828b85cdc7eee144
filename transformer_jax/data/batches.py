"""Batches of fixed shapes: pairs packed into rows or sorted into length buckets, in an order fixed by seed and epoch.

A batch is a token budget: at most `tokens` source pieces and at most `tokens` target pieces, padding included. The
order and grouping of the pairs depends on the seed, the corpus and the epoch only, never on the number of devices or
processes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np

from transformer_jax.data.buckets import checked_buckets, choose_buckets, rows_for
from transformer_jax.data.encoded import Encoded, Ragged
from transformer_jax.data.order import epoch_pairs, row_order, shuffled
from transformer_jax.data.packing import pack
from transformer_jax.data.vocabulary import BOS
from transformer_jax.errors import UserError

_SAMPLE = 8_192  # pairs that the source length of packed rows is chosen on
_LENGTH_MULTIPLE = 8  # of the row lengths that are chosen here


# An int32 array, NumPy's here and JAX's on the devices; for `jax.eval_shape` and `jax.jit` a shape or a sharding in its place.
Field = Any


class Batch(NamedTuple):
  """One step's pairs, int32. Segments count a row's pairs from 1, 0 is padding; positions start at 0 in each pair."""

  source: Field  # [rows, source_length] ids, EOS after each source
  source_positions: Field  # [rows, source_length]
  source_segments: Field  # [rows, source_length]
  target_inputs: Field  # [rows, target_length] BOS and the target without its EOS
  target_outputs: Field  # [rows, target_length] the target with its EOS
  target_positions: Field  # [rows, target_length]
  target_segments: Field  # [rows, target_length]


class Shape(NamedTuple):
  """Of a batch's arrays. A batch with fewer pairs than fit has empty rows at its end."""

  rows: int
  source_length: int
  target_length: int


@runtime_checkable
class Batches(Protocol):
  """The batches of one epoch, built when asked for."""

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Batch: ...

  def rows(self, index: int, process: int, num_processes: int) -> Batch:
    """A process's contiguous share of a batch's rows."""

  def padding(self) -> dict[str, Any]:
    """At least the shares of `source` and `target` that are padding."""


@runtime_checkable
class Plan(Protocol):
  """What a run reads: `BatchPlan` for pairs, others for other tasks."""

  @property
  def shapes(self) -> list[Shape]:
    """The shapes of all batches, the one that needs most memory first."""

  def epoch(self, number: int) -> Batches:
    """The batches of one epoch, numbered from 0."""


class BatchPlan:
  """How the pairs of an encoded corpus become batches.

  With packing, pairs share rows of one shape. Without, every pair has a row, in the smallest bucket that holds it.

  Args:
    tokens: batch.tokens, the budget of each side.
    packing: batch.packing.
    row_length: target pieces of a packed row; 0: `max_length`, or more where the longest source needs a longer source
      row, so that both sides fill evenly.
    buckets: row lengths without packing; (): chosen from the corpus.
    max_length: data.max_length.
    seed: of the order.
    rows_multiple: the rows of every shape are rounded up to a multiple of it (the number of devices) with empty rows,
    which
      change nothing else and are not counted in the budget.
    shuffle: False: the corpus's own order, for evaluation.

  Raises:
    UserError: naming the field where a pair or a row does not fit.
  """

  def __init__(
    self,
    encoded: Encoded,
    tokens: int,
    packing: bool,
    row_length: int,
    buckets: Sequence[int],
    max_length: int,
    seed: int,
    rows_multiple: int = 1,
    shuffle: bool = True,
  ):
    self.encoded, self.packing, self.seed, self.shuffle = encoded, packing, seed, shuffle
    if packing:
      # Evaluation leaves no pair out, so its rows are as long as it takes.
      least = row_length if shuffle or not row_length else max(row_length, int(encoded.target_lengths.max()))
      boxes = [packed_lengths(encoded, least, max_length)]
    elif buckets:
      boxes = checked_buckets(buckets, int(max(encoded.source_lengths.max(), encoded.target_lengths.max())))
    else:
      boxes = choose_buckets(encoded.source_lengths, encoded.target_lengths, tokens)
    if not packing:
      used = np.unique(_smallest_box(boxes, encoded.source_lengths, encoded.target_lengths))
      boxes = [boxes[box] for box in used]
    self._boxes = boxes
    self._rows = [rows_for(tokens, max(box)) for box in boxes]  # filled rows of a whole batch, by box
    self._shapes = [
      Shape(-(-rows // rows_multiple) * rows_multiple, *box) for rows, box in zip(self._rows, boxes, strict=True)
    ]

  @property
  def shapes(self) -> list[Shape]:
    """The shapes of all batches, the one that needs most memory first."""
    return sorted(self._shapes, key=_memory, reverse=True)

  def epoch(self, number: int) -> "Epoch":
    """The batches of one epoch (numbered from 0). The last one, or the last of each bucket, is as short as it comes."""
    pairs = epoch_pairs(self.encoded.corpus_offsets, self.encoded.weights, self.seed, number)
    if self.shuffle:
      pairs = shuffled(pairs, self.seed, number)
    return self._packed(pairs, number) if self.packing else self._bucketed(pairs, number)

  def _packed(self, pairs: np.ndarray, number: int) -> "Epoch":
    source_length, target_length = self._boxes[0]
    lengths = self.encoded.source_lengths[pairs], self.encoded.target_lengths[pairs]
    row, rows = pack(*lengths, source_length, target_length)
    if self.shuffle:
      row = row_order(rows, self.seed, number)[row]
    order = np.argsort(row, kind="stable")
    row_offsets = _offsets(np.bincount(row, minlength=rows))
    batch_rows = np.append(np.arange(0, rows, self._rows[0]), rows)
    return Epoch(self, pairs[order], row_offsets, batch_rows, np.zeros(len(batch_rows) - 1, np.int64))

  def _bucketed(self, pairs: np.ndarray, number: int) -> "Epoch":
    box = _smallest_box(self._boxes, self.encoded.source_lengths[pairs], self.encoded.target_lengths[pairs])
    whole, short = [], []  # (box, its pairs) of each batch
    for index, rows in enumerate(self._rows):
      members = pairs[box == index]
      end = len(members) - len(members) % rows
      whole += [(index, members[start : start + rows]) for start in range(0, end, rows)]
      if end < len(members):
        short.append((index, members[end:]))
    if self.shuffle:
      whole = [whole[place] for place in row_order(len(whole), self.seed, number)]
    batches = whole + short
    order = np.concatenate([members for _, members in batches])
    batch_rows = _offsets(np.array([len(members) for _, members in batches]))
    return Epoch(self, order, np.arange(len(order) + 1), batch_rows, np.array([index for index, _ in batches]))


class Epoch(Sequence[Batch]):
  """The batches of one epoch, built when asked for, in any order and by any thread."""

  def __init__(
    self, plan: BatchPlan, pairs: np.ndarray, row_offsets: np.ndarray, batch_rows: np.ndarray, boxes: np.ndarray
  ):
    """Row r holds pairs[row_offsets[r]:row_offsets[r + 1]], batch i the rows batch_rows[i] … batch_rows[i + 1] - 1."""
    self._plan, self._pairs, self._boxes = plan, pairs.astype(np.int32), boxes
    self._row_offsets, self._batch_rows = row_offsets, batch_rows

  def __len__(self) -> int:
    return len(self._boxes)

  @overload
  def __getitem__(self, index: int) -> Batch: ...
  @overload
  def __getitem__(self, index: slice) -> Sequence[Batch]: ...
  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(len(self))[index]]
    return self.rows(index, 0, 1)

  def shape(self, index: int) -> Shape:
    """The shape of a batch's arrays."""
    return self._plan._shapes[self._boxes[index]]

  def pairs(self, index: int) -> np.ndarray:
    """The numbers of a batch's pairs in the encoded corpus, in the order of their places in the batch (int32)."""
    index = range(len(self))[index]
    return self._pairs[self._row_offsets[self._batch_rows[index]] : self._row_offsets[self._batch_rows[index + 1]]]

  def rows(self, index: int, process: int, num_processes: int) -> Batch:
    """A process's contiguous share of a batch's rows; the shares of all processes are the batch."""
    index = range(len(self))[index]
    shape = self.shape(index)
    if shape.rows % num_processes:
      raise ValueError(f"{shape.rows} rows cannot be dealt out to {num_processes} processes: see rows_multiple")
    share = shape.rows // num_processes
    first, end = self._batch_rows[index], self._batch_rows[index + 1]
    first = min(first + process * share, end)
    offsets = self._row_offsets[first : min(first + share, end) + 1]  # of the filled rows in this share
    pairs = self._pairs[offsets[0] : offsets[-1]]
    return _build(self._plan.encoded, pairs, np.diff(offsets), shape._replace(rows=share))

  def padding(self) -> dict[str, float]:
    """The shares of the source and of the target side that are padding, and what they are shares of.

    Empty rows of short batches count; those that only `rows_multiple` adds do not.
    """
    plan, batches = self._plan, np.bincount(self._boxes, minlength=len(self._plan._boxes))
    computed = np.array(plan._boxes) * (batches * np.array(plan._rows))[:, None]  # [boxes, 2]
    source, target = (int(side) for side in computed.sum(axis=0))
    return {
      "source": 1 - float(plan.encoded.source_lengths[self._pairs].sum(dtype=np.int64)) / source,
      "target": 1 - float(plan.encoded.target_lengths[self._pairs].sum(dtype=np.int64)) / target,
      "source_pieces": source,
      "target_pieces": target,
      "pairs": len(self._pairs),
      "batches": len(self),
    }


def packed_lengths(encoded: Encoded, row_length: int, max_length: int) -> tuple[int, int]:
  """Source and target length of packed rows.

  The target length is `row_length`, or `max_length` where that is 0. The source length is a multiple of 8 near the
  corpus's ratio of source to target pieces, with the slack that keeps target padding below half the source padding:
  the target side, where the loss is, fills first. No row is shorter than the longest source or target.

  Raises:
    UserError: where row_length is too short for a target.
  """
  pairs = epoch_pairs(encoded.corpus_offsets, encoded.weights, 0, 0)
  pairs = pairs[np.linspace(0, len(pairs) - 1, min(_SAMPLE, len(pairs))).astype(np.int64)]
  pairs = shuffled(pairs, 0, 0)
  sources, targets = encoded.source_lengths[pairs], encoded.target_lengths[pairs]
  ratio = float(sources.sum() / targets.sum())
  shortest = _round_up(int(encoded.source_lengths.max()))
  longest_target = int(encoded.target_lengths.max())
  if row_length and row_length < longest_target:
    raise UserError(
      f"batch.row_length = {row_length} is too short for the longest target ({longest_target} pieces): "
      "make it longer, or lower data.max_length"
    )
  # Where the longest source alone makes the source rows longer than the ratio asks for, longer target rows keep them
  # full.
  target_length = row_length or max(max_length, longest_target, _round_up(shortest / (1.05 * ratio)))
  source_length = max(shortest, _round_up(target_length * ratio - _LENGTH_MULTIPLE + 1))
  paddings = []
  while True:
    _, rows = pack(sources, targets, source_length, target_length)
    source_padding = 1 - sources.sum() / (rows * source_length)
    target_padding = 1 - targets.sum() / (rows * target_length)
    paddings.append((max(source_padding, 2 * target_padding), source_length))
    if source_padding > 2 * target_padding or source_length > 2 * target_length * max(ratio, 1):
      return min(paddings)[1], target_length
    source_length += _LENGTH_MULTIPLE


def _round_up(length: int | float) -> int:
  return -(-int(np.ceil(length)) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _smallest_box(boxes: Sequence[tuple[int, int]], sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """The first box that holds each pair; each box holds all that the ones before it hold."""
  lengths = np.array(boxes)
  return np.maximum(np.searchsorted(lengths[:, 0], sources), np.searchsorted(lengths[:, 1], targets))


def _memory(shape: Shape) -> float:
  """What a step on a batch of this shape holds at a time, in proportion: activations and, of less weight, attention."""
  rows, source, target = shape
  return rows * (source + target + (source**2 + source * target + target**2) / 1024)


def _offsets(counts: np.ndarray) -> np.ndarray:
  return np.concatenate([[0], np.cumsum(counts)])


def _build(encoded: Encoded, pairs: np.ndarray, pairs_in_row: np.ndarray, shape: Shape) -> Batch:
  """Puts pairs into rows one after the other; rows without pairs stay padding."""
  row = np.repeat(np.arange(len(pairs_in_row)), pairs_in_row)  # [pairs]
  first = _offsets(pairs_in_row)[row]  # the first pair of each pair's row
  segment = np.arange(len(pairs)) - first + 1

  def place(ragged: Ragged, lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    begins = _offsets(lengths)  # of each pair, rows written behind each other without padding
    position = np.arange(begins[-1]) - np.repeat(begins[:-1], lengths)
    ids = ragged.ids[np.repeat(ragged.offsets[pairs], lengths) + position]
    where = np.repeat(row * width + begins[:-1] - begins[first], lengths) + position
    return ids, where, position, np.repeat(segment, lengths)

  def scatter(where: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    result = np.zeros(shape.rows * width, np.int32)  # PAD, position and segment 0
    result[where] = values
    return result.reshape(shape.rows, width)

  source, target = shape.source_length, shape.target_length
  ids, where, position, segments = place(encoded.sources, encoded.source_lengths[pairs], source)
  source_side = [scatter(where, values, source) for values in (ids, position, segments)]
  ids, where, position, segments = place(encoded.targets, encoded.target_lengths[pairs], target)
  inputs = np.where(position == 0, BOS, np.roll(ids, 1))
  return Batch(*source_side, *(scatter(where, values, target) for values in (inputs, ids, position, segments)))
