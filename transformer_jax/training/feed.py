"""From the plan of an epoch to batches on the devices, read ahead."""

import concurrent.futures
from collections.abc import Generator, Iterator

import grain
import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.data.batches import Batch, Batches, Plan
from transformer_jax.training.step import put_batch


def batches(plan: Plan, mesh: Mesh, epoch: int, batch: int) -> Iterator[tuple[int, int, Batch]]:
  """Yields the batches of `read_ahead`, spread over the mesh."""
  for reached_epoch, reached_batch, rows in read_ahead(plan, epoch, batch):
    yield reached_epoch, reached_batch, put_batch(rows, mesh)


def read_ahead(plan: Plan, epoch: int, batch: int) -> Generator[tuple[int, int, Batch], None, None]:
  """Yields the batches from batch number `batch` of epoch number `epoch` on, without end, as NumPy arrays.

  Each comes with the place (epoch, batch) that is reached when it is done. grain builds the next batches while the devices
  work, a thread plans the next epoch. Seed and epoch number alone decide what comes, so nothing but the place is saved.
  """
  with concurrent.futures.ThreadPoolExecutor(max_workers=1) as planner:
    order = plan.epoch(epoch)
    while True:
      following = planner.submit(plan.epoch, epoch + 1)
      rest = grain.MapDataset.source(ProcessShare(order))[batch:]
      reading = rest.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))
      for done, rows in enumerate(reading, start=batch + 1):
        complete = done == len(order)
        yield epoch + complete, 0 if complete else done, rows
      order, epoch, batch = following.result(), epoch + 1, 0


class ProcessShare:
  """The rows of an epoch's batches that this process puts on its devices, as a source for grain."""

  def __init__(self, epoch: Batches):
    self.epoch = epoch

  def __len__(self) -> int:
    return len(self.epoch)

  def __getitem__(self, index: int) -> Batch:
    return self.epoch.rows(index, jax.process_index(), jax.process_count())


def empty_batch(shape: tuple[int, int, int]) -> Batch:
  """A batch that is padding throughout; shape: (rows, source length, target length)."""
  rows, source_length, target_length = shape
  source = np.zeros((rows, source_length), np.int32)
  target = np.zeros((rows, target_length), np.int32)
  return Batch(source, source, source, target, target, target, target)
