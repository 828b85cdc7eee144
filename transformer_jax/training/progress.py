"""What a run shows and records: the screen, `metrics.jsonl` and TensorBoard."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, SupportsFloat

import jax
from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as RichProgress
from rich.table import Column, Table
from rich.text import Text

from transformer_jax.training.rundir import plain, write_bytes_atomically
from transformer_jax.training.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"


class Metrics:
  """Appends what is measured to `<workdir>/metrics.jsonl` and to `<workdir>/tensorboard/`; only process 0 does.

  A line is `{"step": 10, "split": "train", "loss": 3.2, ..., "time": {...}}`. All that depends on the clock or the
  machine is under "time"; the rest of the file is the same, byte for byte, whether or not the run was killed and went
  on. NaN and infinities are null.
  """

  def __init__(self, workdir: str | os.PathLike, resume_step: int | None = None):
    """Opens the files and takes back what was written after the step that the run goes on from.

    Args:
      workdir: the run directory, which exists.
      resume_step: the restored checkpoint's step: lines of later steps are dropped, and so is a half-written one;
        earlier ones stay as they are. None: the run starts from the beginning and every line is dropped.
    """
    self._file = self._tensorboard = None
    if jax.process_index() != 0:
      return
    path = Path(workdir) / METRICS_FILE
    last_step = -1 if resume_step is None else resume_step
    _drop_later_lines(path, last_step)
    self._file = path.open("ab")
    # TensorBoard hides what an earlier, killed process recorded from `purge_step` on.
    self._tensorboard = SummaryWriter(
      str(Path(workdir) / "tensorboard"),
      purge_step=last_step + 1,
      filename_suffix=f".from_{last_step + 1}",  # else a start in the same second writes over the earlier file
      flush_secs=10,
    )

  def write(
    self, step: int, split: str, values: Mapping[str, Any], time: Mapping[str, Any] | None = None
  ) -> dict[str, Any]:
    """Writes one line; it is in the file when this returns.

    Args:
      step: number of updates done.
      split: "train", "valid", ...
      values: name → number (of Python, NumPy or JAX) or string.
      time: the same for what depends on the clock: seconds, pieces per second, memory.

    Returns:
      The line as a dictionary of plain Python values.
    """
    line = plain({"step": step, "split": split, **values, "time": time or {}})
    if self._file is not None and self._tensorboard is not None:
      self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
      self._file.flush()
      for group, named in ((split, values), (f"{split}_time", time or {})):
        for name in named:
          value = line["time"][name] if named is time else line[name]
          if isinstance(value, int | float):
            self._tensorboard.add_scalar(f"{group}/{name}", value, step)
    return line

  def close(self) -> None:
    """Closes both files."""
    if self._file is not None and self._tensorboard is not None:
      self._file.close()
      self._tensorboard.close()


def read_metrics(path: str | os.PathLike) -> list[dict[str, Any]]:
  """Returns the lines of a `metrics.jsonl`, without a half-written last one."""
  return [line for text in Path(path).read_bytes().split(b"\n") if (line := _parsed(text)) is not None]


def _drop_later_lines(path: Path, last_step: int) -> None:
  """Keeps the whole lines up to a step, byte for byte."""
  if not path.exists():
    return
  content = path.read_bytes()
  *lines, _torn = content.split(b"\n")
  kept = [text for text in lines if (line := _parsed(text)) is not None and line["step"] <= last_step]
  kept_content = b"".join(line + b"\n" for line in kept)
  if kept_content != content:
    write_bytes_atomically(path, kept_content)


def _parsed(text: bytes) -> dict[str, Any] | None:
  """A line of the file; None if it is not whole."""
  try:
    line = json.loads(text)
  except ValueError:
    return None
  return line if isinstance(line, dict) and "step" in line else None


class Progress:
  """Where training stands: a bar on a terminal, else a line now and then.

  Used in a `with` block. While it is open, print through `print`, which keeps the bar below the text; what others write
  to stderr (warnings) goes above the bar too.
  """

  def __init__(self, console: Console, total: int, start: int = 0, seconds_between_lines: float = 15.0):
    """Prepares the display; `with` shows it.

    Args:
      console: from `new_console`.
      total: steps of the whole run.
      start: steps done by earlier starts of the run.
      seconds_between_lines: where there is no terminal.
    """
    self._console = console
    self._total = total
    self._step = start
    self._facts = ["compiling"]
    self._started = monotonic()
    self._first_update: tuple[int, float] | None = None
    self._remaining = ""
    self._seconds_between_lines = seconds_between_lines
    self._last_line = float("-inf")
    self._bar = None
    if console.is_terminal and not console.is_dumb_terminal:
      bar = BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4))
      # A stderr that goes to a file stays there.
      self._bar = RichProgress(
        bar, _Summary(self), console=console, expand=True, refresh_per_second=2, redirect_stderr=sys.stderr.isatty()
      )
      self._task = self._bar.add_task("", total=total, completed=start)

  def update(self, step: int, loss: SupportsFloat, perplexity: SupportsFloat, tokens_per_second: SupportsFloat) -> None:
    """Shows the state after a step.

    Args:
      step: number of updates done.
      loss: of the latest steps, per target piece.
      perplexity: of the latest steps.
      tokens_per_second: target pieces, without padding, per second.
    """
    now = monotonic()
    # The first update is not counted in the speed: compilation is in it.
    if self._first_update is None:
      self._first_update = step, now
    first_step, first_time = self._first_update
    self._step = step
    self._facts = [
      f"loss {float(loss):.3f}",
      f"perplexity {_short(float(perplexity))}",
      f"{float(tokens_per_second):,.0f} tokens/s",
    ]
    if step > first_step:
      self._remaining = duration((now - first_time) / (step - first_step) * (self._total - step))
    if self._bar is not None:
      self._bar.update(self._task, completed=step)
    elif now - self._last_line >= self._seconds_between_lines or step >= self._total:
      self._last_line = now
      self.print(self.summary(width=120))

  def summary(self, width: int) -> str:
    """Step, loss, perplexity, speed, elapsed and remaining time in one line; the elapsed time where there is room."""
    times = [f"{self._remaining} left"] if self._remaining and self._step < self._total else []
    if width >= 100 or not times:
      times.insert(0, f"{duration(monotonic() - self._started)} elapsed")
    total = f"{self._total:,}"
    return "  ".join([f"{self._step:>{len(total)},}/{total}", *self._facts, ", ".join(times)])

  def print(self, *parts: RenderableType) -> None:
    """Prints text or tables, above the bar."""
    self._console.print(*parts)

  def __enter__(self) -> "Progress":
    self._started = monotonic()
    if self._bar is not None:
      self._bar.start()
      self._console.show_cursor(True)  # a killed process could not bring it back
    return self

  def __exit__(self, *_) -> None:
    if self._bar is not None:
      self._bar.stop()


class ProgressOfRun(Progress):
  """One of several runs that share a display: its text is shown under its name, its numbers as a part of the whole's."""

  def __init__(self, display: Progress, name: str, latest: dict[str, tuple[int, float, float, float]]):
    """`latest`: what each run has reported last, shared by all of them."""
    self._display, self._name, self._latest = display, name, latest

  @classmethod
  def of_all(cls, display: Progress, names: Sequence[str]) -> list["ProgressOfRun"]:
    """One for each run."""
    latest: dict[str, tuple[int, float, float, float]] = {}
    return [cls(display, name, latest) for name in names]

  def update(self, step: int, loss: SupportsFloat, perplexity: SupportsFloat, tokens_per_second: SupportsFloat) -> None:
    """Shows the step of the run that is least far, the means of loss and perplexity, and the speed of all runs together."""
    self._latest[self._name] = step, float(loss), float(perplexity), float(tokens_per_second)
    steps, losses, perplexities, speeds = zip(*self._latest.values(), strict=True)
    runs = len(steps)
    self._display.update(min(steps), sum(losses) / runs, sum(perplexities) / runs, sum(speeds))

  def end(self) -> None:
    """Leaves the numbers of this run out from now on."""
    self._latest.pop(self._name, None)

  def print(self, *parts: RenderableType) -> None:
    """Prints text or tables under the name of the run."""
    self._display.print(Text(self._name, style="bold"), *parts)


