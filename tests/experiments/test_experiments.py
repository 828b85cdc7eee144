"""Every experiment file, at every scale: settings that are allowed, figures that are computed, options of its own."""

from pathlib import Path

import pytest

from experiments.experiment import SCALES, load_experiment
from experiments.sweep import check_sweep
from transformer_jax.errors import UserError

FOLDER = Path(__file__).parents[2] / "experiments"
FILES = sorted(path for path in FOLDER.glob("*.py") if "def get_experiment" in path.read_text())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiments_hold(path, scale):
  experiment = load_experiment(str(path), scale)
  configs = check_sweep(experiment.base, experiment.sweep)
  rows = [setting.row for setting in experiment.sweep]
  assert experiment.compared_with in ("", *rows)
  assert len(configs) == len({setting.name for setting in experiment.sweep})
  for column in experiment.columns:
    metric = column.value.split(".")[-1]
    computed = (*experiment.base.evaluation.metrics, "exact_match", "perplexity", "nll")
    assert metric in computed, f"{column.title} is not computed"
  assert experiment.question.endswith(("?", "."))


def test_there_are_experiments():
  assert {path.stem for path in FILES} == {"table3", "multi30k", "g2p", "scan"}


def test_options():
  path = str(FOLDER / "g2p.py")
  rows = {setting.row for setting in load_experiment(path, "paper", {"languages": "gre,arm"}).sweep}
  assert rows == {"gre", "arm"}
  with pytest.raises(UserError, match="'xyz' is none of arm, bul"):
    load_experiment(path, "paper", {"languages": "xyz"})
  with pytest.raises(UserError, match=r"--experiment\.language: .* has --experiment\.languages"):
    load_experiment(path, "paper", {"language": "gre"})


@pytest.mark.parametrize(
  "text, message",
  [
    ("def get_experiment(scale):\n  return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
    ("def get_experiment(scale):\n  return 3\n", "must return an experiments.experiment.Experiment"),
    ("x = 3\n", "has no function get_experiment(scale)"),
    ("def get_experiment(scale)\n", "line 1: SyntaxError"),
  ],
)
def test_a_file_with_a_mistake(tmp_path, text, message):
  path = tmp_path / "mine.py"
  path.write_text(text)
  with pytest.raises(UserError) as caught:
    load_experiment(str(path), "smoke")
  assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
