"""How far the runs of a sweep are, as a table."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from launch.runs import Run
from transformer_jax.training.progress import METRICS_FILE, duration

LAST_BYTES = 4_096  # of metrics.jsonl: enough for its last lines
WIDTH = 200  # of a table that goes into a file or pipe


class Watch:
  """Follows a run from outside, by its files."""

  def __init__(self, run: Run):
    self.run = run
    self.steps = run.config().training.steps
    self._first: tuple[int, float] | None = None  # step and time of the first look at this start
    self._done = run.finished()

  def look_again(self) -> None:
    """Looks up whether the run is done, which otherwise no look at its state does: it means reading two configurations."""
    done, self._done = self._done, self.run.finished()
    if done != self._done:
      self._first = None

  def state(self) -> str:
    """done, failed: why, running, stopped or waiting."""
    if self._done:
      return "done"
    if reason := self.run.failure():
      return f"failed: {reason}"
    return "running" if self.run.busy() else "stopped" if self.step() else "waiting"

  def step(self) -> int:
    """Updates done, as far as written."""
    return int(self._last_line().get("step", 0))

  def row(self) -> tuple[str, ...]:
    """Name, state, step, loss and remaining time."""
    state, line = self.state(), self._last_line()
    step = int(line.get("step", 0))
    loss = line.get("loss")
    return (
      self.run.name,
      state,
      f"{step:,}/{self.steps:,}" if step else "",
      f"{loss:.3f}" if loss is not None else "",
      self._remaining(step) if state == "running" else "",
    )

  def _remaining(self, step: int) -> str:
    now = time.monotonic()
    if self._first is None or step < self._first[0] or not step:
      self._first = (step, now) if step else None
      return ""
    first_step, first_time = self._first
    if step == first_step:
      return ""
    return duration((now - first_time) / (step - first_step) * (self.steps - step))

  def _last_line(self) -> dict:
    """The last whole line of the run's metrics."""
    try:
      with open(self.run.directory / METRICS_FILE, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        lines = file.read().split(b"\n")[:-1]
    except OSError:
      return {}
    for line in reversed(lines):
      try:
        return json.loads(line)
      except ValueError:
        continue
    return {}


def runs_table(watches: Iterable[Watch], rows: int | None = None) -> Table:
  """The runs with their state; where not all fit in `rows`, the finished and then the waiting ones are only counted."""
  table = Table(box=None, pad_edge=False)
  for title in ("run", "state", "step", "loss", "left"):
    table.add_column(title, justify="left" if title in ("run", "state") else "right", overflow="fold")
  shown = [watch.row() for watch in watches]
  for state in ("done", "waiting"):
    if rows is not None and len(shown) > max(rows, 4):
      hidden = [row for row in shown if row[1] == state]
      shown = [row for row in shown if row[1] != state]
      if hidden:
        table.add_row(f"{len(hidden)} runs", state, "", "", "")
  for row in shown[:rows] if rows is not None else shown:
    table.add_row(*row)
  return table


def new_table_console() -> Console:
  """A console that takes the names of runs as they are."""
  width = None if sys.stdout.isatty() else WIDTH
  return Console(markup=False, emoji=False, highlight=False, width=width)


def live_table(console: Console) -> contextlib.AbstractContextManager[Live | None]:
  """For a `with` block: a place on the screen for the table, or None where the output is no terminal."""
  screen = console.is_terminal and not console.is_dumb_terminal
  return Live(console=console, auto_refresh=False) if screen else contextlib.nullcontext()
