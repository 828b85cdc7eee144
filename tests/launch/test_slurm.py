"""Sweeps on a cluster: a real Slurm on this machine, where it is installed; what is submitted, everywhere."""

import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from helpers.slurm import Slurm, stand_ins, why_not
from helpers.sweeps import results_of, run, write_experiment

from launch import slurm
from launch.runs import runs_of
from transformer_jax.errors import UserError

EXPERIMENT = """
def get_experiment(scale):
  long = seeds(one("long", {"training.steps": 400, "training.evaluate_every": 100}), 2)
  sweep = chain(one("base", BAD), long[:1]) if scale == "paper" else chain(one("base"), long)
  return Experiment("Longer?", tiny(training__patience=0, decoding__method="greedy"), sweep, COLUMNS)
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
  """A file with an experiment of a run of seconds and two of some seconds more; at scale paper, of a bad one and a long one."""
  return write_experiment(tmp_path_factory.mktemp("experiment") / "longer.py", EXPERIMENT)


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


def wait_for(condition, cluster, seconds=1800):
  """Waits until something has happened."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, cluster.call("squeue") + "\n" + cluster.logs()
    time.sleep(0.05)


def training(folder, name):
  """Whether a run has made its first updates."""
  metrics = folder / "runs" / name / "metrics.jsonl"
  return metrics.exists() and metrics.stat().st_size > 0


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


@pytest.mark.slow  # another half a minute of Slurm
def test_what_is_cancelled_stays_so_and_what_fails_says_why(experiment, cluster, tmp_path):
  """A cancelled run saves and is not queued again; a failed one is noted down; the same line submits both again."""
  folder = tmp_path / "sweep"
  line = ["launch.slurm", experiment, "--scale=paper", f"--output={folder}", "--time_min=50"]
  status, output, _ = run(*line, environment=cluster.environment)
  job = re.match(r"submitted 2 of 2 runs as job (\d+)\n", output)[1]
  wait_for(lambda: training(folder, "long+seed=0"), cluster)
  cluster.call("scancel", job)
  wait_for(lambda: not cluster.call("squeue", "--noheader"), cluster)
  assert "stopped by SIGTERM at step" in (folder / "logs" / "long+seed=0.log").read_text()
  assert not (folder / "failed" / "long+seed=0.txt").exists()
  status, output, errors = run(*line, "--wait", environment=cluster.environment)
  assert (status, errors) == (1, "") and output.startswith("submitted 2 of 2 runs"), output + errors
  assert "none.en" in (folder / "failed" / "base.txt").read_text()
  assert re.search(r"^base +failed: exit status 2: error: ", output, re.M) and re.search(
    r"^long\S+ +done ", output, re.M
  )


@pytest.fixture
def programs(tmp_path, monkeypatch):
  """A folder with programs that stand for Slurm's, first on the path: see `helpers.slurm.stand_ins`."""
  folder = stand_ins(tmp_path / "programs")
  monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
  monkeypatch.delenv("SLURM_JOB_ID", raising=False)
  return folder


def test_one_array_asks_for_what_the_line_says(experiment, programs, tmp_path, capsys):
  folder = tmp_path / "the sweep"
  options = (
    "--partition=gpu --account=us --qos=high --time_min=90 --nodes=2 --tasks_per_node=4 --gpus=4 --cpus=3 --mem_gb=24"
  )
  more = [
    "--array_parallelism=2",
    "--setup=module load cuda",
    "--setup=date",
    "--sbatch=constraint=h100",
    "--sbatch=exclusive",
  ]
  slurm.main([str(experiment), "--scale=smoke", f"--output={folder}", *options.split(), *more])
  shown = capsys.readouterr().out
  assert shown.startswith("submitted 3 of 3 runs as job 17\nstop:   scancel 17\nlook:   python -m launch.slurm ")
  script = (programs / "script").read_text()
  asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", script, re.M))
  expected = {
    "array": "0-2%2",
    "job-name": "longer",
    "partition": "gpu",
    "account": "us",
    "qos": "high",
    "time": "90",
    "nodes": "2",
    "ntasks-per-node": "4",
    "gpus-per-node": "4",
    "cpus-per-task": "3",
    "mem": "24GB",
    "signal": "USR2@120",
    "requeue": "",
    "open-mode": "append",
    "constraint": "h100",
    "exclusive": "",
  }
  assert expected.items() <= asked.items()
  assert "\nmodule load cuda\ndate\n" in script and "--cpus-per-task=3" in script.split("\nsrun ")[1]
  assert json.loads((folder / "slurm.json").read_text()) == {
    "jobs": {run.name: f"17_{i}" for i, run in enumerate(runs_of(folder))}
  }


