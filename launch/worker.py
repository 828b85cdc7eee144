"""The process of a run: `transformer_jax.main` on its own cores, which stops when its launcher does."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess

from launch.runs import Run

MODULE = "launch.worker_program"


def start_worker(runs: Sequence[Run], cores: Sequence[int], environment: Mapping[str, str]) -> ForkServerProcess:
  """Starts `transformer_jax.main` on a run, or one program for several; what it prints is appended to the first run's log.

  The process is a fork of one that has loaded JAX and everything else, and has not used them yet: loading takes five seconds of a
  core, which a sweep of small runs would pay for each of them.
  """
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload([MODULE])
  process = context.Process(target=work, args=(list(runs), list(cores), dict(environment)))
  process.start()
  return process


def work(runs: list[Run], cores: list[int], environment: dict[str, str]) -> None:
  """What the process does."""
  os.setsid()  # Ctrl-C is for the launcher alone, which then asks each run to stop
  file = os.open(runs[0].log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
  os.dup2(file, 1)
  os.dup2(file, 2)
  os.environ.update(environment)
  if hasattr(os, "sched_setaffinity"):  # Linux; before JAX counts the cores
    os.sched_setaffinity(0, cores)
  threading.Thread(target=stop_with_launcher, daemon=True).start()
  from launch.worker_program import run_all

  run_all(runs)


def stop_with_launcher() -> None:
  """Asks this process to stop when the launcher is gone: a killed one leaves nothing running."""
  launcher = multiprocessing.parent_process()
  assert launcher is not None
  launcher.join()
  os.kill(os.getpid(), signal.SIGTERM)
