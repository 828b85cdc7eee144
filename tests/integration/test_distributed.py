"""One run in two processes (`jax.distributed`) is the run of one, up to rounding."""

import json

import pytest
from helpers.tiny_run import devices, run_processes, tiny_config, write_config_file

from transformer_jax.train import train
from transformer_jax.training.progress import read_metrics

# Trains; one process gets a signal right after the update of step 7.
SIGNALLED = """
import os, signal, sys
from transformer_jax.commands import run_command
from transformer_jax.main import main
from transformer_jax.training.recorder import Recorder

add = Recorder.add

def add_and_signal(self, step_metrics):
  add(self, step_metrics)
  if self.place.step == 7:
    os.kill(os.getpid(), signal.SIGTERM)

Recorder.add = add_and_signal
run_command(main, sys.argv[1:])
"""

# Two processes, of which process 1 fails while process 0 waits for it on the devices; unless their configurations differ.
FAILING = """
import sys
import numpy as np
from jax.experimental import multihost_utils
from transformer_jax import processes
from transformer_jax.commands import run_command
from transformer_jax.config import default_config

processes._GRACE_SECONDS = 1.0

def main(arguments):
  config = default_config()
  config.seed = int(arguments[0])
  with processes.joined_processes(config):
    assert processes.from_first(lambda: "a decision") == "a decision"
    if not processes.is_first():
      raise ZeroDivisionError("a defect")
    multihost_utils.process_allgather(np.zeros(1))

run_command(main)
"""


def close(one, two):
  """Two JSON values, equal but for rounding."""
  if isinstance(one, dict):
    return one.keys() == two.keys() and all(close(one[name], two[name]) for name in one)
  if isinstance(one, float):
    return one == pytest.approx(two, rel=1e-5, abs=1e-6)
  return one == two


def timeless(lines):
  return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def test_two_processes_stop_together_go_on_and_leave_the_run_of_one(corpus, tmp_path):
  """Twenty updates with a copy of the parameters in each process and then, after a signal to process 1 alone, a half in each."""
  config, workdir, alone = tiny_config(corpus, training__steps=20), tmp_path / "run", tmp_path / "alone"
  with devices(1):
    expected_results = train(config, alone)
  flags = [f"--config={write_config_file(tmp_path / 'tiny.py', config)}", f"--workdir={workdir}"]
  first, second = run_processes(("-m", "transformer_jax.main", *flags), ("-c", SIGNALLED, *flags))
  assert (first[0], second[0]) == (128 + 15, 128 + 15), (first, second)
  assert "stopped by SIGTERM at step 10; the same command goes on from there" in first[2]
  assert "stopped by" not in second[2]
  assert "2 × CPU" in first[1] and "in 2 processes" in first[1]
  command = ("-m", "transformer_jax.main", *flags, "--config.training.fsdp=True")
  first, second = run_processes(command, command)
  assert (first[0], second[0]) == (0, 0), (first, second)
  assert "from the checkpoint of step 10" in first[1] and "BLEU" in first[1]
  assert "training.fsdp is True, was False" in first[2]
  assert "fsdp" not in second[2] and "BLEU" not in second[1]
  lines, expected = (read_metrics(folder / "metrics.jsonl") for folder in (workdir, alone))
  assert [line["step"] for line in lines] == [line["step"] for line in expected]
  assert [line["step"] for line in lines if line["split"] == "train"] == [*range(1, 21)]
  assert all(map(close, timeless(lines), timeless(expected)))
  results = json.loads((workdir / "results.json").read_text())
  assert close(*timeless([results, expected_results]))
  for name in ("config.json", "vocabulary.txt", "samples.md", "translations/first.txt", "translations/second.txt"):
    content = (workdir / name).read_bytes().replace(b'"fsdp": true', b'"fsdp": false')
    assert content == (alone / name).read_bytes()
  assert (workdir / "figures" / "training.png").exists()
  names = [{path.name for path in folder.rglob("*.*")} for folder in (workdir / "checkpoints", workdir)]
  assert "seal.json" in names[0] and not [name for name in names[1] if name.endswith((".tmp", ".writing"))]
  assert len([*(workdir / "tensorboard").iterdir()]) == 2  # one writer a start


def test_a_mistake_is_said_once_and_ends_both(finished, tmp_path):
  """The run directory is as it was."""
  workdir = tmp_path / "run"
  flags = [f"--config={write_config_file(tmp_path / 'tiny.py', finished.config)}", f"--workdir={workdir}"]
  command = ("-m", "transformer_jax.main", *flags, "--config.data.train=text:nowhere.en,nowhere.de")
  first, second = run_processes(command, command)
  assert (first[0], second[0]) == (2, 2), (first, second)
  assert "error: there is no file " in first[2]
  assert "error" not in second[2] and "Traceback" not in first[2] + second[2]
  assert not workdir.exists()


def test_other_configurations_are_refused():
  first, second = run_processes(("-c", FAILING, "0"), ("-c", FAILING, "1"))
  assert (first[0], second[0]) == (2, 2), (first, second)
  assert "error: process 1 was started with another configuration than process 0" in first[2]
  assert "error" not in second[2]


def test_a_defect_in_one_process_ends_the_other_too():
  first, second = run_processes(("-c", FAILING, "0"), ("-c", FAILING, "0"))
  assert (first[0], second[0]) == (1, 1), (first, second)
  assert "ZeroDivisionError: a defect" in second[2] and "Traceback" not in first[2]
