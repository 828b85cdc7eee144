"""What a job of launch.slurm does with signals, failures and cores; without Slurm, with submitit's own handler."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.slurm import stand_ins
from helpers.tiny_run import REPOSITORY

from launch.slurm_job import own_cores

# A job's process with submitit's handler as it is, and a child that takes a stop as `transformer_jax.main` does.
JOB = """
import os, signal, sys
from pathlib import Path
from submitit.core.job_environment import SignalHandler
from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmJobEnvironment
from experiments.sweep import Setting
from launch import slurm_job
from launch.runs import Run

folder = Path({folder!r})
slurm_job.PROGRAM = ("-c", {child!r})
slurm_job.SECONDS_TO_BE_ENDED = 0
delayed = DelayedSubmission(slurm_job.TrainRun(Run(folder, Setting({{}}, "one")), 1))
delayed.set_timeout({minutes}, 0)
SlurmJobEnvironment()._handle_signals(JobPaths(folder, "17_0"), delayed)
delayed.result()
"""
CHILD = """
import os, signal, sys, time
asked = []
for number in (signal.SIGTERM, signal.SIGUSR1):
  signal.signal(number, lambda number, _: asked.append(number))
print("started", len(os.sched_getaffinity(0)), os.environ["SLURM_PROCID"], flush=True)
while not asked:
  time.sleep(0.02)
time.sleep(0.2)  # it saves
print("saved", flush=True)
sys.exit(128 + asked[0])
"""


@pytest.fixture
def programs(tmp_path):
  """Programs that stand for Slurm's."""
  return stand_ins(tmp_path / "programs")


@pytest.fixture
def job(programs, tmp_path):
  """Starts a job's process, waits for its child, sends it a signal; returns its exit status, the log and what was requeued."""
  (tmp_path / "logs").mkdir()
  (tmp_path / "17_0_submitted.pkl").touch()

  def start(child=CHILD, number=None, state="RUNNING", minutes=600, rank=0):
    (programs / "queue").write_text(state)
    ids = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0", "SLURM_PROCID": str(rank)}
    log = tmp_path / "logs" / ("one.log" if rank == 0 else f"one.task{rank}.log")
    process = subprocess.Popen(
      [sys.executable, "-c", JOB.format(folder=str(tmp_path), child=child, minutes=minutes)],
      cwd=REPOSITORY,
      env={**os.environ, **ids, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)},
      stderr=subprocess.PIPE,
      text=True,
    )
    if number:
      while not (log.exists() and "started" in log.read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
      process.send_signal(number)
    process.communicate(timeout=300)
    controlled = programs / "controlled"
    failure = tmp_path / "failed" / "one.txt"
    return (
      process.returncode,
      log.read_text(),
      controlled.read_text() if controlled.exists() else "",
      failure.read_text() if failure.exists() else "",
    )

  return start


@pytest.mark.parametrize("name", ["SIGUSR2", "SIGTERM", "SIGUSR1"])
def test_a_warned_job_is_requeued_after_the_checkpoint(job, name):
  """Whichever signal the scheduler warns with."""
  status, log, controlled, failure = job(number=getattr(signal, name))
  assert (status, log, controlled, failure) == (255, "started 1 0\nsaved\n", "requeue 17_0\n", "")


def test_a_job_whose_end_is_decided_is_left_to_slurm(job, programs):
  """Cancelled, or requeued by Slurm itself; the array's number would name all of its tasks."""
  assert job(number=signal.SIGTERM, state="COMPLETING") == (143, "started 1 0\nsaved\n", "", "")
  assert "--jobs=17_0\n" in (programs / "asked").read_text()


def test_only_the_first_task_requeues(job):
  assert job(number=signal.SIGTERM, rank=3) == (143, "started 1 3\nsaved\n", "", "")


def test_a_job_that_has_used_up_its_time_limits_is_a_failure(job):
  """The limit is so short that any warning counts as one for it, and none may be used up."""
  _, log, controlled, failure = job(number=signal.SIGUSR2, minutes=1)
  assert (log, controlled, failure) == (
    "started 1 0\nsaved\n",
    "",
    "Job not requeued because: timed-out too many times.\n",
  )


def test_a_failed_run_is_noted_down(job):
  status, _, controlled, failure = job(child="print('error: bad'); import sys; sys.exit(2)")
  assert (status, controlled, failure) == (2, "", "exit status 2: error: bad\n")
  status, _, _, failure = job(child="import os; os.kill(os.getpid(), 9)")
  assert (status, failure) == (137, "killed by SIGKILL\n")
  assert job(child="pass")[::3] == (0, "")


def test_neighbours_take_other_cores(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7, 11})
  monkeypatch.setenv("SLURM_LOCALID", "0")
  taken = []
  for task in range(3):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
    taken.append(own_cores(2))
  assert taken == [[2, 3], [5, 7], [2, 11]] and own_cores(9) == [2, 3, 5, 7, 11]
