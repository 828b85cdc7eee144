"""Running text for a language model: one long row of ids, cut into windows.

A corpus is named `stream:FILE`, or `stream:FILE@0.9:1` for a part of it by its characters.
"""

from collections.abc import Sequence

import numpy as np

from transformer_jax.data.batches import Batch, Shape
from transformer_jax.data.corpora import data_file, split_part
from transformer_jax.data.order import shuffled
from transformer_jax.data.pieces import BOS
from transformer_jax.data.text_files import read_text
from transformer_jax.errors import UserError


def read_stream(spec: str, folder: str) -> str:
  """The text that a spec names.

  Raises:
    UserError: no such file, no UTF-8, or a part that is none.
  """
  whole, part = split_part(spec)
  kind, _, name = whole.partition(":")
  if kind != "stream" or not name:
    raise UserError(
      f"the corpus {spec!r} is no running text: with task lm every corpus is stream:FILE or stream:FILE@0:0.9"
    )
  if part.shuffled:
    raise UserError(f"{spec!r}: running text has an order; a part of it cannot be shuffled")
  text = read_text(data_file(name, folder))
  return text[int(part.first * len(text)) : int(part.last * len(text))]


class StreamPlan:
  """How a row of ids becomes batches: windows of `context` pieces, each predicted from those before it in its window.

  Every epoch cuts at other places and shuffles the windows; every piece is predicted once. Evaluation cuts at multiples of
  `context`, in order.

  Args:
    ids: the text. BOS is put before it, so that its first piece is predicted, too.
    tokens: batch.tokens: a batch has tokens / context rows, rounded up to a multiple of `rows_multiple`.
  """

  def __init__(
    self, ids: Sequence[int] | np.ndarray, context: int, tokens: int, seed: int, rows_multiple: int, shuffle: bool
  ):
    self.stream = np.concatenate([[BOS], np.asarray(ids, np.int32)]).astype(np.int32)
    self.context, self.seed, self.shuffle = context, seed, shuffle
    self.rows = tokens // context
    self._shape = Shape(-(-self.rows // rows_multiple) * rows_multiple, 1, context)

  @property
  def shapes(self) -> list[Shape]:
    return [self._shape]

  def epoch(self, number: int) -> "StreamEpoch":
    """The batches of one epoch."""
    first = 0
    if self.shuffle:
      first = int(np.random.default_rng([self.seed, number]).integers(self.context))
    starts = np.arange(first, len(self.stream) - 1, self.context)
    bounds = np.unique(np.concatenate([[0], starts, [len(self.stream) - 1]]))
    windows = np.arange(len(bounds) - 1)
    if self.shuffle:
      windows = shuffled(windows, self.seed, number)
    return StreamEpoch(self, bounds[windows], bounds[windows + 1])


class StreamEpoch:
  """The batches of one epoch, built when asked for."""

  def __init__(self, plan: StreamPlan, starts: np.ndarray, ends: np.ndarray):
    self._plan, self._starts, self._ends = plan, starts, ends

  def __len__(self) -> int:
    return -(-len(self._starts) // self._plan.rows)

  def __getitem__(self, index: int) -> Batch:
    return self.rows(index, 0, 1)

  def rows(self, index: int, process: int, num_processes: int) -> Batch:
    """A process's contiguous share of a batch's rows."""
    plan = self._plan
    rows, context = plan._shape.rows, plan.context
    inputs, outputs, segments = (np.zeros((rows, context), np.int32) for _ in range(3))
    first = range(len(self))[index] * plan.rows
    for row, window in enumerate(range(first, min(first + plan.rows, len(self._starts)))):
      start, end = self._starts[window], self._ends[window]
      inputs[row, : end - start] = plan.stream[start:end]
      outputs[row, : end - start] = plan.stream[start + 1 : end + 1]
      segments[row, : end - start] = 1
    positions = np.broadcast_to(np.arange(context, dtype=np.int32), (rows, context))
    source = np.zeros((rows, 1), np.int32)
    share = slice(process * (rows // num_processes), (process + 1) * (rows // num_processes))
    batch = Batch(source, source, source, inputs, outputs, positions, segments)
    return Batch(*(array[share] for array in batch))

  def padding(self) -> dict[str, float]:
    """The share of the computed places that hold no piece."""
    computed = len(self) * self._plan.rows * self._plan.context
    return {"source": 0.0, "target": 1 - float((self._ends - self._starts).sum()) / computed}
