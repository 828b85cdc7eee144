"""Batches of pairs changed into those of other tasks: a label for each text, or masked pieces to recover."""

import dataclasses
from collections.abc import Callable

import numpy as np

from transformer_jax.data.batches import Batch, Batches, Plan, Shape
from transformer_jax.data.pieces import BOS, SPECIALS, UNK

MASK = UNK  # free with byte fallback; where a vocabulary has unknown pieces, they look like masked ones
# A whole batch and a random generator that depends on its number alone -> the batch of the task.
Change = Callable[[Batch, np.random.Generator], Batch]


@dataclasses.dataclass(frozen=True)
class ChangedPlan:
  """A batch plan whose batches are changed one by one; `lengths` maps a shape to the changed one."""

  plan: Plan
  change: Change
  lengths: Callable[[Shape], Shape]
  seed: int

  @property
  def shapes(self) -> list[Shape]:
    return [self.lengths(shape) for shape in self.plan.shapes]

  def epoch(self, number: int) -> "ChangedEpoch":
    """The batches of one epoch."""
    return ChangedEpoch(self.plan.epoch(number), self.change, (self.seed, number))


@dataclasses.dataclass(frozen=True)
class ChangedEpoch:
  """The batches of one epoch. What is random is drawn for the whole batch, so that the number of processes changes nothing."""

  epoch: Batches
  change: Change
  seed: tuple[int, int]

  def __len__(self) -> int:
    return len(self.epoch)

  def __getitem__(self, index: int) -> Batch:
    return self.rows(index, 0, 1)

  def rows(self, index: int, process: int, num_processes: int) -> Batch:
    """A process's contiguous share of a batch's rows."""
    batch = self.change(self.epoch[index], np.random.default_rng([*self.seed, index]))
    share = len(batch.source) // num_processes
    return Batch(*(array[process * share : (process + 1) * share] for array in batch))

  def padding(self) -> dict[str, float]:
    return self.epoch.padding()


def label_plan(plan: Plan, first_piece: bool) -> ChangedPlan:
  """A text a row, and its label as the one target piece; with `first_piece`, BOS before each text (to pool there)."""

  def change(batch: Batch, _: np.random.Generator) -> Batch:
    batch = batch._replace(**{name: getattr(batch, name)[:, :1] for name in Batch._fields if name.startswith("target")})
    if not first_piece:
      return batch
    filled = (batch.source_segments[:, :1] > 0).astype(np.int32)
    return batch._replace(
      source=np.concatenate([BOS * filled, batch.source], axis=1),
      source_positions=np.concatenate([np.zeros_like(filled), batch.source_positions + 1], axis=1),
      source_segments=np.concatenate([filled, batch.source_segments], axis=1),
    )

  return ChangedPlan(plan, change, lambda shape: Shape(shape.rows, shape.source_length + first_piece, 1), seed=0)


def masking_plan(plan: Plan, vocabulary: int, seed: int, share: float = 0.15) -> ChangedPlan:
  """Sources of which `share` is to be recovered: 80 % of that masked, 10 % another piece, 10 % as it was (Devlin et al. 2019)."""

  def change(batch: Batch, random: np.random.Generator) -> Batch:
    shape = batch.source.shape
    chosen = (random.random(shape) < share) & (batch.source_segments > 0)
    fate = random.random(shape)
    others = random.integers(len(SPECIALS), vocabulary, shape)
    source = np.where(chosen & (fate < 0.8), MASK, np.where(chosen & (fate >= 0.9), others, batch.source))
    return batch._replace(
      source=source.astype(np.int32),
      target_inputs=batch.source,
      target_outputs=batch.source,
      target_positions=batch.source_positions,
      target_segments=batch.source_segments * chosen,
    )

  return ChangedPlan(plan, change, lambda shape: Shape(shape.rows, shape.source_length, shape.source_length), seed)
