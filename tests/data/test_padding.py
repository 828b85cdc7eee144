"""Packing real text: at most 5 % target and 10 % source padding."""

from pathlib import Path

import pytest

from transformer_jax.config import default_config
from transformer_jax.data.batches import BatchPlan
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.encoded import encode_corpora
from transformer_jax.data.vocabulary import build_vocabularies

MULTI30K = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"


@pytest.fixture(scope="module")
def encoded():
  if not MULTI30K.exists():
    pytest.skip(f"{MULTI30K} is not there")
  config = default_config()
  config.data.folder = str(MULTI30K)
  config.vocabulary.size = 8_000
  config.vocabulary.training_pairs = 5_000
  corpus = open_corpus("text:train.en,train.de", "train", config.data)
  return encode_corpora([corpus], build_vocabularies(config.vocabulary, [corpus]), max_length=128)


@pytest.mark.parametrize("row_length", [96, 0])
def test_multi30k_rows_are_full(encoded, row_length):
  plan = BatchPlan(encoded, tokens=4_096, packing=True, row_length=row_length, buckets=(), max_length=128, seed=0)
  padding = plan.epoch(0).padding()
  print(plan.shapes, padding)
  assert padding["pairs"] == len(encoded) > 28_000
  assert padding["target"] <= 0.05
  assert padding["source"] <= 0.10
