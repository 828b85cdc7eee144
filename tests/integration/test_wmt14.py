"""The paper's corpus from its real TFDS builder, on small archives of the same form: prepared and trained on."""

import sys

import pytest
from helpers.tiny_run import devices, tiny_config
from helpers.wmt14_archives import write_wmt14_archives

from transformer_jax import train as training
from transformer_jax.data.vocabulary import load_vocabularies
from transformer_jax.train import train

RESULTS = {
  "valid": {"perplexity": 1.0, "nll": 0.0},
  "test": {},
  "time": {"train_seconds": 1.0, "target_tokens_per_second": 1.0, "decode_sentences_per_second": 1.0},
}


def test_a_few_steps_on_wmt14(tmp_path, monkeypatch, train_steps, batches_seen):
  """Without TensorFlow, with a byte-pair vocabulary trained on the way; every pair is where it belongs.

  Users hit 25, 26: packed batches are within the budget and of one shape, so there is one program.
  """
  if "tensorflow" in sys.modules:
    pytest.skip("TensorFlow is installed")
  monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
  splits = write_wmt14_archives(tmp_path / "cache" / "tfds", train=120, held_out=6)
  config = tiny_config(
    tmp_path,
    data__folder="",
    data__train=("tfds:wmt14_translate/de-en",),
    data__valid="tfds:wmt14_translate/de-en",
    data__test=("newstest2014=tfds:wmt14_translate/de-en",),
    data__max_length=64,
    vocabulary__kind="bpe",
    vocabulary__size=320,
    batch__tokens=256,
    training__steps=3,
  )
  ended = []  # what the end of the run is given; translating is tested elsewhere
  monkeypatch.setattr(training, "finish_run", lambda *arguments: ended.extend(arguments) or RESULTS)
  with devices(1):
    train(config, tmp_path / "run")
  _, _, _, _, data, place, valid, averaged = ended
  assert "tensorflow" not in sys.modules
  assert load_vocabularies(tmp_path / "run").source.size == 320
  vocabulary = load_vocabularies(tmp_path / "run").target
  pieces = sum(len(ids) + 1 for ids in vocabulary.encode([pair.target for pair in splits["validation"]]))
  assert valid["pieces"] == pieces
  assert (len(data.train), place.step, averaged) == (len(splits["train"]), 3, [3])
  (test,) = data.tests
  assert test.name == "newstest2014"
  assert sorted(zip(test.sources, test.references, strict=True)) == sorted(splits["test"])
  assert all(rows * max(source_length, target_length) <= 256 for rows, source_length, target_length in batches_seen)
  (train_step,) = train_steps
  assert train_step._cache_size() == len(data.train_plan.shapes) == 1
