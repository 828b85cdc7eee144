"""The folder of a sweep: which runs there are, what each is to do, and how far it has come.

DIR/sweep.json           the experiment: question, columns, published figures, and the runs in order
DIR/configs/NAME.json    what each run is to train
DIR/runs/NAME/           its run directory
DIR/logs/NAME.log        what it printed, all starts
DIR/failed/NAME.txt      why it failed, in a line; gone as soon as it is started again
DIR/slurm.json           of runs that `launch.slurm` submitted: the jobs
DIR/slurm/               what submitit keeps of each job, and what it printed beside the run
"""

import dataclasses
import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.experiment import Experiment
from experiments.sweep import Setting, check_sweep
from transformer_jax.checks import fields, load_saved_config
from transformer_jax.errors import UserError
from transformer_jax.training.rundir import LOCK_FILE, write_json_atomically, write_text_atomically

SWEEP_FILE = "sweep.json"


@dataclasses.dataclass(frozen=True)
class Run:
  """One training of a sweep.

  Attributes:
    folder: of the sweep.
    setting: what it changes of the base configuration.
  """

  folder: Path
  setting: Setting

  @property
  def name(self) -> str:
    """Its name, from the setting."""
    return self.setting.name

  @property
  def config_file(self) -> Path:
    """What it is to train."""
    return self.folder / "configs" / f"{self.name}.json"

  @property
  def directory(self) -> Path:
    """Its run directory."""
    return self.folder / "runs" / self.name

  @property
  def log(self) -> Path:
    """What it printed."""
    return self.folder / "logs" / f"{self.name}.log"

  @property
  def failure_file(self) -> Path:
    """Where it says why it failed."""
    return self.folder / "failed" / f"{self.name}.txt"

  def config(self) -> ConfigDict:
    """The configuration it is to train."""
    return load_saved_config(self.config_file)

  def command(self) -> list[str]:
    """The arguments of `transformer_jax.main` that train it or go on with it."""
    return [f"--config={self.config_file}", f"--workdir={self.directory}"]

  def finished(self) -> bool:
    """Whether it has trained what its configuration says."""
    saved = self.directory / "config.json"
    if not (self.directory / "results.json").exists() or not saved.exists():
      return False
    return dict(fields(load_saved_config(saved))) == dict(fields(self.config()))

  def busy(self) -> bool:
    """Whether a process, of this launcher or another, works in the run directory now."""
    try:
      file = os.open(self.directory / LOCK_FILE, os.O_RDWR)
    except OSError:
      return False
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return False
    except OSError:
      return True
    finally:
      os.close(file)

  def failure(self) -> str:
    """Why it failed; "" if it did not."""
    try:
      return self.failure_file.read_text().strip()
    except OSError:
      return ""

  def mark_failed(self, reason: str) -> None:
    """Notes down why it failed."""
    self.failure_file.parent.mkdir(exist_ok=True)
    write_text_atomically(self.failure_file, reason.strip() + "\n")

  def clear_failure(self) -> None:
    """Takes the note back."""
    self.failure_file.unlink(missing_ok=True)

  def results(self) -> dict[str, Any] | None:
    """The content of its results.json; None while it is not finished."""
    return json.loads((self.directory / "results.json").read_text()) if self.finished() else None


def prepare_sweep(experiment: Experiment, origin: dict[str, str], folder: Path) -> list[Run]:
  """Checks every setting and writes the folder of the sweep; what is there already stays.

  Args:
    origin: where the experiment comes from: "experiment" (its file), "scale", and its options.
    folder: of the sweep.

  Raises:
    UserError: a mistake in a setting, a folder that holds another experiment, or one that cannot be written.
  """
  configs = check_sweep(experiment.base, experiment.sweep)
  if (folder / SWEEP_FILE).exists() and (saved := read_sweep(folder)["origin"]) != origin:
    was, now = (", ".join(f"{name} {value}" for name, value in made.items()) for made in (saved, origin))
    raise UserError(f"--output={folder} holds a sweep of {was}: name another folder for {now}")
  runs = [Run(folder, setting) for setting in experiment.sweep]
  try:
    for part in ("configs", "runs", "logs"):
      (folder / part).mkdir(parents=True, exist_ok=True)
    for run, config in zip(runs, configs, strict=True):
      write_json_atomically(run.config_file, config.to_dict())
    write_json_atomically(folder / SWEEP_FILE, {"origin": origin, **described(experiment)})
  except OSError as error:
    raise UserError(f"--output={folder} cannot be written: {error.strerror}") from None
  return runs


def described(experiment: Experiment) -> dict[str, Any]:
  """The experiment as JSON: all that a report needs beside the run directories."""
  return {
    "question": experiment.question,
    "source": experiment.source,
    "compared_with": experiment.compared_with,
    "cores": experiment.cores,
    "columns": [dataclasses.asdict(column) for column in experiment.columns],
    "published": {row: dict(figures) for row, figures in experiment.published.items()},
    "runs": [{"label": s.label, "changes": dict(s.changes)} for s in experiment.sweep],
  }


def read_sweep(folder: Path) -> dict[str, Any]:
  """The content of sweep.json; raises UserError where there is none."""
  try:
    return json.loads((folder / SWEEP_FILE).read_text())
  except FileNotFoundError:
    raise UserError(f"no {folder / SWEEP_FILE}: this is not the folder of a sweep") from None
  except ValueError as error:
    raise UserError(f"{folder / SWEEP_FILE} is damaged: {error}") from None


def runs_of(folder: Path) -> list[Run]:
  """The runs of a sweep's folder, in the order of the experiment."""
  return [Run(folder, Setting(run["changes"], run["label"])) for run in read_sweep(folder)["runs"]]


def reason_of(status: int, log: Path) -> str:
  """Why a process failed: the signal that killed it (a negative status), or the last line that it printed."""
  if status < 0:
    return f"killed by {signal.Signals(-status).name}"
  lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
  return f"exit status {status}: {lines[-1].strip() if lines else 'it printed nothing'}"
