"""Complete runs: what lies in the run directory, and every kind of corpus, vocabulary and batch on the way there."""

import json
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import sacrebleu
from helpers.tiny_run import devices, files_of, tiny_config, write_config_file

from transformer_jax import evaluate, score, translate
from transformer_jax import train as training
from transformer_jax.commands import run_command
from transformer_jax.data.vocabulary import load_vocabularies
from transformer_jax.errors import UserError
from transformer_jax.main import main
from transformer_jax.train import train
from transformer_jax.training.checkpoints import load_final
from transformer_jax.training.progress import read_metrics
from transformer_jax.training.resuming import environment

EPOCH = 7  # batches of the tiny corpus


def lines_of(path):
  return path.read_text().splitlines()


def losses(workdir):
  """Step → (loss, nll, gradient norm) of the training lines."""
  lines = read_metrics(workdir / "metrics.jsonl")
  return {x["step"]: (x["loss"], x["nll"], x["gradient_norm"]) for x in lines if x["split"] == "train"}


# ----------------------------------------------------------------------------------------------------- what a run leaves


def test_the_run_directory_holds_what_is_promised(finished):
  workdir = finished.workdir
  found = {str(path.relative_to(workdir)) for path in workdir.rglob("*") if path.is_file()}
  assert found >= {
    "config.json",
    "vocabulary.txt",
    "metrics.jsonl",
    "samples.md",
    "results.json",
    "figures/attention.png",
    "figures/training.png",
    "translations/first.txt",
    "translations/second.txt",
    "checkpoints/15/seal.json",
    "checkpoints/16/seal.json",
    "checkpoints/final/seal.json",
  }
  assert any(name.startswith("tensorboard/events") for name in found)
  assert not [name for name in found if name.endswith((".tmp", ".partial")) or ".writing" in name]
  assert json.loads((workdir / "config.json").read_text()) == json.loads(json.dumps(finished.config.to_dict()))
  for name in ("attention.png", "training.png"):
    assert (workdir / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_results_have_the_fields_that_everything_after_training_reads(finished):
  results = finished.results
  params, metadata = load_final(finished.workdir)
  assert results["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
  assert (results["steps"], results["epochs"], results["averaged_steps"]) == (16, 16 // EPOCH, [15, 16])
  assert metadata == {"averaged_steps": [15, 16], "steps": 16}
  assert results["valid"]["perplexity"] == pytest.approx(math.exp(results["valid"]["nll"]))
  clock = {"train_seconds", "target_tokens_per_second", "decode_sentences_per_second"}
  assert results["time"].keys() == clock | environment().keys()
  assert all(results["time"][name] > 0 for name in clock)
  fields = {"bleu", "chrf", "signature", "chrf_signature", "sentences", "exact_match"}
  assert results["test"].keys() == fields | {"first", "second"}
  assert results["test"]["first"] == {name: results["test"][name] for name in fields}


def test_metrics_count_every_step_and_every_piece_once(finished):
  lines = read_metrics(finished.workdir / "metrics.jsonl")
  assert [line["step"] for line in lines if line["split"] == "train"] == [*range(1, 17)]
  assert [line["step"] for line in lines if line["split"] == "valid"] == [5, 10, 15, 16]
  pieces = [line["pieces"] for line in lines if line["split"] == "train"]
  folder = finished.config.data.folder
  expected = {
    name: sum(len(text.split(" ")) + 1 for text in lines_of(Path(folder, f"{name}.de"))) for name in ("train", "valid")
  }
  assert sum(pieces[:EPOCH]) == sum(pieces[EPOCH : 2 * EPOCH]) == expected["train"]
  assert finished.results["valid"]["pieces"] == expected["valid"]
  rates = [line["learning_rate"] for line in lines if line["split"] == "train"]
  assert rates[:5] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])
  assert lines[0]["loss"] > lines[-2]["loss"]


def test_the_scores_are_sacrebleus_of_the_translations_in_the_run_directory(finished):
  """Users hit 17: against the references as they stand in the file, no sentence left out."""
  folder, workdir = finished.config.data.folder, finished.workdir
  references = lines_of(Path(folder, "test.de"))
  for name in ("first", "second"):
    translations = lines_of(workdir / "translations" / f"{name}.txt")
    assert all(translations)
    scores = finished.results["test"][name]
    assert scores["sentences"] == len(translations) == len(references) == 7
    assert scores["bleu"] == sacrebleu.corpus_bleu(translations, [references]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(translations, [references]).score
  samples = (workdir / "samples.md").read_text()
  for line in [*references, *lines_of(workdir / "translations" / "first.txt")]:
    assert line in samples


def command(main_of, *arguments):
  with pytest.raises(SystemExit) as end:
    run_command(main_of, [str(argument) for argument in arguments])
  return end.value.code


def test_translating_outside_the_run_repeats_the_test_translations(finished, tmp_path, capfd):
  """Users hit 13: one function, one configuration: the same bytes, and the same BLEU as in results.json."""
  folder, output = finished.config.data.folder, tmp_path / "out"
  flags = f"--workdir={finished.workdir}", f"--output={output}"
  assert command(translate.main, *flags, f"--input={folder}/test.en") == 0
  assert output.read_bytes() == (finished.workdir / "translations" / "first.txt").read_bytes()
  output.unlink()
  assert command(evaluate.main, *flags, f"--source={folder}/test.en", f"--reference={folder}/test.de", "--json") == 0
  assert json.loads(capfd.readouterr().out) == finished.results["test"]["first"]
  assert output.read_bytes() == (finished.workdir / "translations" / "first.txt").read_bytes()


def test_the_loss_of_validation_is_what_score_gives(finished, tmp_path):
  """The forced-decoding scores of the validation pairs add up to the validation loss in results.json."""
  folder = finished.config.data.folder
  output = tmp_path / "scores"
  flags = f"--workdir={finished.workdir}", f"--source={folder}/valid.en", f"--target={folder}/valid.de"
  assert command(score.main, *flags, f"--output={output}") == 0
  valid = finished.results["valid"]
  assert -sum(map(float, lines_of(output))) == pytest.approx(valid["nll"] * valid["pieces"], rel=1e-5)


# ---------------------------------------------------------------------------------- devices, parts, batches, vocabularies


def test_several_devices_and_parts_give_the_same_losses(corpus, tmp_path, no_figures):
  """Users hit 5, 22: four devices, each working off its rows in two parts, against one device; the same translations."""
  for number, parts in ((1, 1), (4, 2)):
    config = tiny_config(corpus, model__dropout=0.0, training__steps=4, training__accumulate=parts)
    with devices(number):
      train(config, tmp_path / str(number))
  one, four = losses(tmp_path / "1"), losses(tmp_path / "4")
  assert one.keys() == four.keys() == {1, 2, 3, 4}
  np.testing.assert_allclose(list(four.values()), list(one.values()), rtol=1e-5)
  translations = [tmp_path / name / "translations" / "first.txt" for name in ("1", "4")]
  assert len({path.read_bytes() for path in translations}) == 1 and all(lines_of(translations[0]))


def test_buckets_mixed_corpora_and_separate_vocabularies(
  finished, corpus, tmp_path, monkeypatch, train_steps, batches_seen
):
  """Users hit 25, 26: one program for each shape, the largest first, and no batch over its budget."""
  folder = tmp_path / "corpus"
  folder.mkdir()
  for path in corpus.glob("*.*"):  # sources split into pieces, targets as they are
    change = (lambda text: re.sub("(?<=[a-z])e", "@@ e", text)) if path.suffix == ".en" else str
    (folder / path.name).write_text(change(path.read_text()))
  config = tiny_config(
    folder,
    data__cache=finished.config.data.cache,
    data__train=("text:train.en,train.de", "tsv:train.tsv", "copy:pairs=64,heldout=2,length=6"),
    data__weights=(0.5, 1, 0.25),
    data__test=("tsv:test.tsv",),
    vocabulary__shared=False,
    vocabulary__kind="subwords",
    vocabulary__target_kind="characters",
    vocabulary__target_size=20,
    model__share_embeddings="target",
    batch__packing=False,
    batch__buckets=(16, 64),
    data__max_length=64,
    batch__tokens=256,
    training__steps=20,
    training__evaluate_every=0,
  )
  ended = []
  monkeypatch.setattr(training, "finish_run", lambda *arguments: ended.extend(arguments) or finished.results)
  with devices(1):
    train(config, tmp_path / "run")
  _, _, _, _, data, place, _, averaged = ended
  vocabularies = load_vocabularies(tmp_path / "run")
  assert not vocabularies.shared and vocabularies.target.size == 20
  text = lines_of(corpus / "train.en")
  assert vocabularies.source.decode(vocabularies.source.encode(lines_of(folder / "train.en"))) == text
  assert load_final(tmp_path / "run")[0].keys() == {"source_embedding", "target_embedding", "encoder", "decoder"}
  assert [(test.name, len(test.sources)) for test in data.tests] == [("test", 7)]
  (train_step,) = train_steps
  shapes = list(dict.fromkeys(batches_seen))
  assert shapes == [(4, 64, 64), (16, 16, 16)] and batches_seen[:2] == shapes
  assert train_step._cache_size() == len(shapes)
  # An epoch of 32 + 64 + 16 pairs ends with a validation and a checkpoint, and so does the run.
  lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
  validated = [line["step"] for line in lines if line["split"] == "valid"]
  assert 112 / 16 <= validated[0] < 20 and validated[1:] == [20] and place.epoch == 1
  assert averaged == validated


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"model__d_ff": 64},
      r"init_from .* has another model: decoder/layer_0/feed_forward/.* is \(32,\) there and \(64,\) ",
    ),
    ({"model__num_layers": 2}, r"has another model: .*layer_1/.* is absent there"),
    ({"init_from": "nowhere"}, "nowhere"),
  ],
)
def test_fine_tuning_of_another_model_is_refused(finished, corpus, tmp_path, change, message):
  config = tiny_config(corpus, **{"init_from": str(finished.workdir), **change})
  with devices(1), pytest.raises(UserError, match=message) as error:
    train(config, tmp_path / "new" / "run")
  assert "\n" not in str(error.value)
  assert not (tmp_path / "new" / "run").exists()


