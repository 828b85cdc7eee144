"""The paper's corpus from its real TFDS builder, on small archives of the same form: prepared and trained on."""

import sys

import pytest
from helpers.tiny_run import devices, tiny_config
from helpers.wmt14_archives import write_wmt14_archives

from transformer_jax.data.vocabulary import load_vocabularies
from transformer_jax.train import train


def test_a_few_steps_on_wmt14(tmp_path, no_figures, monkeypatch):
  """Without TensorFlow, with a byte-pair vocabulary trained on the way; every test sentence is translated and scored."""
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
    decoding__method="greedy",
  )
  with devices(1):
    results = train(config, tmp_path / "run")
  assert "tensorflow" not in sys.modules
  assert load_vocabularies(tmp_path / "run").source.size == 320
  vocabulary = load_vocabularies(tmp_path / "run").target
  pieces = sum(len(ids) + 1 for ids in vocabulary.encode([pair.target for pair in splits["validation"]]))
  assert results["valid"]["pieces"] == pieces
  assert results["test"]["newstest2014"]["sentences"] == len(splits["test"])
