"""Sweeps on this machine: complete whatever is killed, the same results to the byte, mistakes in one line."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from helpers.sweeps import results_of, run, write_experiment
from helpers.tiny_run import REPOSITORY

from launch import local
from transformer_jax.errors import UserError

EXPERIMENT = """
def get_experiment(scale):
  base = tiny(decoding__method="greedy", training__evaluate_every=8)
  sweep = chain(seeds(one("base"), 2), over("model.num_heads", 1))
  return Experiment("Heads?", base, chain(one("base"), one("bad", BAD)) if scale == "paper" else sweep, COLUMNS)
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
  """A file with an experiment of three runs of seconds (scale smoke), or of a good and a bad one (scale paper)."""
  return write_experiment(tmp_path_factory.mktemp("experiment") / "heads.py", EXPERIMENT)


@pytest.fixture(scope="module")
def undisturbed(experiment):
  """The folder of the experiment's sweep, its runs made one after the other."""
  folder = experiment.parent / "undisturbed"
  status, output, errors = run("launch.local", experiment, "--scale=smoke", "--workers=1", f"--output={folder}")
  assert (status, errors) == (0, ""), output
  assert output.count(": done") == 3
  return folder


def start(*arguments):
  """Starts the launcher as a process of its own session, on one device."""
  return subprocess.Popen(
    [sys.executable, "-m", "launch.local", *map(str, arguments)],
    cwd=REPOSITORY,
    env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )


def holders_of(folder):
  """The processes that work in the sweep's run directories."""
  found = []
  for lock in folder.glob("runs/*/.lock"):
    shown = lock.read_text()
    if '"pid": ' in shown:
      found.append(int(shown.split('"pid": ')[1].split(",")[0]))
  return [pid for pid in found if os.path.exists(f"/proc/{pid}")]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_sweep_that_is_killed_again_and_again_is_an_undisturbed_one(experiment, undisturbed, tmp_path):
  """The launcher, then a worker, then the launcher by Ctrl-C; gone on with other numbers of workers."""
  generator = random.Random(0)
  folder = tmp_path / "killed"

  def go_on(workers):
    return start(experiment, "--scale=smoke", f"--workers={workers}", f"--output={folder}")

  def wait_for_a_run(process, before=()):
    """Until the launcher has started a run, and a while longer."""
    while not set(holders_of(folder)) - set(before):
      assert process.poll() is None
      time.sleep(0.1)
    time.sleep(generator.uniform(0.0, 4.0))

  launcher = go_on(2)
  wait_for_a_run(launcher)
  orphans = holders_of(folder)
  launcher.kill()  # its runs notice, save and stop by themselves
  launcher.communicate()
  launcher = go_on(3)
  wait_for_a_run(launcher, orphans)
  os.kill((set(holders_of(folder)) - set(orphans)).pop(), signal.SIGKILL)
  launcher.send_signal(signal.SIGINT)
  _, errors = launcher.communicate(timeout=300)
  assert launcher.returncode == 130 and "the same line goes on" in errors
  assert not holders_of(folder)
  status, output, errors = run("launch.local", experiment, "--scale=smoke", "--workers=2", f"--output={folder}")
  assert (status, errors) == (0, ""), output
  assert results_of(folder) == results_of(undisturbed)


def test_a_failed_run_does_not_stop_the_rest(experiment, tmp_path):
  folder = tmp_path / "sweep"
  status, output, _ = run("launch.local", experiment, "--scale=paper", "--workers=1", f"--output={folder}")
  assert status == 1
  assert "base: done" in output and "bad: failed: exit status 2: error: " in output
  assert "none.en" in (folder / "failed" / "bad.txt").read_text()
  status, output, _ = run("launch.local", experiment, "--scale=paper", "--workers=1", f"--output={folder}")
  assert status == 1 and "base: done" not in output  # only what is missing is tried again
  assert "| bad | 0 of 1 |" in run("experiments.report", folder)[1]


@pytest.mark.parametrize(
  "arguments, message",
  [
    ([], "name an experiment first"),
    (["{experiment}"], "--output is missing"),
    (["none.py", "--output={folder}"], "no experiment file none.py"),
    (["{experiment}", "--output={folder}", "--scale=huge"], "--scale must be one of paper, small, smoke, not 'huge'"),
    (["{experiment}", "--output={folder}", "--config.model.d_modle=3"], "did you mean model.d_model?"),
    (["{experiment}", "--output={folder}", "--config=configs/quickstart.py"], "--config is not taken"),
    (["{experiment}", "--output={folder}", "--worker=3"], "worker"),
  ],
)
def test_mistakes_are_one_line(experiment, tmp_path, arguments, message):
  with pytest.raises(UserError) as error:
    local.main([argument.format(experiment=experiment, folder=tmp_path / "sweep") for argument in arguments])
  assert message in str(error.value) and "\n" not in str(error.value)
  assert not (tmp_path / "sweep").exists()


def test_a_mistake_ends_the_command_with_status_2(tmp_path):
  status, output, errors = run("launch.local", "none.py", f"--output={tmp_path / 'sweep'}")
  assert (status, output, errors) == (2, "", "error: no experiment file none.py\n")


def test_runs_train_as_one_program(experiment, undisturbed, tmp_path):
  """--vmap: two seeds together, and the run of one head beside them; what they learn is what they learn apart, within rounding."""
  together = tmp_path / "together"
  status, output, errors = run("launch.local", experiment, "--scale=smoke", f"--output={together}", "--vmap")
  assert (status, errors) == (0, ""), output
  assert output.count(": done") == 3
  assert len(list((together / "logs").iterdir())) == 2  # a process for each model
  apart, vmapped = (
    {path.name: json.loads((path / "results.json").read_text())["valid"]["nll"] for path in folder.glob("runs/*")}
    for folder in (undisturbed, together)
  )
  assert vmapped == pytest.approx(apart, abs=1e-3)


def test_runs_that_differ_in_shape_are_not_one_program(experiment, tmp_path):
  with pytest.raises(UserError, match=r"^--vmap: no two runs of this sweep differ in seed"):
    local.main([str(experiment), "--scale=paper", f"--output={tmp_path / 'none'}", "--vmap"])
