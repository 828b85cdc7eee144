"""Batches: every pair once, in its place, within the budget, in an order that seed and epoch alone decide."""

import collections
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from transformer_jax.data.batches import BatchPlan
from transformer_jax.data.buckets import choose_buckets
from transformer_jax.data.encoded import Encoded, Ragged
from transformer_jax.data.order import epoch_pairs, permutation
from transformer_jax.data.packing import pack
from transformer_jax.data.vocabulary import BOS, EOS, PAD
from transformer_jax.errors import UserError

MODES = {
  "packed": {"packing": True, "row_length": 40, "buckets": ()},
  "buckets": {"packing": False, "row_length": 0, "buckets": (8, 16, 24, 40)},
  "chosen": {"packing": False, "row_length": 0, "buckets": ()},
}


def ragged(lengths, numbers, generator) -> Ragged:
  """Rows that begin with their own number (its digits in base 1,000, so that a row can be told) and end in EOS."""
  rows = [
    [*divmod(number + 4_000, 1_000), *generator.integers(4, 900, max(0, length - 3)), EOS][-length:]
    for number, length in zip(numbers, lengths, strict=True)
  ]
  offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
  return Ragged(np.concatenate(rows).astype(np.uint16), offsets)


def corpus(pairs=700, longest=40, seed=0, parts=1, weights=None) -> Encoded:
  generator = np.random.default_rng(seed)
  targets = np.clip(generator.lognormal(2.2, 0.6, pairs), 1, longest).astype(np.int32)
  sources = np.clip(targets * generator.normal(0.9, 0.2, pairs), 1, longest).astype(np.int32)
  offsets = tuple(np.linspace(0, pairs, parts + 1).astype(int).tolist())
  numbers = range(pairs)
  return Encoded(
    ragged(sources, numbers, generator),
    ragged(targets, numbers, generator),
    sources,
    targets,
    {},
    offsets,
    weights or (1.0,) * parts,
  )


def plan(encoded, mode="packed", tokens=240, seed=0, **changes) -> BatchPlan:
  return BatchPlan(encoded, tokens=tokens, max_length=40, seed=seed, **{**MODES[mode], **changes})


def unpack(batch):
  """Reads the pairs back out of a batch with plain loops, checking every rule of its form."""
  pairs = []
  for row in range(len(batch.source)):
    segments = [segment for segment in sorted(set(batch.source_segments[row])) if segment]
    assert segments == list(range(1, len(segments) + 1))
    for segment in segments:
      (source_at,) = np.where(batch.source_segments[row] == segment)
      (target_at,) = np.where(batch.target_segments[row] == segment)
      for at in (source_at, target_at):
        assert at.tolist() == list(range(at[0], at[0] + len(at)))
      assert batch.source_positions[row, source_at].tolist() == list(range(len(source_at)))
      assert batch.target_positions[row, target_at].tolist() == list(range(len(target_at)))
      source, target = batch.source[row, source_at], batch.target_outputs[row, target_at]
      assert batch.target_inputs[row, target_at].tolist() == [BOS, *target[:-1]]
      assert source[-1] == target[-1] == EOS
      pairs.append((tuple(source.tolist()), tuple(target.tolist())))
    for name in ("source", "target"):
      padding = getattr(batch, f"{name}_segments")[row] == 0
      fields = [field for field in batch._fields if field.startswith(name)]
      assert all((getattr(batch, field)[row][padding] == PAD).all() for field in fields)
    assert set(batch.target_segments[row]) - {0} == set(segments)
  return pairs


