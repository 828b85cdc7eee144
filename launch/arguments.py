"""The command line that all launchers share: an experiment, its size, the folder of the sweep, changes of the configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict

from experiments.experiment import Experiment, load_experiment
from experiments.sweep import check_sweep
from launch.runs import Run, prepare_sweep
from transformer_jax.checks import change_fields, split_changes
from transformer_jax.commands import parse_flags, required
from transformer_jax.errors import UserError


class Line(NamedTuple):
  """A command line that was read.

  Attributes:
    origin: the experiment file as it was given ("experiment"), "scale", and the experiment's own options.
    experiment: what the file holds, with the changed fields.
    folder: of the sweep.
    values: all flags.
  """

  origin: dict[str, str]
  experiment: Experiment
  folder: Path
  values: flags.FlagValues

  @property
  def options(self) -> dict[str, str]:
    """What the experiment was given beside its scale."""
    return {name: value for name, value in self.origin.items() if name not in ("experiment", "scale")}

  def configs(self) -> list[ConfigDict]:
    """The configuration of each run. Raises UserError as `check_sweep` does."""
    return check_sweep(self.experiment.base, self.experiment.sweep)

  def prepare(self) -> list[Run]:
    """Writes the folder of the sweep; returns its runs. Raises UserError as `prepare_sweep` does."""
    return prepare_sweep(self.experiment, self.origin, self.folder)


def read_line(arguments: list[str], define: Callable[[flags.FlagValues], None], description: str, module: str) -> Line:
  """Reads the arguments of a launcher; writes nothing.

  Args:
    arguments: `experiments/table3.py --scale=small --output=DIR --config.training.steps=100` and the launcher's own flags.
    define: defines the launcher's own flags.
    description: for --help.
    module: the launcher, for the hint at what a line looks like.

  Raises:
    UserError: a mistake in the line, or in the experiment file.
  """
  changes, left = split_changes(arguments)
  if "" in dict(changes):
    raise UserError(
      "the experiment names its base configuration: --config.FIELD=VALUE changes a field, --config is not taken"
    )
  options, left = split_options(left)
  path = left.pop(0) if left and not left[0].startswith("-") else None

  def define_all(values: flags.FlagValues) -> None:
    flags.DEFINE_string("scale", "small", "size of the experiment: paper, small or smoke", flag_values=values)
    flags.DEFINE_string("output", None, "folder of the sweep: new, or one to go on with", flag_values=values)
    define(values)

  values = parse_flags(define_all, left, description)
  if path is None:
    raise UserError(f"name an experiment first: python -m {module} experiments/table3.py --output=DIR")
  (output,) = required(values, "output")
  experiment = load_experiment(path, values.scale, options)
  change_fields(experiment.base, changes)
  return Line({"experiment": path, "scale": values.scale, **options}, experiment, Path(output), values)


def split_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
  """Takes `--experiment.NAME=VALUE` out of a command line; returns the values by name and the arguments that are left."""
  prefix = "--experiment."
  given = [argument.removeprefix(prefix).partition("=") for argument in arguments if argument.startswith(prefix)]
  return {name: value for name, _, value in given}, [a for a in arguments if not a.startswith(prefix)]
