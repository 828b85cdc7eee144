"""What a job of `launch.slurm` does: it runs `transformer_jax.main` as a child, and has what is cut short go on.

Slurm cuts a job short at its time limit, for a more important job (preemption), or because somebody asked for it, and says so by
a signal first:

- SIGUSR2 comes `--warning_seconds` before the time limit and, on some clusters, before a preemption. submitit listens for it:
  in task 0 it calls our `checkpoint`, which has the child save and waits for it, and puts the job back into the queue.
  It takes a job that ran for most of its time as out of time, and those it counts, up to `--max_timeouts`.
- SIGTERM comes with a preemption, and when a job is cancelled or requeued; SIGUSR1 from people alone. submitit does nothing about
  either, so they are passed on to the child. When it has saved, the queue says whether the job's end is decided already (it
  was cancelled, or Slurm will requeue it); where it is not, submitit is made to requeue it as above.

A job started again runs the same command, which goes on from its newest checkpoint.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission, UncompletedJobError

from launch.runs import Run, reason_of
from launch.slurm_queue import state_of_this_job

PROGRAM = ("-m", "transformer_jax.main")
REQUEUE = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]  # SIGUSR2, unless SUBMITIT_PREEMPT_SIGNAL says otherwise
STOPS = (signal.SIGTERM, signal.SIGUSR1)  # on which `transformer_jax.main` saves a checkpoint and ends
STOPPED = {
  status for number in STOPS for status in (-number, 128 + number)
}  # exit statuses: unprepared, and after saving
SECONDS_TO_BE_ENDED = 600


class TrainRun:
  """Trains a run, or goes on with it: called in each task of its job.

  Attributes:
    run: what to train; its folder is an absolute path.
    cores: CPU cores for the process of each task.
  """

  def __init__(self, run: Run, cores: int):
    self.run, self.cores = run, cores
    self._child: subprocess.Popen | None = None
    self._asked = 0  # the signal that asked us to stop

  def __call__(self) -> None:
    """Runs the command to its end, and exits with its status where that is not 0, so that Slurm says so too.

    Raises:
      UncompletedJobError: the job has used up its time limits.
    """
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    log = self.run.log if rank == 0 else self.run.log.with_name(f"{self.run.name}.task{rank}.log")
    for number in STOPS:
      if number != REQUEUE:
        signal.signal(number, self._pass_on)
    if rank == 0:
      self.run.clear_failure()
    try:
      status = self._run(log)
      if status in STOPPED:
        self._hand_back(rank)
      elif status and not self.run.finished():
        self.run.mark_failed(reason_of(status, log))
    except UncompletedJobError as error:
      self.run.mark_failed(str(error))
      raise
    if status:
      sys.exit(status if status > 0 else 128 - status)

  def checkpoint(self) -> DelayedSubmission:
    """Has a checkpoint saved; submitit calls it in a signal's handler. Returns what the job is to do when it starts again."""
    if self._child is not None:
      self._child.send_signal(signal.SIGUSR1)
      self._await_end()
    return DelayedSubmission(TrainRun(self.run, self.cores))

  def _run(self, log: Path) -> int:
    """Runs the child; returns its exit status, as `subprocess` has it."""
    if self._asked:
      return -self._asked
    with open(log, "ab") as output:
      self._child = subprocess.Popen(
        [sys.executable, *PROGRAM, *self.run.command()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=self._prepare_child,
      )
    if self._asked:  # while it was being started
      self._child.send_signal(self._asked)
    self._await_end()
    return self._child.wait()

  def _prepare_child(self) -> None:
    """What the child does before it becomes the command."""
    # Slurm sends the signal to all processes of a task; the child does not know it, and would die of it.
    if REQUEUE not in STOPS:
      signal.signal(REQUEUE, signal.SIG_IGN)
    if hasattr(os, "sched_setaffinity"):  # before JAX counts the cores: a run's bits depend on their number
      os.sched_setaffinity(0, own_cores(self.cores))

  def _await_end(self) -> None:
    """Waits for the child and leaves it to be reaped: a signal's handler may wait here while the program below it does too."""
    assert self._child is not None
    with contextlib.suppress(ChildProcessError):  # it has been reaped
      os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)

  def _pass_on(self, number: int, frame: FrameType | None) -> None:
    """Handles SIGTERM and SIGUSR1."""
    self._asked = number
    if self._child is not None:
      self._child.send_signal(number)

  def _hand_back(self, rank: int) -> None:
    """After the child has stopped: requeues the job, unless its end is decided already."""
    if rank:
      time.sleep(
        SECONDS_TO_BE_ENDED
      )  # task 0 may still be saving, and the first task that ends can take the others along
    elif state_of_this_job() == "RUNNING":
      signal.raise_signal(REQUEUE)  # submitit's handler; it ends this process


def own_cores(number: int) -> list[int]:
  """So many of the cores that this task may use; other ones than its neighbours' where Slurm lets all tasks use all cores."""
  cores = sorted(os.sched_getaffinity(0))
  position = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")) + int(os.environ.get("SLURM_LOCALID", "0"))
  return sorted({cores[(position * number + i) % len(cores)] for i in range(min(number, len(cores)))})
