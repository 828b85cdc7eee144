"""Batches for tests, made from lists of ids."""

import numpy as np

from transformer_jax.data.batches import Batch

BOS, EOS = 1, 2


def packed_batch(rows, source_length, target_length):
  """rows: a list of rows, each a list of (source ids, target ids) that end in EOS."""
  shapes = [source_length] * 3 + [target_length] * 4
  batch = Batch(*(np.zeros((len(rows), length), np.int32) for length in shapes))
  for row, pairs in enumerate(rows):
    s = t = 0
    for segment, (source, target) in enumerate(pairs, start=1):
      here = slice(s, s + len(source))
      batch.source[row, here] = source
      batch.source_positions[row, here] = np.arange(len(source))
      batch.source_segments[row, here] = segment
      s += len(source)
      here = slice(t, t + len(target))
      batch.target_inputs[row, here] = [BOS, *target[:-1]]
      batch.target_outputs[row, here] = target
      batch.target_positions[row, here] = np.arange(len(target))
      batch.target_segments[row, here] = segment
      t += len(target)
  return batch


def random_pairs(count, vocabulary, longest, seed=0):
  """Pairs of random ids, each side 1 to `longest` pieces, the last one EOS."""
  random = np.random.default_rng(seed)

  def side():
    return [*random.integers(4, vocabulary, random.integers(0, longest)).tolist(), EOS]

  return [(side(), side()) for _ in range(count)]
