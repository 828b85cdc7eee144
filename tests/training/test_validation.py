"""The validation loss of a whole set, against the loss of its pairs one by one."""

import jax
import numpy as np
import pytest
from helpers.batches_of import packed_batch, random_pairs
from helpers.models import small_config
from helpers.params import random_params

from transformer_jax.data.batches import BatchPlan
from transformer_jax.data.encoded import Encoded, Ragged
from transformer_jax.model.transformer import Transformer
from transformer_jax.training import step as programs
from transformer_jax.training.validation import mean_loss

VOCABULARY, LONGEST = 19, 8
MODEL = small_config(
  source_vocabulary=VOCABULARY,
  target_vocabulary=VOCABULARY,
  num_layers=1,
  d_model=16,
  d_ff=32,
  num_heads=2,
  dropout=0.3,  # must not be felt
)


def encoded_pairs(pairs):
  def ragged(rows):
    lengths = [len(row) for row in rows]
    return Ragged(np.concatenate(rows).astype(np.uint16), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

  sources, targets = zip(*pairs, strict=True)
  lengths = (np.array([len(row) for row in side], np.int32) for side in (sources, targets))
  return Encoded(ragged(sources), ragged(targets), *lengths, {}, (0, len(pairs)), (1.0,))


@pytest.fixture(scope="module")
def model():
  """A model, its parameters (large enough that pairs differ in loss) and the sums of 41 pairs, each alone in a batch."""
  model, pairs = Transformer(MODEL), random_pairs(41, VOCABULARY, LONGEST)
  params = random_params(model, gain=2.0)
  run = jax.jit(lambda batch: model.apply({"params": params}, batch))
  alone = []
  for source, target in pairs:
    logits = np.asarray(run(packed_batch([[(source, target)]], LONGEST, LONGEST)))[0].astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    right = log_probabilities[np.arange(len(target)), target]
    wrong = (log_probabilities[: len(target)].sum(axis=-1) - right) / (VOCABULARY - 1)
    alone.append((-(0.9 * right + 0.1 * wrong).sum(), -right.sum(), len(target)))
  return model, params, pairs, np.sum(alone, axis=0)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize(
  "batching",
  [
    {"packing": True, "row_length": 20, "buckets": ()},
    {"packing": False, "row_length": 0, "buckets": (4, 8)},
  ],
  ids=["packed", "buckets"],
)
def test_the_last_incomplete_batch_counts_in_full(model, batching, devices):
  """Users hit 24: whatever the batches and the devices, the mean over all pieces of all pairs, each once."""
  model, params, pairs, (loss, nll, pieces) = model
  mesh = programs.data_mesh(jax.devices()[:devices])
  shardings = programs.state_shardings(jax.eval_shape(lambda: params), mesh, False)
  eval_step = programs.compile_eval_step(model, 0.1, shardings, mesh)
  params = jax.device_put(params, shardings)
  plan = BatchPlan(
    encoded_pairs(pairs), tokens=72, max_length=LONGEST, seed=0, rows_multiple=devices, shuffle=False, **batching
  )
  epoch = plan.epoch(0)
  filled = [int((batch.target_segments.max(axis=1) > 0).sum()) for batch in epoch]
  assert len(epoch) > 2 and filled[-1] < filled[0]  # there is a last, incomplete one
  found = mean_loss(eval_step, params, plan, mesh)
  assert found["pieces"] == pieces
  assert found["nll"] == pytest.approx(nll / pieces, rel=1e-5)
  assert found["loss"] == pytest.approx(loss / pieces, rel=1e-5)


def test_pieces_are_counted_beyond_what_float32_can_hold(model):
  """The sums of the batches are added up in float64: 2^24 + 1 is not a float32."""
  _, params, pairs, _ = model
  plan = BatchPlan(
    encoded_pairs(pairs), tokens=72, packing=True, row_length=20, buckets=(), max_length=LONGEST, seed=0, shuffle=False
  )
  batches = len(plan.epoch(0))
  sums = programs.Sums(*(np.float32(value) for value in (1.0, 2.0, 2**24 - 1)))
  found = mean_loss(lambda params, batch: sums, params, plan, programs.data_mesh(jax.devices()[:1]))
  assert found["pieces"] == batches * (2**24 - 1)
