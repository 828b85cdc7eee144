"""Batches of pairs changed into those of the encoder's tasks."""

import numpy as np
from helpers.batches_of import random_pairs

from transformer_jax.data.batches import BatchPlan
from transformer_jax.data.changed import MASK, label_plan, masking_plan
from transformer_jax.data.encoded import Encoded, Ragged

VOCABULARY = 50


def plan_of(pairs, packing):
  def ragged(rows):
    lengths = [len(row) for row in rows]
    return Ragged(np.concatenate(rows).astype(np.uint16), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

  sources, targets = zip(*pairs, strict=True)
  lengths = (np.array([len(row) for row in side], np.int32) for side in (sources, targets))
  encoded = Encoded(ragged(sources), ragged(targets), *lengths, {}, (0, len(pairs)), (1.0,))
  return BatchPlan(
    encoded, tokens=400, packing=packing, row_length=0, buckets=(), max_length=20, seed=3, rows_multiple=2
  )


def test_a_label_is_the_one_target_piece():
  """The text stays, or begins with BOS; label and text belong together."""
  pairs = [(source, [4 + number % 7, 2]) for number, (source, _) in enumerate(random_pairs(90, VOCABULARY, 20))]
  wanted = sorted((tuple(source), target[0]) for source, target in pairs)
  plan = plan_of(pairs, packing=False)
  for first in (False, True):
    changed, found = label_plan(plan, first), []
    epoch = changed.epoch(0)
    for number in range(len(epoch)):
      batch = epoch[number]
      assert (batch.source.shape[0], batch.source.shape[1], batch.target_inputs.shape[1]) in changed.shapes
      for row in range(len(batch.source)):
        text = batch.source[row][batch.source_segments[row] > 0].tolist()
        if not text:
          assert batch.target_segments[row, 0] == 0
          continue
        if first:
          assert text.pop(0) == 1
          np.testing.assert_array_equal(batch.source_positions[row, : len(text) + 1], np.arange(len(text) + 1))
        assert batch.target_segments[row, 0] == 1
        found.append((tuple(text), int(batch.target_outputs[row, 0])))
    assert sorted(found) == wanted


def test_masked_pieces_are_those_to_recover():
  """About 15 % are to be recovered: 80 % of them masked, 10 % others, 10 % as they were; all else is left as it is."""
  plan = masking_plan(plan_of(random_pairs(3_000, VOCABULARY, 20), packing=True), VOCABULARY, seed=3)
  epoch, pieces, chosen, masked, kept = plan.epoch(0), 0, 0, 0, 0
  for number in range(len(epoch)):
    batch = epoch[number]
    real, wanted = batch.source_segments > 0, batch.target_segments > 0
    assert not (wanted & ~real).any() and batch.source.shape == batch.target_outputs.shape
    np.testing.assert_array_equal(batch.source[real & ~wanted], batch.target_outputs[real & ~wanted])
    pieces, chosen = pieces + real.sum(), chosen + wanted.sum()
    masked += (batch.source[wanted] == MASK).sum()
    kept += (batch.source[wanted] == batch.target_outputs[wanted]).sum()
  assert abs(chosen / pieces - 0.15) < 0.01
  assert abs(masked / chosen - 0.8) < 0.03 and abs(kept / chosen - 0.1 - 0.1 / 46) < 0.03


def test_masks_differ_between_epochs_and_can_be_drawn_again_by_any_process():
  """Users hit 22."""
  plan = masking_plan(plan_of(random_pairs(300, VOCABULARY, 20), packing=True), VOCABULARY, seed=3)
  epoch = plan.epoch(1)
  first = epoch[0]
  halves = [epoch.rows(0, process, 2) for process in range(2)]
  for whole, *parts in zip(first, *halves, strict=True):
    np.testing.assert_array_equal(whole, np.concatenate(parts))
  again = masking_plan(plan.plan, VOCABULARY, seed=3).epoch(1)[0]
  np.testing.assert_array_equal(again.source, first.source)
  assert not np.array_equal(plan.epoch(0)[0].target_segments, first.target_segments)