def test_the_same_line_submits_what_is_neither_done_nor_queued(experiment, programs, tmp_path, capsys):
  folder = tmp_path / "sweep"
  line = [str(experiment), "--scale=smoke", f"--output={folder}"]
  slurm.main(line)
  (programs / "script").unlink()
  capsys.readouterr()
  (programs / "queue").write_text("17_0|RUNNING|None\n17_1|PENDING|Priority\n17_2|PENDING|Priority\n18|RUNNING|None\n")
  slurm.main(line)
  assert capsys.readouterr().out.startswith("nothing to submit; 1 running, 2 pending (Priority)\n")
  assert not (programs / "script").exists()
  assert "--jobs=17" in (programs / "asked").read_text()
  (programs / "queue").write_text("17_1|COMPLETING|None\n")
  slurm.main(line)
  assert capsys.readouterr().out.startswith("submitted 2 of 3 runs as job 17; 1 completing\n")
  assert "--array=0-1%2" in (programs / "script").read_text()
  finish(runs_of(folder)[2])
  (programs / "queue").write_text("17_0|RUNNING|None\n")
  slurm.main([*line, "--status"])
  table = [re.split(r"  +", each.rstrip()) for each in capsys.readouterr().out.splitlines()]
  assert table[1][:2] == ["base", "running"] and table[3][:2] == ["long+seed=1", "done"]
  assert table[2] == ["long+seed=0", "ended: see slurm/17_1_0_log.err"]


def finish(run):
  """Makes a run look finished."""
  run.directory.mkdir(parents=True)
  (run.directory / "config.json").write_text(run.config_file.read_text())
  (run.directory / "results.json").write_text("{}")


def test_a_refused_job_leaves_nothing_and_says_why(experiment, programs, tmp_path, capsys):
  (programs / "refusal").write_text("sbatch: error: invalid partition\nsbatch: error: Batch job submission failed\n")
  folder = tmp_path / "sweep"
  with pytest.raises(
    UserError, match=r"^Slurm does not take the job: sbatch: error: invalid partition sbatch: error: Batch"
  ):
    slurm.main([str(experiment), f"--output={folder}", "--partition=none"])
  assert capsys.readouterr() == ("", "")
  assert not list((folder / "slurm").iterdir()) and not (folder / "slurm.json").exists()


def test_a_queue_that_does_not_answer_submits_nothing(experiment, programs, tmp_path):
  line = [str(experiment), f"--output={tmp_path / 'sweep'}"]
  slurm.main(line)
  (programs / "script").unlink()
  (programs / "trouble").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
  with pytest.raises(UserError, match="squeue cannot tell which runs are queued: slurm_load_jobs error: Unable"):
    slurm.main(line)
  assert not (programs / "script").exists()
  (programs / "trouble").write_text("slurm_load_jobs error: Invalid job id specified\n")  # it ended a while ago
  slurm.main(line)
  assert (programs / "script").exists()


@pytest.mark.parametrize(
  "arguments, message",
  [
    ([], "name an experiment first: python -m launch.slurm "),
    (["{experiment}"], "--output is missing"),
    (["none.py", "--output={folder}"], "no experiment file none.py"),
    (["{experiment}", "--output={folder}", "--config.model.d_modle=3"], "did you mean model.d_model?"),
    (["{experiment}", "--output={folder}", "--nodes=0"], "nodes"),
    (["{experiment}", "--output={folder}", "--workers=3"], "workers"),
    (["{experiment}", "--output={folder}", "--time_min=1"], "--warning_seconds=120 is no less than --time_min=1"),
    (["{experiment}", "--output={folder}", "--sbatch=array=0-9"], "--sbatch=array=0-9: write NAME=VALUE or NAME"),
    (["{experiment}", "--output={folder}", "--status"], "sweep.json: this is not the folder of a sweep"),
  ],
)
def test_mistakes_are_one_line(experiment, programs, tmp_path, arguments, message):
  filled = [argument.format(experiment=experiment, folder=tmp_path / "sweep") for argument in arguments]
  with pytest.raises(UserError) as error:
    slurm.main(filled)
  assert message in str(error.value) and "\n" not in str(error.value)
  assert not (tmp_path / "sweep").exists()


def test_without_slurm_it_says_so(experiment, tmp_path):
  status, output, errors = run(
    "launch.slurm", experiment, f"--output={tmp_path / 'sweep'}", environment={"PATH": "/none"}
  )
  assert (status, output) == (2, "")
  assert errors == "error: no sbatch here: start launch.slurm on a machine of the cluster; launch.local needs none\n"
  assert not (tmp_path / "sweep").exists()
