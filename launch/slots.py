"""Places for processes: so many at a time, each with cores and, where there are any, a GPU of its own."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess

from launch.runs import Run, reason_of
from launch.worker import start_worker


class Slot:
  """A place for one process at a time, which trains one run, or several as one program.

  Attributes:
    cores: the CPU cores of the process.
    environment: what it has in its environment beside ours (its GPU).
    runs: that it trains now; none: the slot is free.
  """

  def __init__(self, cores: Sequence[int], environment: dict[str, str]):
    self.cores, self.environment = cores, environment
    self.runs: list[Run] = []
    self.process: ForkServerProcess | None = None

  def start(self, runs: list[Run]) -> None:
    """Starts or goes on with runs; what they print goes to the log of the first."""
    self.runs = runs
    for run in runs:
      run.clear_failure()
    self.process = start_worker(runs, self.cores, self.environment)

  def send(self, number: int) -> None:
    """Sends its process, if there is one, a signal."""
    if self.process is not None and self.process.is_alive() and self.process.pid is not None:
      os.kill(self.process.pid, number)

  def ended(self) -> bool:
    """Whether its process has ended since it was started."""
    return self.process is not None and not self.process.is_alive()

  def free(self) -> list[Run]:
    """Notes down how the ended runs went, returns them, and is ready for others."""
    assert self.process is not None
    runs, status = self.runs, self.process.exitcode or 0
    asked_to_stop = status in (-signal.SIGTERM, 128 + signal.SIGTERM)
    for run in runs:
      if not run.finished() and not run.failure() and not asked_to_stop:
        run.mark_failed(reason_of(status, runs[0].log))
    self.runs, self.process = [], None
    return runs


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
