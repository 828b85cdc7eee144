"""Runs that stop and go on: to the bit, or not at all."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest
from helpers.tiny_run import (
  assert_same_run,
  files_of,
  parameter_bits,
  run_python,
  tiny_config,
  without_time,
  write_config_file,
)

from transformer_jax import train as training
from transformer_jax.errors import UserError
from transformer_jax.train import train
from transformer_jax.training import resuming
from transformer_jax.training import step as programs
from transformer_jax.training.checkpoints import Checkpoints, load_final
from transformer_jax.training.progress import read_metrics
from transformer_jax.training.recorder import Recorder
from transformer_jax.training.rundir import RunLock

pytestmark = pytest.mark.usefixtures("one_device")

# Trains, and gets a signal right after the update of a step; 12 and 13 are in the second epoch, between checkpoints.
SIGNALLED = """
import os, signal, sys
from transformer_jax.commands import run_command
from transformer_jax.main import main
from transformer_jax.training.recorder import Recorder

add = Recorder.add

def add_and_signal(self, step_metrics):
  add(self, step_metrics)
  if self.place.step == {step}:
    os.kill(os.getpid(), signal.{signal})

Recorder.add = add_and_signal
run_command(main, sys.argv[1:])
"""


def flags_of(finished, tmp_path):
  return [f"--config={write_config_file(tmp_path / 'tiny.py', finished.config)}", f"--workdir={tmp_path / 'run'}"]


def test_a_killed_run_started_again_is_an_undisturbed_one(finished, tmp_path):
  """Users hit 19: SIGKILL in the second epoch; losses, results, averages and parameters are the same to the bit.

  Preemption in between leaves a checkpoint of the very step, which an undisturbed run does not have and the end does not count.
  """
  workdir, flags = tmp_path / "run", flags_of(finished, tmp_path)
  status, _, error = run_python("-c", SIGNALLED.format(signal="SIGKILL", step=12), *flags)
  assert status == -9, error
  assert read_metrics(workdir / "metrics.jsonl")[-1]["step"] >= 10 and not (workdir / "results.json").exists()
  status, output, error = run_python("-c", SIGNALLED.format(signal="SIGTERM", step=13), *flags)
  assert "from the checkpoint of step 10" in output or "from the checkpoint of step 5" in output
  check_stopped(workdir, "SIGTERM", status, error)
  status, output, error = run_python("-m", "transformer_jax.main", *flags)
  assert (status, error) == (0, "")
  assert "from the checkpoint of step 13" in output
  assert_same_run(workdir, finished.workdir)
  assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == sorted(
    path.name for path in (finished.workdir / "checkpoints").iterdir()
  )


def test_a_run_that_is_asked_to_stop_saves_first(finished, tmp_path):
  """By Slurm's signal as by SIGTERM."""
  status, _, error = run_python("-c", SIGNALLED.format(signal="SIGUSR1", step=13), *flags_of(finished, tmp_path))
  check_stopped(tmp_path / "run", "SIGUSR1", status, error)


def check_stopped(workdir, name, status, error):
  assert status == 128 + getattr(signal, name)
  assert error == f"stopped by {name} at step 13; the same command goes on from there\n"
  assert read_metrics(workdir / "metrics.jsonl")[-1]["step"] == 13
  assert (workdir / "checkpoints" / "13").exists()


@pytest.mark.parametrize("lost", [["results.json", "translations", "figures", "samples.md"], ["checkpoints/final"]])
def test_a_run_killed_at_its_end_ends_again(finished, copy, no_figures, lost):
  """Users hit 19: after the last update too, whatever was written; and final parameters that are removed are made again."""
  for name in lost:
    shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
  (copy / "checkpoints" / "final.writing").mkdir()
  train(finished.config, copy)
  assert_same_run(copy, finished.workdir)
  assert not (copy / "checkpoints" / "final.writing").exists()


def test_a_finished_run_is_shown_and_not_run_again(finished, copy, capsys):
  before = files_of(copy)
  assert train(finished.config, copy) == finished.results
  assert files_of(copy) == before
  assert "BLEU" in capsys.readouterr().out


