"""Runs an experiment on this machine: several processes side by side, and a table of how far they are.

  python -m launch.local experiments/table3.py --scale=small --workers=2 --output=DIR

The same line again does what is missing: finished runs are left alone, stopped ones go on, failed ones are tried again.
With --vmap, runs that differ in seed, dropout, label smoothing and learning rate alone train as one program, which suits a GPU.
Ctrl-C stops all runs after a checkpoint each. Fields of every run can be changed: --config.training.steps=100. What an experiment
takes beside its scale is --experiment.NAME=VALUE.
"""

import signal
import sys
import time
from collections import deque
from collections.abc import Sequence

from absl import flags
from rich.console import Console

from launch.arguments import read_line
from launch.groups import one_by_one, together
from launch.runs import Run
from launch.slots import Slot, make_slots
from launch.table import Watch, live_table, new_table_console, runs_table
from transformer_jax.commands import run_command

SECONDS_BETWEEN_LOOKS = 0.5


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of this launcher, beside those of all."""
  flags.DEFINE_integer(
    "workers", 0, "processes at a time; 0: as many as there are GPUs, or cores for", lower_bound=0, flag_values=values
  )
  flags.DEFINE_boolean(
    "vmap",
    False,
    "train as one program what differs in seed, dropout, label smoothing and learning rate alone",
    flag_values=values,
  )


def main(arguments: list[str]) -> None:
  """The command."""
  line = read_line(arguments, define_flags, __doc__, "launch.local")
  if line.values.vmap:
    together(line.configs())  # what cannot be is refused before anything is written
  runs = line.prepare()
  jobs = [[runs[i] for i in group] for group in (together if line.values.vmap else one_by_one)(line.configs())]
  slots = make_slots(line.values.workers, line.experiment.cores)
  failed = Launcher(jobs, slots, new_table_console()).run()
  print(f"report: python -m experiments.report {line.folder}")
  if failed:
    print(
      f"{len(failed)} of {len(runs)} runs failed: {', '.join(run.name for run in failed)}; see {line.folder}/failed"
    )
    sys.exit(1)


class Launcher:
  """Works off a list of jobs, each of one run or of several that train together, with a number of slots."""

  def __init__(self, jobs: Sequence[list[Run]], slots: Sequence[Slot], console: Console):
    self.jobs, self.slots, self.console = jobs, slots, console
    self.watches = {run.name: Watch(run) for job in jobs for run in job}
    self.stopping = 0  # the signal that asked us to stop

  def run(self) -> list[Run]:
    """Runs everything that is not finished; returns the runs that failed.

    Raises:
      KeyboardInterrupt: after Ctrl-C or SIGTERM, when all runs have stopped.
    """
    missing = ([run for run in job if not run.finished()] for job in self.jobs)
    waiting = deque(job for job in missing if job)
    before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
      with live_table(self.console) as live:
        while (waiting and not self.stopping) or any(slot.runs for slot in self.slots):
          self._step(waiting)
          if live:
            live.update(runs_table(self.watches.values(), self.console.height - 4), refresh=True)
          time.sleep(SECONDS_BETWEEN_LOOKS)
        if live:
          live.update(runs_table(self.watches.values()), refresh=True)
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
      for slot in self.slots:
        slot.send(signal.SIGTERM)
    if self.stopping:
      print("stopped; the same line goes on", file=sys.stderr)
      raise KeyboardInterrupt
    return [run for job in self.jobs for run in job if not run.finished()]

  def _stop(self, number: int, _) -> None:
    """Asks every run to stop; asked a second time, ends them at once."""
    for slot in self.slots:
      slot.send(signal.SIGKILL if self.stopping else signal.SIGTERM)
    self.stopping = number

  def _step(self, waiting: deque[list[Run]]) -> None:
    """Takes note of ended runs and starts others."""
    for slot in self.slots:
      if slot.ended():
        for run in slot.free():
          self.watches[run.name].look_again()
          self._say(run)
      if not slot.runs and waiting and not self.stopping:
        # A run of a killed launcher may still be saving.
        ready = [job for job in waiting if not any(run.busy() for run in job)]
        if ready:
          waiting.remove(ready[0])
          slot.start(ready[0])

  def _say(self, run: Run) -> None:
    """Where there is no table on the screen, a line for each run that ends."""
    if not self.console.is_terminal:
      self.console.print(f"{run.name}: {self.watches[run.name].state()}", soft_wrap=True)


if __name__ == "__main__":
  run_command(main)
