"""Runs that train as one program, from their start to their ends: each leaves what a run of its own leaves."""

import dataclasses
import os
import shutil
import signal

import pytest
from helpers.tiny_run import devices, tiny_config
from ml_collections import ConfigDict

from transformer_jax import results
from transformer_jax import train as training
from transformer_jax.errors import Stopped, UserError
from transformer_jax.results import finish_run
from transformer_jax.tasks import translation
from transformer_jax.train import train
from transformer_jax.training import lanes
from transformer_jax.training.checkpoints import load_final
from transformer_jax.training.progress import read_metrics
from transformer_jax.training.recorder import Recorder
from transformer_jax.training.rundir import write_json_atomically
from transformer_jax.training.together import train_together

pytestmark = pytest.mark.usefixtures("one_device", "short_ends")

RUNS = {
  "first": {"seed": 0},
  "second": {"seed": 1, "model__dropout": 0.0, "training__label_smoothing": 0.0, "optimizer__learning_rate": 0.003},
  "patient": {"seed": 2, "optimizer__learning_rate": 1e-30},  # learns nothing, and stops early
  "infinite": {"seed": 3, "optimizer__learning_rate": 1e38},
}


@dataclasses.dataclass
class Runs:
  """What the runs of a `train_together` that nothing disturbed have left; to be read only."""

  configs: dict[str, ConfigDict]
  workdirs: dict
  outcomes: dict


@pytest.fixture(scope="module")
def short_ends():
  """Of all runs only one translates its test sets, the first when nothing disturbs it, and none draws."""

  def finish(config, workdir, console, reader, data, place, valid, averaged):
    if config.seed == 0 and workdir.parent.name.startswith("undisturbed"):
      return finish_run(config, workdir, console, reader, data, place, valid, averaged)
    content = {"steps": place.step, "averaged_steps": averaged, "valid": valid}
    write_json_atomically(workdir / "results.json", content)
    return content

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(results, "training_figure", lambda *arguments: None)
    patch.setattr(translation, "draw_attention", lambda *arguments: None)
    for module in (training, lanes):
      patch.setattr(module, "finish_run", finish)
      patch.setattr(module, "show_results", lambda *arguments: None)
    yield


@pytest.fixture(scope="module")
def undisturbed(corpus, short_ends, tmp_path_factory):
  common = {"training__evaluate_every": 3, "training__keep": 10, "training__max_nonfinite": 3}
  configs = {name: tiny_config(corpus, **common, decoding__method="greedy", **run) for name, run in RUNS.items()}
  folder = tmp_path_factory.mktemp("undisturbed")
  workdirs = {name: folder / name for name in RUNS}
  with devices(1):
    outcomes = train_together(list(configs.values()), list(workdirs.values()))
  return Runs(configs, workdirs, dict(zip(RUNS, outcomes, strict=True)))


def checkpoints_of(workdir):
  return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


def cut_back(workdir, copy, step):
  """A copy of a run as it was when it was killed after a checkpoint, with lines of later updates in its metrics."""
  shutil.copytree(workdir, copy)
  (copy / "results.json").unlink()
  shutil.rmtree(copy / "checkpoints" / "final")
  for later in checkpoints_of(copy):
    if later > step:
      shutil.rmtree(copy / "checkpoints" / str(later))
  return copy


def assert_agrees(workdir, expected, steps=None):
  """The metrics of two runs are the same within rounding, up to a step."""
  lines, others = read_metrics(workdir / "metrics.jsonl"), read_metrics(expected / "metrics.jsonl")
  others = [line for line in others if steps is None or line["step"] <= steps]
  assert [(line["step"], line["split"]) for line in lines] == [(line["step"], line["split"]) for line in others]
  for line, other in zip(lines, others, strict=True):
    assert line["pieces"] == other["pieces"]
    assert line["loss"] == pytest.approx(other["loss"], abs=1e-4)
    assert line["nll"] == pytest.approx(other["nll"], abs=1e-4)


def signal_at(patch, step):
  """Sends SIGTERM after the update of a step, of any run."""
  add = Recorder.add

  def add_and_signal(self, step_metrics):
    add(self, step_metrics)
    if self.place.step == step:
      os.kill(os.getpid(), signal.SIGTERM)

  patch.setattr(Recorder, "add", add_and_signal)


def test_a_run_that_stops_early_leaves_the_others_alone(undisturbed):
  """At its third validation without gain; the others go on to the last step, and end from their last checkpoints."""
  assert undisturbed.outcomes["patient"]["steps"] == 12
  assert undisturbed.outcomes["patient"]["averaged_steps"] == [9, 12]
  assert read_metrics(undisturbed.workdirs["patient"] / "metrics.jsonl")[-1]["step"] == 12
  for name in ("first", "second"):
    assert undisturbed.outcomes[name]["steps"] == 16
    assert load_final(undisturbed.workdirs[name])[1] == {"averaged_steps": [15, 16], "steps": 16}
    assert checkpoints_of(undisturbed.workdirs[name]) == [3, 6, 9, 12, 15, 16]


def test_a_run_that_does_not_stay_finite_fails_alone(undisturbed):
  error = undisturbed.outcomes["infinite"]
  assert isinstance(error, UserError) and "was not finite 3 times in a row (training.max_nonfinite)" in str(error)
  skipped = {name: read_metrics(undisturbed.workdirs[name] / "metrics.jsonl") for name in RUNS}
  skipped = {name: max(line.get("skipped", 0) for line in lines) for name, lines in skipped.items()}
  assert skipped == {"first": 0, "second": 0, "patient": 0, "infinite": 3}
  assert not (undisturbed.workdirs["infinite"] / "results.json").exists()


def test_runs_go_on_together_and_apart(undisturbed, tmp_path, monkeypatch, capsys):
  """Stopped and started again, alone or together, from different steps: within rounding the run that nothing disturbed."""
  one, two = undisturbed.configs["first"], undisturbed.configs["second"]
  first, second = tmp_path / "first", tmp_path / "second"
  with monkeypatch.context() as patch, pytest.raises(Stopped):  # the second begins alone, and is stopped at step 5
    signal_at(patch, 5)
    train(two, second)
  assert_agrees(second, undisturbed.workdirs["second"], 5)
  cut_back(undisturbed.workdirs["first"], first, 6)
  with monkeypatch.context() as patch, pytest.raises(Stopped):  # together from 6 and 5 to 11 and 10
    signal_at(patch, 11)
    train_together([one, two], [first, second])
  assert checkpoints_of(first) == [3, 6, 9, 11] and checkpoints_of(second) == [3, 6, 9, 10]
  assert_agrees(first, undisturbed.workdirs["first"], 11)
  assert_agrees(second, undisturbed.workdirs["second"], 10)
  train(one, first)  # the first ends alone
  written, _ = (first / "results.json").read_bytes(), capsys.readouterr()
  (of_first,) = train_together([one], [first])
  assert "finished already" in capsys.readouterr().out  # it is shown, and not run again
  assert (first / "results.json").read_bytes() == written
  expected, outcome = undisturbed.workdirs["first"], undisturbed.outcomes["first"]
  assert_agrees(first, expected)
  assert checkpoints_of(first) == checkpoints_of(expected)
  for file in ("config.json", "vocabulary.txt"):
    assert (first / file).read_bytes() == (expected / file).read_bytes()
  assert load_final(first)[1] == load_final(expected)[1]
  assert of_first["valid"]["nll"] == pytest.approx(outcome["valid"]["nll"], abs=1e-4)
  assert outcome["test"]["first"]["sentences"] == 7 and (expected / "translations" / "second.txt").exists()
