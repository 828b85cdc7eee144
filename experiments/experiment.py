"""What an experiment file holds: a question, a base configuration, a sweep, and what its report shows.

A file `experiments/NAME.py` defines `get_experiment(scale)`, which returns an `Experiment`. That is all it takes to add
one. Further arguments, which need defaults that are strings, become flags: `get_experiment(scale, languages="hun,hin")` takes
--experiment.languages=fre.
"""

import dataclasses
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from ml_collections import ConfigDict

from experiments.sweep import Sweep
from transformer_jax.errors import UserError

SCALES = ("paper", "small", "smoke")


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of the report.

  Attributes:
    title: over the column, for example "BLEU".
    value: where the figure stands in `results.json`, for example "test.bleu".
    digits: after the decimal point.
    lower_is_better: whether a smaller figure is the better one.
  """

  title: str
  value: str
  digits: int = 2
  lower_is_better: bool = False


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A sweep and how to report it.

  Attributes:
    question: what the experiment answers, one or a few sentences; the head of the report.
    base: the configuration that the settings change.
    sweep: the settings, seeds included.
    columns: the figures of the report; the first is the one that rows are judged by.
    published: row → title of a column → the figure in the paper; rows and columns may be missing.
    source: where the published figures stand.
    compared_with: the row that the others are compared with; "": each is compared with its published figure.
    cores: CPU cores of each run. A run's bits depend on their number, so it belongs to the experiment, not to the launcher.
  """

  question: str
  base: ConfigDict
  sweep: Sweep
  columns: tuple[Column, ...]
  published: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
  source: str = ""
  compared_with: str = "base"
  cores: int = 1


def load_experiment(path: str, scale: str, options: Mapping[str, str] | None = None) -> Experiment:
  """Runs `get_experiment(scale, **options)` of a Python file; raises UserError naming the file and the line at fault."""
  file = Path(path)
  if scale not in SCALES:
    raise UserError(f"--scale must be one of {', '.join(SCALES)}, not {scale!r}")
  if not file.is_file():
    raise UserError(f"no experiment file {path}")
  spec = importlib.util.spec_from_file_location("experiment_file", file)
  if spec is None or spec.loader is None:
    raise UserError(f"{path} is not a Python file (.py)")
  module = importlib.util.module_from_spec(spec)
  sys.path.insert(0, str(file.resolve().parent.parent))  # so that it may import its neighbours and `configs`
  try:
    spec.loader.exec_module(module)
    if not hasattr(module, "get_experiment"):
      raise UserError(f"{path} has no function get_experiment(scale)")
    known = list(inspect.signature(module.get_experiment).parameters)[1:]
    for name in options or {}:
      if name not in known:
        flags = ", ".join(f"--experiment.{other}" for other in known) or "no flags of its own"
        raise UserError(f"--experiment.{name}: {path} has {flags}")
    experiment = module.get_experiment(scale, **(options or {}))
  except UserError:
    raise
  except Exception as error:
    here = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = getattr(error, "lineno", None) or (here[-1] if here else "?")
    first_line = (str(error).strip().strip("\"'").splitlines() or [""])[0]
    raise UserError(f"{path}, line {line}: {type(error).__name__}: {first_line}") from None
  finally:
    sys.path.pop(0)
  if not isinstance(experiment, Experiment):
    raise UserError(f"{path}: get_experiment(scale) must return an experiments.experiment.Experiment")
  return experiment
