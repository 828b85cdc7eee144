"""Sweeps on a cluster: a real Slurm on this machine, where it is installed; what is submitted and what a job does, everywhere."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helpers.slurm import Slurm, why_not
from helpers.tiny_run import REPOSITORY, write_corpus

from launch import slurm
from launch.runs import runs_of
from launch.slurm_job import own_cores
from transformer_jax.errors import UserError

EXPERIMENT = """
import sys
sys.path.insert(0, {tests!r})
from helpers.tiny_run import tiny_config
from experiments.experiment import Column, Experiment
from experiments.sweep import chain, one, over, seeds

def get_experiment(scale):
  base = tiny_config({data!r}, evaluation__attention_figure=False, training__patience=0)
  long = seeds(one("long", {{"training.steps": 400, "training.evaluate_every": 100}}), 2)
  sweep = chain(one("base"), long)
  if scale == "paper":
    sweep = chain(one("base", {{"data.train": ("text:none.en,none.de",)}}), long[:1])
  return Experiment("Longer?", base, sweep, (Column("BLEU", "test.bleu"), Column("PPL", "valid.perplexity")))
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
  """A file with an experiment of a run of seconds and two of some seconds more; at scale paper, of a bad one and a long one."""
  folder = tmp_path_factory.mktemp("experiment")
  path = folder / "longer.py"
  path.write_text(EXPERIMENT.format(tests=str(REPOSITORY / "tests"), data=str(write_corpus(folder / "data"))))
  return path


@pytest.fixture(scope="module")
def cluster():
  """Slurm, running."""
  if reason := why_not():
    pytest.skip(reason)
  folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
  try:
    with Slurm(folder / "slurm") as running:
      yield running
    assert not running.processes()
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def run(*arguments, environment=()):
  """Runs a module to its end, on one device; returns exit status, output and errors."""
  done = subprocess.run(
    [sys.executable, "-m", *map(str, arguments)],
    cwd=REPOSITORY,
    env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(REPOSITORY), **dict(environment)},
    capture_output=True,
    text=True,
    check=False,
    timeout=900,
  )
  return done.returncode, done.stdout, done.stderr


def wait_for(condition, cluster, seconds=600):
  """Waits until something has happened."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, cluster.call("squeue") + "\n" + cluster.logs()
    time.sleep(0.05)


def training(folder, name):
  """Whether a run has made its first updates."""
  metrics = folder / "runs" / name / "metrics.jsonl"
  return metrics.exists() and metrics.stat().st_size > 0


def results_of(folder):
  """The bytes of results.csv and runs.csv, from a report made now."""
  status, _, errors = run("experiments.report", folder)
  assert status == 0, errors
  return (folder / "results.csv").read_bytes(), (folder / "runs.csv").read_bytes()


def everything(folder):
  """All that a sweep and its jobs have printed, for the message of a failed test."""
  files = [*folder.glob("logs/*"), *folder.glob("slurm/*log*"), *folder.glob("failed/*")]
  return "\n".join(f"{file}:\n{file.read_text(errors='replace')}" for file in files)


def test_jobs_that_are_cut_short_go_on_and_end_as_undisturbed_ones(experiment, cluster, tmp_path):
  """An array of three; one gets the warning of a time limit, one that of a preemption; the report is the same to the byte."""
  folder = tmp_path / "sweep"
  line = ["launch.slurm", experiment, "--scale=smoke", f"--output={folder}", "--time_min=50"]
  status, output, errors = run(*line, environment=cluster.environment)
  assert (status, errors) == (0, ""), output
  job = re.match(r"submitted 3 of 3 runs as job (\d+)\n", output)[1]
  assert set(json.loads((folder / "slurm.json").read_text())["jobs"].values()) == {f"{job}_{i}" for i in range(3)}
  status, output, errors = run(*line, environment=cluster.environment)
  assert (status, errors) == (0, "") and output.startswith("nothing to submit; "), output + errors

  for name, task, number in [("long+seed=0", 1, "USR2"), ("long+seed=1", 2, "TERM")]:
    wait_for(lambda name=name: training(folder, name), cluster)
    cluster.call("scancel", f"--signal={number}", f"{job}_{task}")
  status, output, errors = run(*line, "--wait", environment=cluster.environment)
  assert (status, errors) == (0, ""), output + errors + everything(folder)
  assert output.startswith("nothing to submit; ") and len(re.findall(r"^\S+ +done ", output, re.M)) == 3
  assert not cluster.call("squeue", "--noheader")
  for name in ("long+seed=0", "long+seed=1"):
    log = (folder / "logs" / f"{name}.log").read_text()
    step = re.search(r"stopped by SIG\w+ at step (\d+)", log)[1]
    assert f"from the checkpoint of step {step}" in log
    assert len(list((folder / "runs" / name / "checkpoints").iterdir())) <= 4  # the extra ones are gone

  whole = tmp_path / "whole"
  status, output, errors = run("launch.local", experiment, "--scale=smoke", "--workers=2", f"--output={whole}")
  assert (status, errors) == (0, ""), output
  assert results_of(folder) == results_of(whole)
