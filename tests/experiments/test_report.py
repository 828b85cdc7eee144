"""Reports on made-up results: every number from the run directories, no row left out."""

import csv
import json

import pytest
from helpers.tiny_run import tiny_config, write_corpus

from experiments import report
from experiments.experiment import Column, Experiment
from experiments.sweep import chain, one, over, seeds
from launch.runs import prepare_sweep
from transformer_jax.errors import UserError
from transformer_jax.training.rundir import write_json_atomically

PUBLISHED = {"base": {"BLEU": 25.8, "PPL": 4.92}, "num_heads=1": {"BLEU": 24.9, "PPL": 5.29}}


@pytest.fixture
def folder(tmp_path):
  """A sweep of three rows: the base with three seeds, one head with three (one failed), four heads with none finished."""
  data = write_corpus(tmp_path / "data")
  base = tiny_config(data)
  sweep = chain(seeds(one("base"), 3), seeds(over("model.num_heads", 1, 4), 3))
  columns = (Column("BLEU", "test.bleu"), Column("PPL", "valid.perplexity", lower_is_better=True))
  experiment = Experiment("Which?", base, sweep, columns, PUBLISHED, "Table 3")
  runs = prepare_sweep(experiment, {"experiment": "which.py", "scale": "smoke"}, tmp_path / "sweep")
  references = (data / "test.de").read_text().splitlines()
  bleu = {"base": (30.0, 31.0, 32.0), "num_heads=1": (27.0, 28.0)}
  for run in runs:
    scores = bleu.get(run.setting.row, ())
    seed = run.setting.changes["seed"]
    if seed < len(scores):
      (run.directory / "translations").mkdir(parents=True)
      write_json_atomically(run.directory / "config.json", run.config().to_dict())
      results = {
        "parameters": 1_000,
        "steps": 16,
        "test": {"bleu": scores[seed]},
        "valid": {"perplexity": 100 / scores[seed]},
      }
      write_json_atomically(
        run.directory / "results.json", {**results, "time": {"train_seconds": 1.5, "device": "cpu"}}
      )
      lines = references if run.setting.row == "base" else [line[: len(line) // 2] for line in references]
      (run.directory / "translations" / "first.txt").write_text("".join(f"{line}\n" for line in lines))
    elif scores:
      run.mark_failed("exit status 2: error: no memory")
  return tmp_path / "sweep"


def lines_of(path):
  with open(path, newline="") as file:
    return list(csv.DictReader(file))


def test_report(folder, capsys):
  report.main([str(folder)])
  base, one_head, four_heads = lines_of(folder / "results.csv")
  assert (base["row"], base["runs"], base["finished"], base["parameters"]) == ("base", "3", "3", "1000")
  assert float(base["BLEU"]) == 31.0 and base["BLEU difference"] == "" and base["BLEU verdict"] == ""
  assert float(base["BLEU standard error"]) == pytest.approx(1 / 3**0.5)
  assert float(one_head["BLEU difference"]) == -3.5
  # Variances 1 and 1/2 with 2 and 1 degrees of freedom; 2 seeds against 3.
  assert float(one_head["BLEU difference standard error"]) == pytest.approx((2.5 / 3 * (1 / 2 + 1 / 3)) ** 0.5)
  assert (one_head["BLEU published"], one_head["BLEU published difference"]) == ("24.9", "-0.9")
  assert (one_head["BLEU verdict"], one_head["PPL verdict"]) == ("agrees", "agrees")
  assert 0.0 < float(one_head["bootstrap p"]) < 0.01
  assert (four_heads["row"], four_heads["finished"], four_heads["BLEU"]) == ("num_heads=4", "0", "")
  assert int(four_heads["parameters"]) > 1_000  # none has finished: from the configuration
  runs = lines_of(folder / "runs.csv")
  assert [run["state"] for run in runs] == ["done"] * 5 + ["failed"] + ["missing"] * 3
  assert lines_of(folder / "timing.csv")[0] == {"run": "base+seed=0", "train_seconds": "1.5", "device": "cpu"}
  page = (folder / "report.md").read_text()
  assert "| num_heads=1 | 2 of 3 | 1,000 |" in page and "num_heads=1+seed=2: exit status 2: error: no memory" in page
  assert (folder / "figures" / "comparison.png").stat().st_size > 5_000
  assert page in capsys.readouterr().out


def test_the_same_sweep_gives_the_same_bytes(folder):
  report.main([str(folder)])
  before = {name: (folder / name).read_bytes() for name in ("results.csv", "runs.csv", "report.md")}
  for path in folder.glob("runs/*/results.json"):
    results = json.loads(path.read_text())
    results["time"]["train_seconds"] *= 2
    write_json_atomically(path, results)
  report.main([str(folder)])
  assert before == {name: (folder / name).read_bytes() for name in before}


def test_mistakes(tmp_path, folder):
  with pytest.raises(UserError, match="not the folder of a sweep"):
    report.main([str(tmp_path)])
  (folder / "sweep.json").write_text("{")
  with pytest.raises(UserError, match="is damaged"):
    report.main([str(folder)])