# ---------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"data__train": ("text:train.en,nowhere.de",)}, "there is no file .*nowhere.de"),
    ({"data__train": ("txt:train.en,train.de",)}, "did you mean 'text'"),
    ({"data__valid": "text:valid.en,test.de"}, "has 11 lines, but .* has 7"),
    ({"data__test": ("text:test.en,test.de", "tsv:test.tsv")}, "two test sets are called 'test'"),
    ({"data__test": ("tsv:empty",)}, "empty"),
    ({"data__valid": "tsv:empty"}, "empty"),
    ({"data__train": ("tsv:empty",)}, "empty"),
    ({"vocabulary__file": "nowhere.txt"}, "vocabulary.file: there is no file .*nowhere.txt"),
    ({"evaluation__tokenize": "ja-mecab"}, "evaluation.tokenize ja-mecab"),
  ],
)
def test_mistakes_that_only_the_data_show_leave_no_run_directory(corpus, tmp_path, change, message):
  (corpus / "empty").write_text("")
  with devices(1), pytest.raises(UserError, match=message) as error:
    train(tiny_config(corpus, training__compilation_cache=False, **change), tmp_path / "run")
  assert "\n" not in str(error.value)
  assert not (tmp_path / "run").exists()


def test_other_files_in_a_new_run_directory_stay(corpus, tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  before = files_of(tmp_path)
  with devices(1), pytest.raises(UserError):
    train(tiny_config(corpus, data__valid="tsv:nowhere"), tmp_path)
  assert files_of(tmp_path) == before


def test_training_that_does_not_stay_finite_ends_with_the_step(corpus, tmp_path, capsys):
  """Users hit 3: after max_nonfinite skipped updates in a row, in one line, with status 2."""
  config = tiny_config(corpus, optimizer__learning_rate=1e38, training__max_nonfinite=4, training__evaluate_every=16)
  path = write_config_file(tmp_path / "tiny.py", config)
  with devices(1):
    assert command(main, f"--config={path}", f"--workdir={tmp_path / 'run'}") == 2
  error = capsys.readouterr().err
  assert error.startswith("error: step ") and error.count("\n") == 1
  assert "was not finite 4 times in a row (training.max_nonfinite); lower optimizer.learning_rate" in error
  lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
  first_bad = next(line["step"] for line in lines if line["skipped"])
  assert error.startswith(f"error: step {first_bad + 3}:") and lines[-1]["skipped"] == 4