class _Summary(ProgressColumn):
  """The text to the right of the bar."""

  def __init__(self, progress: Progress):
    super().__init__(table_column=Column(no_wrap=True))
    self._progress = progress

  def render(self, task: Task) -> Text:
    return Text(self._progress.summary(self._progress._console.width))


def new_console() -> Console:
  """The screen: plain text where stdout is no terminal, and nothing at all on other processes than process 0.

  Text is printed as it is: brackets and colons in it mean nothing.
  """
  if hasattr(sys.stdout, "reconfigure"):
    sys.stdout.reconfigure(
      errors="backslashreplace"
    )  # a terminal of another encoding shows escapes, and training goes on
  width = None if sys.stdout.isatty() else 120
  return Console(markup=False, emoji=False, highlight=False, width=width, quiet=jax.process_index() != 0)


def facts_table(facts: Mapping[str, str | Sequence[str]]) -> Table:
  """A name and its value, of one or several lines: {"device": "CPU, 2 cores", "test": ["BLEU 28.1", "nrefs:1|…"]}."""
  table = Table.grid(Column(no_wrap=True, style="bold", min_width=13), Column(overflow="fold"), padding=(0, 2))
  for name, value in facts.items():
    lines = [value] if isinstance(value, str) else value
    table.add_row(Text(name), Text("\n".join(map(_visible, lines))))
  return table


def samples_table(samples: Iterable[tuple[str, str, str]]) -> Table:
  """Translations under their source and reference.

  Args:
    samples: (source, reference, translation) triples.
  """
  table = Table.grid(Column(no_wrap=True, style="dim"), Column(overflow="fold"), padding=(0, 2))
  for number, (source, reference, translation) in enumerate(samples):
    if number:
      table.add_row("", "")
    table.add_row("source", Text(_visible(source)))
    table.add_row("reference", Text(_visible(reference)))
    table.add_row("translation", Text(_visible(translation), style="bold"))
  return table


def duration(seconds: SupportsFloat) -> str:
  """Seconds as "0:42", "12:03", "3:04:05" or "2 d 3:04:05"."""
  minutes, second = divmod(round(float(seconds)), 60)
  hours, minute = divmod(minutes, 60)
  days, hour = divmod(hours, 24)
  if hours == 0:
    return f"{minute}:{second:02}"
  return (f"{days} d " if days else "") + f"{hour}:{minute:02}:{second:02}"


def _short(number: float) -> str:
  """About four digits: "3.214", "48.13", "12,345"."""
  return f"{number:.4g}" if number < 1e3 else f"{number:,.0f}" if number < 1e8 else f"{number:.2g}"


def _visible(text: str) -> str:
  """Shows control characters and line separators as escapes, so that text cannot steer the terminal."""
  return re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda match: repr(match[0])[1:-1], text)
