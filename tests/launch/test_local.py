"""Sweeps on this machine: complete whatever is killed, the same results to the byte, mistakes in one line."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from helpers.tiny_run import REPOSITORY, write_corpus

from experiments import table3

EXPERIMENT = """
import sys
sys.path.insert(0, {tests!r})
from helpers.tiny_run import tiny_config
from experiments.experiment import Column, Experiment
from experiments.sweep import chain, one, over, seeds

def get_experiment(scale):
  base = tiny_config({data!r})
  sweep = seeds(chain(one("base"), over("model.num_heads", 1)), 2)
  if scale == "paper":
    sweep = chain(one("base"), one("bad", {{"data.train": ("text:none.en,none.de",)}}))
  return Experiment("Heads?", base, sweep, (Column("BLEU", "test.bleu"), Column("PPL", "valid.perplexity")))
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
  """A file with an experiment of four runs of seconds (scale smoke), or of a good and a bad one (scale paper)."""
  folder = tmp_path_factory.mktemp("experiment")
  path = folder / "heads.py"
  path.write_text(EXPERIMENT.format(tests=str(REPOSITORY / "tests"), data=str(write_corpus(folder / "data"))))
  return path


def start(*arguments):
  """Starts a module as a process of its own session, on one device."""
  environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(REPOSITORY)}
  return subprocess.Popen(
    [sys.executable, "-m", *map(str, arguments)],
    cwd=REPOSITORY,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )


def run(*arguments):
  """Runs a module to its end; returns exit status, output and errors."""
  process = start(*arguments)
  output, errors = process.communicate(timeout=600)
  return process.returncode, output, errors


def results_of(folder):
  """The bytes of results.csv, from a report made now."""
  status, _, errors = run("experiments.report", folder)
  assert status == 0, errors
  return (folder / "results.csv").read_bytes(), (folder / "runs.csv").read_bytes()


def holders_of(folder):
  """The processes that work in the sweep's run directories."""
  found = []
  for lock in folder.glob("runs/*/.lock"):
    shown = lock.read_text()
    if '"pid": ' in shown:
      found.append(int(shown.split('"pid": ')[1].split(",")[0]))
  return [pid for pid in found if os.path.exists(f"/proc/{pid}")]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_sweep_that_is_killed_again_and_again_is_an_undisturbed_one(experiment, tmp_path):
  """The launcher, then a worker, then the launcher by Ctrl-C; gone on with other numbers of workers."""
  status, output, errors = run(
    "launch.local", experiment, "--scale=smoke", "--workers=1", f"--output={tmp_path / 'whole'}"
  )
  assert (status, errors) == (0, ""), output
  generator = random.Random(0)
  folder = tmp_path / "killed"

  def go_on(workers):
    return start("launch.local", experiment, "--scale=smoke", f"--workers={workers}", f"--output={folder}")

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
  assert results_of(folder) == results_of(tmp_path / "whole")


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
  filled = [argument.format(experiment=experiment, folder=tmp_path / "sweep") for argument in arguments]
  status, output, errors = run("launch.local", *filled)
  assert (status, output) == (2, "")
  assert errors.startswith("error: ") and message in errors and errors.count("\n") == 1
  assert not (tmp_path / "sweep").exists()


def test_table_3_in_small_strokes(tmp_path):
  """All twenty rows at scale smoke, and their report."""
  folder = tmp_path / "table3"
  status, output, errors = run("launch.local", "experiments/table3.py", "--scale=smoke", f"--output={folder}")
  assert (status, errors) == (0, ""), output
  assert output.count(": done") == 20
  status, page, errors = run("experiments.report", folder)
  assert (status, errors) == (0, "")
  for row in table3.PUBLISHED:
    assert f"| {row} | 1 |" in page


def test_runs_train_as_one_program(experiment, tmp_path):
  """--vmap: two seeds of each number of heads together; what they learn is what they learn apart, within rounding."""
  figures = {}
  for name, flags in (("apart", []), ("together", ["--vmap"])):
    folder = tmp_path / name
    status, output, errors = run("launch.local", experiment, "--scale=smoke", f"--output={folder}", *flags)
    assert (status, errors) == (0, ""), output
    assert output.count(": done") == 4
    runs = {path.name: json.loads((path / "results.json").read_text()) for path in (folder / "runs").iterdir()}
    figures[name] = {run: results["valid"]["nll"] for run, results in runs.items()}
  assert len(list((tmp_path / "together" / "logs").iterdir())) == 2  # a process for each number of heads
  assert figures["together"] == pytest.approx(figures["apart"], abs=1e-3)
  status, _, errors = run("launch.local", experiment, "--scale=paper", f"--output={tmp_path / 'none'}", "--vmap")
  assert status == 2 and errors.startswith("error: --vmap: no two runs of this sweep differ in seed")
