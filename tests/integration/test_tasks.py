"""Whole runs of the tasks beside translation, and their commands."""

import json
import lzma
import math
import subprocess
import sys

import numpy as np
import pytest

from transformer_jax.classify import main as classify
from transformer_jax.config import default_config
from transformer_jax.errors import UserError
from transformer_jax.generate import main as generate
from transformer_jax.loading import load_reader
from transformer_jax.train import train
from transformer_jax.translate import main as translate

pytestmark = pytest.mark.usefixtures("one_device")

POEM = "the cat sat on the mat, the dog lay on the log.\n" * 40


def task_config(tmp_path, task, **fields):
  config = default_config()
  config.task = task
  config.data.folder, config.data.cache = str(tmp_path), str(tmp_path / "cache")
  config.model.update({"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "norm": "pre"})
  config.optimizer.update({"schedule": "constant", "learning_rate": 0.01, "warmup_steps": 1})
  config.training.update({"steps": 40, "evaluate_every": 20, "average": 1, "label_smoothing": 0.0})
  config.training.compilation_cache = False
  for name, value in fields.items():
    section, _, last = name.partition("__")
    config[section][last] = value
  return config


def language_model(tmp_path):
  (tmp_path / "poem.txt").write_text(POEM)
  config = task_config(tmp_path, "lm", batch__row_length=16, batch__tokens=128, vocabulary__kind="characters")
  config.data.train, config.data.valid = ("stream:poem.txt@0:0.9",), "stream:poem.txt@0.9:1"
  config.data.test = ("poem=stream:poem.txt@0.9:1",)
  return config


def test_a_language_model(tmp_path, capsys):
  """It learns, its loss is that of the whole text, a prompt is continued, and the draw can be repeated."""
  config = language_model(tmp_path)
  results = train(config, tmp_path / "run")
  test = results["test"]["poem"]
  held_out = len(POEM) - int(0.9 * len(POEM))
  assert test["pieces"] == test["characters"] == held_out == results["valid"]["pieces"]
  assert test["nll"] == pytest.approx(results["valid"]["nll"], rel=1e-4) and test["nll"] < 1.5
  assert test["bits_per_character"] == pytest.approx(test["nll"] / math.log(2))
  capsys.readouterr()
  flags = [f"--workdir={tmp_path / 'run'}", "--prompt=the ", "--pieces=40"]  # beyond the window of 16
  generate(flags)
  first = capsys.readouterr().out
  generate(flags)
  assert capsys.readouterr().out == first and first.startswith("the ") and len(first) == 4 + 40 + 1
  generate([*flags, "--seed=1"])
  assert capsys.readouterr().out != first
  with pytest.raises(UserError, match='task "lm"'):
    translate([f"--workdir={tmp_path / 'run'}"])
  generator = load_reader(tmp_path / "run", "lm", {"decoding.top_k": 1})
  assert generator.generate("the ", 30, seed=0) == generator.generate("the ", 30, seed=5)  # the likeliest each time


def labelled(tmp_path):
  random = np.random.default_rng(0)
  words = {"good": ["fine", "great", "nice"], "bad": ["dull", "poor", "sad"]}
  for name, count in (("train", 120), ("dev", 30), ("test", 40)):
    labels = random.choice(["good", "bad"], count, p=[0.6, 0.4])
    lines = [f"{label} a {random.choice(words[label])} film number {random.integers(9)}\n" for label in labels]
    (tmp_path / f"reviews.{name}").write_text("".join(lines))
  config = task_config(
    tmp_path,
    "classify",
    batch__packing=False,
    batch__tokens=256,
    vocabulary__kind="words",
    vocabulary__target_kind="words",
    vocabulary__shared=False,
    data__max_length=16,
  )
  config.data.train, config.data.valid = ("labelled:reviews.train",), "labelled:reviews.dev"
  config.data.test = ("labelled:reviews.test",)
  return config


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_classifier(tmp_path, pooling, monkeypatch):
  """It learns which words make which label; baselines beside it; the command labels the test set alike."""
  config = labelled(tmp_path)
  config.model.pooling = pooling
  results = train(config, tmp_path / "run")
  test = results["test"]["test"]
  assert test["accuracy"] == test["macro_f1"] == 100.0 and test["sentences"] == 40
  lines = (tmp_path / "reviews.test").read_text().splitlines()
  references = [line.split(" ")[0] for line in lines]
  assert test["majority_accuracy"] == pytest.approx(100 * references.count("good") / 40)
  assert test["naive_bayes_accuracy"] > 90
  (tmp_path / "in.txt").write_text("".join(line.partition(" ")[2] + "\n" for line in lines))
  classify([f"--workdir={tmp_path / 'run'}", f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"])
  assert (tmp_path / "out.txt").read_text() == (tmp_path / "run" / "labels" / "test.txt").read_text()
  (tmp_path / "in.txt").write_text("a fine film\n\n  \na sad film\n")
  classify([f"--workdir={tmp_path / 'run'}", f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"])
  assert (tmp_path / "out.txt").read_text() == "good\n\n\nbad\n"  # what is blank has no label
  metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  assert [line["accuracy"] for line in metrics if line["split"] == "valid"][-1] == 100.0


def test_a_label_is_one_word(tmp_path):
  """A corpus of pairs is no corpus of labels; no run directory is left."""
  config = labelled(tmp_path)
  (tmp_path / "pairs.tsv").write_text("a film\tein Film\n")
  config.data.valid = "tsv:pairs.tsv"
  with pytest.raises(UserError, match=r"^data.valid: .*one word"):
    train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_a_classifier_starts_from_a_masked_language_model(tmp_path):
  """Embedding and encoder are taken over, the rest is new; a run without anything in common is refused."""
  config = labelled(tmp_path)
  for name in ("train", "dev"):
    lines = (tmp_path / f"reviews.{name}").read_text().splitlines()
    (tmp_path / f"{name}.txt").write_text("".join(line.partition(" ")[2] + "\n" for line in lines))
  pretraining = task_config(tmp_path, "mlm", vocabulary__kind="words", data__max_length=16, batch__tokens=256)
  pretraining.data.train, pretraining.data.valid = ("lines:train.txt",), "lines:dev.txt"
  pretraining.data.test = ()
  results = train(pretraining, tmp_path / "mlm")
  assert results["valid"]["nll"] < 2.5 and results["test"] == {}
  config.init_from = str(tmp_path / "mlm")
  config.training.steps = config.training.evaluate_every = 1
  config.optimizer.learning_rate = 1e-9
  train(config, tmp_path / "fine")
  before, after = (load_reader(tmp_path / name, task).params for name, task in (("mlm", "mlm"), ("fine", "classify")))
  np.testing.assert_allclose(after["source_embedding"], before["source_embedding"], atol=1e-6)
  assert after.keys() == {"source_embedding", "encoder", "classifier"}
  other = language_model(tmp_path)
  other.init_from = str(tmp_path / "mlm")
  with pytest.raises(UserError, match="nothing in common"):
    train(other, tmp_path / "lm")
  assert not (tmp_path / "lm").exists()


PHONEMES = {"c": "tʃ", "a": "aː", "t": "t", "o": "o"}


def test_spelling_to_phonemes(tmp_path, capsys):
  """Characters become symbols of several letters; the error rates are those of the translations that are left behind."""
  random = np.random.default_rng(0)
  words = ["".join(random.choice(list(PHONEMES), random.integers(1, 6))) for _ in range(100)]
  lines = [f"{word}\t{' '.join(PHONEMES[letter] for letter in word)}\n" for word in words]
  with lzma.open(tmp_path / "words.tsv.xz", "wt", encoding="utf-8") as file:
    file.writelines(lines)
  config = task_config(tmp_path, "translate", batch__tokens=128, data__max_length=16, model__share_embeddings="target")
  config.vocabulary.update({"kind": "characters", "target_kind": "words", "shared": False, "size": 100})
  config.data.train, config.data.valid = ("tsv:words.tsv.xz@0:0.8",), "tsv:words.tsv.xz@0.8:0.9"
  config.data.test = ("words=tsv:words.tsv.xz@0.9:1",)
  config.decoding.update({"method": "greedy", "max_extra": 4})
  config.evaluation.update({"metrics": ("per", "wer"), "samples": 0})
  test = train(config, tmp_path / "run")["test"]["words"]
  assert list(test) == ["per", "wer", "sentences", "exact_match"] and test["sentences"] == 10
  symbols = {json.loads(line) for line in (tmp_path / "run" / "vocabulary.target.txt").read_text().splitlines()[1:]}
  assert symbols == set(PHONEMES.values())
  said = (tmp_path / "run" / "translations" / "words.txt").read_text().splitlines()
  right = [line.rstrip("\n").split("\t")[1] for line in lines[90:]]
  assert all(set(line.split()) <= symbols for line in said) and any(said)
  assert test["wer"] == 100 - test["exact_match"] == pytest.approx(10 * sum(map(str.__ne__, said, right)))
  assert (test["per"] == 0) == (test["wer"] == 0)
  assert "PER" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["classify", "generate"])
def test_mistakes_are_one_line(tmp_path, command):
  """Exit status 2."""
  done = subprocess.run(
    [sys.executable, "-m", f"transformer_jax.{command}", f"--workdir={tmp_path / 'none'}"],
    capture_output=True,
    text=True,
    input="",
  )
  assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
