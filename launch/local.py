"""Runs an experiment on this machine: several processes side by side, and a table of how far they are.

  python -m launch.local experiments/table3.py --scale=small --workers=2 --output=DIR

The same line again does what is missing: finished runs are left alone, stopped ones go on, failed ones are tried again.
Ctrl-C stops all runs after a checkpoint each. Fields of every run can be changed: --config.training.steps=100.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess

from absl import flags
from rich.console import Console

from launch.arguments import read_line
from launch.runs import Run, reason_of
from launch.table import Watch, live_table, new_table_console, runs_table
from launch.worker import start_worker
from transformer_jax.commands import run_command

SECONDS_BETWEEN_LOOKS = 0.5


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of this launcher, beside those of all."""
  flags.DEFINE_integer(
    "workers", 0, "runs at a time; 0: as many as there are GPUs, or cores for", lower_bound=0, flag_values=values
  )


def main(arguments: list[str]) -> None:
  """The command."""
  line = read_line(arguments, define_flags, __doc__, "launch.local")
  runs = line.prepare()
  slots = make_slots(line.values.workers, line.experiment.cores)
  failed = Launcher(runs, slots, new_table_console()).run()
  print(f"report: python -m experiments.report {line.folder}")
  if failed:
    print(
      f"{len(failed)} of {len(runs)} runs failed: {', '.join(run.name for run in failed)}; see {line.folder}/failed"
    )
    sys.exit(1)


class Slot:
  """A place for one run at a time.

  Attributes:
    cores: the CPU cores of its run.
    environment: what its run has in its environment beside ours (its GPU).
  """

  def __init__(self, cores: Sequence[int], environment: dict[str, str]):
    self.cores, self.environment = cores, environment
    self.run: Run | None = None
    self.process: ForkServerProcess | None = None

  def start(self, run: Run) -> None:
    """Starts or goes on with a run; what it prints goes to its log."""
    self.run = run
    run.clear_failure()
    self.process = start_worker(run.command(), self.cores, run.log, self.environment)

  def send(self, number: int) -> None:
    """Sends its process, if there is one, a signal."""
    if self.process is not None and self.process.is_alive() and self.process.pid is not None:
      os.kill(self.process.pid, number)

  def ended(self) -> bool:
    """Whether its process has ended since it was started."""
    return self.process is not None and not self.process.is_alive()

  def free(self) -> Run:
    """Notes down how the ended run went, returns it, and is ready for another."""
    assert self.run is not None and self.process is not None
    run, status = self.run, self.process.exitcode or 0
    if not run.finished() and status not in (-signal.SIGTERM, 128 + signal.SIGTERM):  # not because it was asked to stop
      run.mark_failed(reason_of(status, run.log))
    self.run = self.process = None
    return run


class Launcher:
  """Works off a list of runs with a number of slots."""

  def __init__(self, runs: Sequence[Run], slots: Sequence[Slot], console: Console):
    self.runs, self.slots, self.console = runs, slots, console
    self.watches = {run.name: Watch(run) for run in runs}
    self.stopping = 0  # the signal that asked us to stop

  def run(self) -> list[Run]:
    """Runs everything that is not finished; returns the runs that failed.

    Raises:
      KeyboardInterrupt: after Ctrl-C or SIGTERM, when all runs have stopped.
    """
    waiting = deque(run for run in self.runs if not run.finished())
    before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
      with live_table(self.console) as live:
        while (waiting and not self.stopping) or any(slot.run for slot in self.slots):
          self._step(waiting)
          live.update(runs_table(self.watches.values(), self.console.height - 4), refresh=True)
          time.sleep(SECONDS_BETWEEN_LOOKS)
        live.update(runs_table(self.watches.values()), refresh=True)
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
      for slot in self.slots:
        slot.send(signal.SIGTERM)
    if self.stopping:
      print("stopped; the same line goes on", file=sys.stderr)
      raise KeyboardInterrupt
    return [run for run in self.runs if not run.finished()]

  def _stop(self, number: int, _) -> None:
    """Asks every run to stop; asked a second time, ends them at once."""
    for slot in self.slots:
      slot.send(signal.SIGKILL if self.stopping else signal.SIGTERM)
    self.stopping = number

  def _step(self, waiting: deque[Run]) -> None:
    """Takes note of ended runs and starts others."""
    for slot in self.slots:
      if slot.ended():
        self._say(slot.free())
      if slot.run is None and waiting and not self.stopping:
        run = next((run for run in waiting if not run.busy()), None)  # a run of a killed launcher may still be saving
        if run is not None:
          waiting.remove(run)
          slot.start(run)
          self.watches[run.name].started()

  def _say(self, run: Run) -> None:
    """Where there is no table on the screen, a line for each run that ends."""
    if not self.console.is_terminal:
      self.console.print(f"{run.name}: {self.watches[run.name].state()}", soft_wrap=True)


def make_slots(workers: int, cores_per_run: int) -> list[Slot]:
  """Slots with cores and, where there are any, a GPU each; `workers` 0: as many as fit."""
  cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
  gpus = visible_gpus()
  workers = workers or len(gpus) or max(1, len(cores) // cores_per_run)
  slots = []
  for number in range(workers):
    first = number * cores_per_run
    own = sorted({cores[(first + i) % len(cores)] for i in range(min(cores_per_run, len(cores)))})
    slots.append(Slot(own, {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}))
  return slots


def visible_gpus() -> list[str]:
  """The NVIDIA GPUs that may be used, as CUDA_VISIBLE_DEVICES names them."""
  if "CUDA_VISIBLE_DEVICES" in os.environ:
    return [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
  if not shutil.which("nvidia-smi"):
    return []
  listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
  return [str(number) for number, line in enumerate(line for line in listed if line.startswith("GPU "))]


if __name__ == "__main__":
  run_command(main)
