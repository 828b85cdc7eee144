"""Running text in windows: every piece once, whatever the epoch."""

import numpy as np
import pytest

from transformer_jax.data.streams import StreamPlan, read_stream
from transformer_jax.errors import UserError

IDS = np.random.default_rng(0).integers(4, 99, 101)


def predicted(plan, epoch):
  """(what was seen before, what is predicted) of every place, as (previous piece, piece)."""
  batches = plan.epoch(epoch)
  found = []
  for number in range(len(batches)):
    batch = batches[number]
    real = batch.target_segments > 0
    found += zip(batch.target_inputs[real].tolist(), batch.target_outputs[real].tolist(), strict=True)
  return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("length", [101, 96, 8, 3, 1])
def test_every_piece_is_predicted_once_in_each_epoch(shuffle, length):
  """Users hit 22, 24: the last window and the last batch are short, and count in full."""
  plan = StreamPlan(IDS[:length], context=8, tokens=35, seed=1, rows_multiple=3, shuffle=shuffle)
  assert plan.shapes == [(6, 1, 8)] and plan.rows == 4
  expected = sorted(zip([1, *IDS[: length - 1].tolist()], IDS[:length].tolist(), strict=True))
  for epoch in range(3):
    assert sorted(predicted(plan, epoch)) == expected
  if not shuffle:
    assert [output for _, output in predicted(plan, 0)] == IDS[:length].tolist()


def test_epochs_differ_and_can_be_made_again():
  plan = StreamPlan(IDS, context=8, tokens=32, seed=1, rows_multiple=1, shuffle=True)
  assert predicted(plan, 0) != predicted(plan, 1)
  assert predicted(plan, 1) == predicted(StreamPlan(IDS, 8, 32, 1, 1, True), 1)
  assert predicted(plan, 0) != predicted(StreamPlan(IDS, 8, 32, 2, 1, True), 0)


def test_processes_hold_the_batch_together():
  """Users hit 22: the rows of two processes are those of one."""
  plan = StreamPlan(IDS, context=8, tokens=32, seed=1, rows_multiple=2, shuffle=True)
  epoch = plan.epoch(0)
  for number in range(len(epoch)):
    parts = [epoch.rows(number, process, 2) for process in range(2)]
    for whole, *halves in zip(epoch[number], *parts, strict=True):
      np.testing.assert_array_equal(whole, np.concatenate(halves))


def test_windows_stand_alone():
  """Positions start at 0 in each window, and all its pieces belong to one segment."""
  batch = StreamPlan(IDS, 8, 32, 1, 1, False).epoch(0)[0]
  np.testing.assert_array_equal(batch.target_positions, np.tile(np.arange(8), (4, 1)))
  assert (batch.target_segments == 1).all()


def test_a_part_of_a_file(tmp_path):
  text = "äbcdefghij" * 10
  (tmp_path / "book.txt").write_text(text, encoding="utf-8")
  folder = str(tmp_path)
  assert read_stream("stream:book.txt", folder) == text
  parts = [read_stream(f"stream:book.txt@{part}", folder) for part in ("0:0.9", "0.9:1")]
  assert "".join(parts) == text and len(parts[0]) == 90
  for spec, words in (
    ("stream:other.txt", "no file"),
    ("stream:book.txt@0.5", "no file"),  # a name may hold an @
    ("stream:book.txt@0.5:0.2", "rise"),
    ("stream:book.txt@shuffled:0:0.5", "cannot be shuffled"),
    ("text:a,b", "stream:FILE"),
  ):
    with pytest.raises(UserError, match=words):
      read_stream(spec, folder)
  (tmp_path / "bad.txt").write_bytes(b"abc\xff")
  with pytest.raises(UserError, match="line 1: not valid UTF-8"):
    read_stream("stream:bad.txt", folder)