def test_a_damaged_newest_checkpoint_is_passed_over(finished, copy, no_figures, warnings):
  """Users hit 20: the run goes on from the one before, with a warning that names it, and ends with the same bits."""
  (copy / "results.json").unlink()
  largest = max((copy / "checkpoints" / "16" / "state").rglob("*"), key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  train(finished.config, copy)
  (warning,) = warnings
  assert f"{copy / 'checkpoints' / '16'} is skipped" in warning and f"using {copy / 'checkpoints' / '15'}" in warning
  assert_same_run(copy, finished.workdir)


def test_changes_are_printed_and_another_machine_is_warned_about(finished, copy, monkeypatch, warnings):
  """Users hit 19, 21: one line for each changed field, and one for the checkpoint's other environment."""
  here = resuming.environment()
  monkeypatch.setattr(resuming, "environment", lambda: {**here, "cores": 64, "jax": "0.99"})
  monkeypatch.setattr(training, "finish_run", lambda *arguments: finished.results)
  config = tiny_config(
    finished.config.data.folder, training__log_every=2, evaluation__attention_figure=True, evaluation__lowercase=True
  )
  train(config, copy)
  assert warnings == [
    f"evaluation.lowercase is True, was False when {copy} was started",
    f"training.log_every is 2, was 1 when {copy} was started",
    f"continued under other conditions (jax {jax.__version__} → 0.99, cores {here['cores']} → 64): "
    "agrees within rounding, not bit for bit",
  ]
  assert json.loads((copy / "config.json").read_text())["training"]["log_every"] == 2


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"training__steps": 15}, "training.steps is 15, but .* is trained for 16 steps already"),
    ({"model__d_model": 32}, "model.d_model is 32, but .* was started with 16"),
    ({"model__norm": "pre"}, "model.norm is 'pre', but .* was started with 'post'"),
    ({"vocabulary__size": 99}, "vocabulary.size is 99, but .* was started with 100"),
    ({"seed": 1}, "seed is 1, but .* was started with 0"),
    ({"task": "mlm", "data__test": ()}, "task is 'mlm', but .* was started with 'translate'"),
    ({"init_from": "elsewhere"}, "init_from is 'elsewhere', but .* was started with ''"),
  ],
)
def test_what_does_not_fit_the_run_is_refused_in_one_line(finished, copy, warnings, change, message):
  """Users hit 21, 28: fewer steps than were trained, or another model: said so, and nothing is changed."""
  before = files_of(copy)
  # A change of data comes before and after these fields in the configuration, and is not worth a line in a refused start.
  config = tiny_config(
    finished.config.data.folder, batch__tokens=128, evaluation__attention_figure=True, training__log_every=2, **change
  )
  with pytest.raises(UserError, match=message) as refused:
    train(config, copy)
  assert "\n" not in str(refused.value) and warnings == []
  assert files_of(copy) == before


def test_a_second_process_on_the_run_directory_is_refused(finished, copy, tmp_path):
  """One line and status 2, while another process holds the directory."""
  (copy / "results.json").unlink()
  before = files_of(copy)
  config_file = write_config_file(tmp_path / "tiny.py", finished.config)
  with RunLock(copy):
    status, _, error = run_python("-m", "transformer_jax.main", f"--config={config_file}", f"--workdir={copy}")
  assert status == 2 and error.startswith("error: ") and error.count("\n") == 1 and "is in use by process" in error
  assert files_of(copy) == before


def scripted_losses(monkeypatch, losses):
  """Lets validations report these losses, one after the other, and the last one from then on."""
  remaining = list(losses)

  def mean_loss(*arguments):
    return {"nll": remaining.pop(0) if len(remaining) > 1 else remaining[0], "loss": 1.0, "pieces": 1}

  monkeypatch.setattr(training, "mean_loss", mean_loss)


def test_early_stopping_ends_with_the_best_checkpoint(corpus, tmp_path, monkeypatch, finished):
  """Without averaging; and started again, the stopped run does not train on."""
  monkeypatch.setattr(training, "finish_run", lambda *arguments: finished.results)
  scripted_losses(monkeypatch, [3.0, 2.0, 2.5, 2.25, 1.0])
  config = tiny_config(corpus, training__evaluate_every=2, training__patience=2, training__average=1, training__keep=1)
  for _ in range(2):
    train(config, tmp_path)
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl") if line["split"] == "valid"] == [
      2,
      4,
      6,
      8,
    ]
    params, metadata = load_final(tmp_path)
    assert metadata == {"averaged_steps": [4], "steps": 8}
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1, 1, 1)
    assert checkpoints.steps() == [4, 8] and checkpoints.best() == 4
    jax.tree.map(np.testing.assert_array_equal, params, checkpoints.average([4], params))
    checkpoints.close()


class Stopped(BaseException):
  """Stands for the end of the process."""


def test_fine_tuning_starts_where_the_other_run_ended(corpus, finished, tmp_path, monkeypatch):
  """Its parameters and vocabulary, though the new corpus would give another.

  Users hit 19: stopped before the first checkpoint, it starts there again.
  """
  monkeypatch.setattr(training, "finish_run", lambda *arguments: finished.results)
  compile_train_step, add, given = programs.compile_train_step, Recorder.add, []

  def compile_and_watch(*arguments):
    program = compile_train_step(*arguments)

    def train_step(state, batch):
      given.append(jax.device_get(state.params))
      return program(state, batch)

    return train_step

  def add_and_stop(self, step_metrics):
    add(self, step_metrics)
    if self.place.step == 2:
      raise Stopped

  monkeypatch.setattr(programs, "compile_train_step", compile_and_watch)
  config = tiny_config(corpus, init_from=str(finished.workdir), data__train=("tsv:test.tsv",), training__steps=3)
  train(config, tmp_path / "undisturbed")
  expected, _ = load_final(finished.workdir)
  jax.tree.map(np.testing.assert_array_equal, given[-3], expected)
  with monkeypatch.context() as patch, pytest.raises(Stopped):
    patch.setattr(Recorder, "add", add_and_stop)
    train(config, tmp_path / "stopped")
  assert (tmp_path / "stopped" / "config.json").exists()
  train(config, tmp_path / "stopped")
  runs = tmp_path / "undisturbed", tmp_path / "stopped"
  assert len({without_time(workdir / "metrics.jsonl") for workdir in runs}) == 1
  assert parameter_bits(runs[0]) == parameter_bits(runs[1])
  vocabularies = {(workdir / "vocabulary.txt").read_bytes() for workdir in (*runs, finished.workdir)}
  assert len(vocabularies) == 1