def all_pairs(encoded):
  rows = zip(encoded.sources, encoded.targets, strict=True)
  return collections.Counter((tuple(source.tolist()), tuple(target.tolist())) for source, target in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_holds_every_pair_once(mode, shuffle):
  """Users hit 22, 24: every pair once, the short last batch included, in training and in evaluation."""
  encoded = corpus()
  made = plan(encoded, mode, shuffle=shuffle)
  for epoch in (0, 3):
    batches = list(made.epoch(epoch))
    assert sum((collections.Counter(unpack(batch)) for batch in batches), collections.Counter()) == all_pairs(encoded)
    short = [batch for batch in batches if not batch.source_segments[:, 0].all()]
    assert short, "the test needs a short batch"
    assert batches[: -len(made.shapes)] == [] or all(
      batch.source_segments[:, 0].all() for batch in batches[: -len(made.shapes)]
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tokens", [40, 240, 5_000])
def test_no_batch_exceeds_its_budget(mode, tokens):
  """Users hit 25: at most `tokens` places on each side, every batch of one of the plan's shapes, the largest first."""
  made = plan(corpus(300), mode, tokens=tokens)
  sizes = [rows * (source + target) for rows, source, target in made.shapes]
  assert len(made.shapes) <= 6
  for batch in made.epoch(0):
    assert batch.source.size <= tokens
    assert batch.target_outputs.size <= tokens
    assert (len(batch.source), batch.source.shape[1], batch.target_outputs.shape[1]) in made.shapes
  assert made.shapes[0][1:] == max(shape[1:] for shape in made.shapes) or sizes[0] == max(sizes)


@pytest.mark.parametrize("mode", MODES)
def test_the_order_depends_on_seed_and_epoch_alone(mode):
  """Users hit 22: another plan gives the same batches; another epoch or seed gives others."""

  def read(seed, epoch, rows_multiple=1):
    return [unpack(batch) for batch in plan(corpus(200), mode, seed=seed, rows_multiple=rows_multiple).epoch(epoch)]

  first = read(0, 0)
  assert read(0, 0) == first
  assert read(0, 1) != first
  assert read(1, 0) != first
  for rows_multiple in (2, 3, 8):
    assert read(0, 0, rows_multiple) == first


def test_the_order_is_fixed_for_good():
  """The same pairs come in the same order under every version of NumPy: a run that goes on must find its place."""
  assert permutation(8, 0, 1).tolist() == [7, 4, 5, 1, 6, 2, 0, 3]
  assert plan(corpus(pairs=30)).epoch(2).pairs(0)[:8].tolist() == [13, 16, 18, 15, 17, 11, 19, 0]
  assert plan(corpus(pairs=30), "buckets").epoch(2).pairs(0)[:8].tolist() == [26, 22, 28, 1, 8, 20, 4, 14]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_a_batch(mode, processes):
  """Users hit 22: the shares of all processes are the batch, so no pair is read twice."""
  epoch = plan(corpus(300), mode, rows_multiple=processes).epoch(0)
  for index in range(len(epoch)):
    shares = [epoch.rows(index, process, processes) for process in range(processes)]
    for whole, *parts in zip(epoch[index], *shares, strict=True):
      assert np.array_equal(whole, np.concatenate(parts))
  with pytest.raises(ValueError, match="rows cannot be dealt out"):
    epoch.rows(0, 0, 1_000)


def test_batches_can_be_read_in_any_order_by_several_threads():
  epoch = plan(corpus()).epoch(0)
  expected = [batch.source.tolist() for batch in epoch]
  with ThreadPoolExecutor(4) as pool:
    order = np.random.default_rng(0).permutation(len(epoch)).tolist()
    for index, batch in zip(order, pool.map(epoch.__getitem__, order), strict=True):
      assert batch.source.tolist() == expected[index]
  assert epoch[-1].source.tolist() == expected[-1]
  with pytest.raises(IndexError):
    epoch[len(epoch)]


def test_pairs_name_the_rows_of_the_corpus():
  encoded = corpus()
  epoch = plan(encoded).epoch(0)
  for index in range(len(epoch)):
    expected = [(encoded.sources[pair], encoded.targets[pair]) for pair in epoch.pairs(index).tolist()]
    assert unpack(epoch[index]) == [(tuple(source.tolist()), tuple(target.tolist())) for source, target in expected]


def test_evaluation_in_buckets_keeps_the_order_of_the_corpus():
  epoch = plan(corpus(), "buckets", shuffle=False, buckets=(40,)).epoch(0)
  assert np.concatenate([epoch.pairs(index) for index in range(len(epoch))]).tolist() == list(range(700))


def test_weights_say_how_often_a_corpus_is_passed_over():
  encoded = corpus(pairs=300, parts=3, weights=(2.0, 0.5, 1.25))
  for seed in (0, 1):
    counts = np.array(
      [np.bincount(epoch_pairs(encoded.corpus_offsets, encoded.weights, seed, e), minlength=300) for e in range(4)]
    )
    assert (counts[:, :100] == 2).all()
    assert (counts[:, 100:200].sum(axis=1) == 50).all()
    assert (counts[0:2, 100:200].sum(axis=0) == 1).all()  # the other half
    assert (counts[2:4, 100:200].sum(axis=0) == 1).all()
    assert (counts[:, 200:].sum(axis=0) == 5).all()  # four epochs of 1.25
  epoch = plan(encoded, seed=1).epoch(3)
  pairs = np.concatenate([epoch.pairs(index) for index in range(len(epoch))])
  assert np.array_equal(np.bincount(pairs, minlength=300), counts[3])
  with pytest.raises(UserError, match=r"data\.weights"):
    epoch_pairs((0, 10), (0.01,), 0, 0)


@pytest.mark.parametrize(
  ("mode", "changes", "message"),
  [
    ("packed", {"tokens": 39}, r"batch\.tokens = 39 is less than one row of 40 pieces"),
    ("buckets", {"tokens": 39}, r"batch\.tokens = 39"),
    ("chosen", {"tokens": 39}, r"batch\.tokens = 39"),
    ("packed", {"row_length": 20}, r"batch\.row_length = 20 is too short for the longest target \(40 pieces\)"),
    ("buckets", {"buckets": (8, 16)}, r"batch\.buckets = \(8, 16\) has no bucket for the longest pair \(40 pieces\)"),
    ("buckets", {"buckets": (0, 40)}, r"batch\.buckets"),
  ],
)
def test_what_does_not_fit_is_named(mode, changes, message):
  """Users hit 25: a budget or a row that some pair does not fit is refused at the start."""
  with pytest.raises(UserError, match=message):
    plan(corpus(), mode, **changes)


def test_evaluation_rows_hold_any_pair():
  assert plan(corpus(), row_length=20, shuffle=False).shapes[0].target_length == 40


@pytest.mark.parametrize("pairs", [1, 5, 5_000, 20_000])
def test_packing_fits_and_leaves_little_room(pairs):
  """Lengths like those of English and German sentences: at most 5 % target and 10 % source padding."""
  generator = np.random.default_rng(1)
  targets = np.clip(generator.lognormal(3.0, 0.6, pairs), 2, 128).astype(np.int32)
  sources = np.clip(targets * generator.normal(0.9, 0.15, pairs), 2, 128).astype(np.int32)
  row, rows = pack(sources, targets, 240, 256)
  filled = np.zeros((2, rows), np.int64)
  np.add.at(filled[0], row, sources)
  np.add.at(filled[1], row, targets)
  assert filled[0].max() <= 240
  assert filled[1].max() <= 256
  assert filled.min() > 0
  if pairs >= 5_000:
    assert 1 - filled[1].mean() / 256 <= 0.05
    assert 1 - filled[0].mean() / 240 <= 0.10


def test_packed_lengths_follow_the_corpus():
  generator = np.random.default_rng(1)
  targets = np.clip(generator.lognormal(3.0, 0.6, 20_000), 2, 128).astype(np.int32)
  sources = np.maximum(targets * 6 // 10, 1)
  offsets = (np.zeros(1, np.int64), np.cumsum(targets, dtype=np.int64))
  rows = Ragged(np.zeros(int(targets.sum()), np.uint16), np.concatenate(offsets))
  encoded = Encoded(rows, rows, sources, targets, {}, (0, 20_000), (1.0,))
  made = BatchPlan(encoded, tokens=4_096, packing=True, row_length=0, buckets=(), max_length=128, seed=0)
  _, source_length, target_length = made.shapes[0]
  assert 128 <= target_length <= 136
  assert 72 <= source_length <= 88
  padding = made.epoch(0).padding()
  assert padding["target"] <= 0.05
  assert padding["source"] <= 0.10


def test_padding_counts_places():
  epoch = plan(corpus()).epoch(0)
  batches = list(epoch)
  for side in ("source", "target"):
    segments = np.stack([getattr(batch, f"{side}_segments") for batch in batches])
    assert epoch.padding()[side] == pytest.approx((segments == 0).mean())
    assert epoch.padding()[f"{side}_pieces"] == segments.size
  assert epoch.padding()["pairs"] == 700


def test_chosen_buckets_beat_even_ones():
  """Against the exact cost of other choices: the best single box, and boxes of even steps."""
  encoded = corpus(pairs=5_000)
  sources, targets = encoded.source_lengths, encoded.target_lengths

  def computed(buckets):
    made = BatchPlan(encoded, tokens=400, packing=False, row_length=0, buckets=buckets, max_length=40, seed=0)
    padding = made.epoch(0).padding()
    return padding["source_pieces"] + padding["target_pieces"]

  boxes = choose_buckets(sources, targets, 400)
  assert len(boxes) <= 6
  assert computed(()) < 0.9 * computed((8, 16, 24, 32, 36, 40))
  assert computed(()) < 0.6 * computed((40,))
