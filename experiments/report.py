"""Reports on a sweep: the rows of the experiment, the published figures beside ours, and what they agree in.

  python -m experiments.report DIR

Writes into DIR: `report.md`; `results.csv` (a line for each row) and `runs.csv` (for each run), which are the same byte for byte
for the same sweep; `timing.csv` (seconds, speed and hardware); `figures/comparison.png`.
"""

import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments.experiment import Column
from experiments.figures import differences_figure, values_figure
from experiments.statistics import (
  Difference,
  Mean,
  difference,
  mean,
  paired_bootstrap,
  pooled_deviation,
  reached,
  verdict,
)
from launch.runs import Run, read_sweep, runs_of
from transformer_jax.commands import run_command
from transformer_jax.data.corpora import named_corpora, open_corpus
from transformer_jax.describe import describe
from transformer_jax.errors import UserError
from transformer_jax.training.rundir import write_text_atomically


class Row(NamedTuple):
  """A row of the report.

  Attributes:
    name: as in the experiment.
    runs: its runs, one a seed, finished or not.
    results: name of a finished run → the content of its results.json.
    values: title of a column → the figures of the finished runs.
    parameters: of the model.
    flops: of training: floating-point operations of the matrix products, by the model's own count.
    p_value: of the paired bootstrap against the compared row; NaN where it was not made.
  """

  name: str
  runs: list[Run]
  results: dict[str, dict[str, Any]]
  values: dict[str, list[float]]
  parameters: int
  steps: int
  flops: float
  p_value: float = math.nan


def main(arguments: list[str]) -> None:
  """The command."""
  if len(arguments) != 1 or arguments[0].startswith("-"):
    print(__doc__.strip())
    if "--help" in arguments or "-h" in arguments:
      return
    raise UserError("name the folder of a sweep: python -m experiments.report DIR")
  folder = Path(arguments[0])
  sweep = read_sweep(folder)
  columns = [Column(**column) for column in sweep["columns"]]
  rows = with_significance(read_rows(folder, columns), sweep["compared_with"], columns)
  compared = [compare(row, rows, sweep, columns) for row in rows]
  write_text_atomically(
    folder / "results.csv", as_csv([results_line(*pair) for pair in zip(rows, compared, strict=True)])
  )
  write_text_atomically(folder / "runs.csv", as_csv([run_line(run, row, columns) for row in rows for run in row.runs]))
  write_text_atomically(folder / "timing.csv", as_csv([timing_line(run, row) for row in rows for run in row.runs]))
  (folder / "figures").mkdir(exist_ok=True)
  first = columns[0]
  others = [
    (row.name, line[first.title])
    for row, line in zip(rows, compared, strict=True)
    if row.name != sweep["compared_with"]
  ]
  if sweep["compared_with"]:
    differences_figure(others, first.title, sweep["compared_with"], folder / "figures" / "comparison.png")
  else:
    values_figure(others, first.title, folder / "figures" / "comparison.png")
  page = report_page(sweep, columns, rows, compared)
  write_text_atomically(folder / "report.md", page)
  sys.stdout.write(page)
  print(f"\nfiles: {folder}/report.md, results.csv, runs.csv, timing.csv, figures/comparison.png")


def read_rows(folder: Path, columns: Sequence[Column]) -> list[Row]:
  """The rows in the order of the experiment; settings that differ in the seed alone are one."""
  by_name: dict[str, list[Run]] = {}
  for run in runs_of(folder):
    by_name.setdefault(run.setting.row, []).append(run)
  rows = []
  for name, runs in by_name.items():
    config = runs[0].config()
    results = {run.name: found for run in runs if (found := run.results()) is not None}
    values = {c.title: [float(v) for r in results.values() if (v := value_of(r, c.value)) is not None] for c in columns}
    # The vocabulary of a run may be smaller than asked for, so the run's own count comes first.
    sizes = describe(config)
    parameters = next(iter(results.values()))["parameters"] if results else sizes["parameters"]
    steps = config.training.steps
    rows.append(Row(name, runs, results, values, parameters, steps, float(sizes["step_flops"]) * steps))
  return rows


def value_of(results: dict[str, Any], path: str) -> float | None:
  """A figure of results.json, "test.bleu" for example; None where it is not there."""
  value: Any = results
  for part in path.split("."):
    if not isinstance(value, dict) or part not in value:
      return None
    value = value[part]
  return value


def with_significance(rows: list[Row], compared_with: str, columns: Sequence[Column]) -> list[Row]:
  """Adds the paired bootstrap's p-values where the first column is a BLEU score."""
  base = next((row for row in rows if row.name == compared_with), None)
  if base is None and compared_with:
    raise UserError(f"the experiment compares with row {compared_with!r}, which it does not have")
  if base is None or not columns[0].value.endswith(".bleu"):
    return rows
  config = base.runs[0].config()
  name, spec = named_corpora(config.data.test)[0]
  references: list[str] | None = None
  compared = []
  for row in rows:
    pairs = [] if row is base else seeds_in_common(base, row)
    if pairs and references is None:
      references = [pair.target for pair in open_corpus(spec, "test", config.data, config.seed)]
    p_value = significance(pairs, references, name, config) if pairs and references else math.nan
    compared.append(row._replace(p_value=p_value))
  return compared


def seeds_in_common(base: Row, row: Row) -> list[tuple[Run, Run]]:
  """The finished runs of two rows by equal seeds."""
  runs = {run.setting.changes.get("seed"): run for run in base.runs if run.finished()}
  return [(runs[seed], run) for run in row.runs if run.finished() and (seed := run.setting.changes.get("seed")) in runs]


def significance(pairs: list[tuple[Run, Run]], references: list[str], name: str, config: ConfigDict) -> float:
  """`paired_bootstrap` over all common seeds, their translations one after the other."""

  def translations(run: Run) -> list[str]:
    return (run.directory / "translations" / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]

  base = [line for first, _ in pairs for line in translations(first)]
  other = [line for _, second in pairs for line in translations(second)]
  evaluation = config.evaluation
  return paired_bootstrap(base, other, references * len(pairs), evaluation.tokenize, evaluation.lowercase)


class Compared(NamedTuple):
  """A figure of a row beside the compared row's and the published ones."""

  measured: Mean
  difference: Difference
  published: float | None
  published_difference: float | None
  verdict: str


def compare(row: Row, rows: list[Row], sweep: dict[str, Any], columns: Sequence[Column]) -> dict[str, Compared]:
  """Title of a column → the row's figure beside the others: those of the row it is compared with, or the published ones."""
  base = next((other for other in rows if other.name == sweep["compared_with"]), None)
  compared = {}
  for column in columns:
    title = column.title
    deviation = pooled_deviation([other.values[title] for other in rows])
    measured, published = mean(row.values[title]), sweep["published"].get(row.name, {}).get(title)
    if base is None:
      ours = Difference(math.nan, math.nan)
      if published is not None:
        ours = Difference(
          measured.value - published, deviation / math.sqrt(measured.seeds) if measured.seeds else math.nan
        )
      compared[title] = Compared(measured, ours, published, None, reached(ours, column.lower_is_better))
      continue
    of_base = sweep["published"].get(base.name, {}).get(title)
    change = published - of_base if published is not None and of_base is not None and row is not base else None
    ours = Difference(math.nan, math.nan)
    if row is not base:
      ours = difference(measured, mean(base.values[title]), deviation)
    compared[title] = Compared(measured, ours, published, change, verdict(ours, change))
  return compared


def results_line(row: Row, compared: dict[str, Compared]) -> dict[str, Any]:
  """A line of results.csv."""
  line: dict[str, Any] = {
    "row": row.name,
    "runs": len(row.runs),
    "finished": len(row.results),
    "parameters": row.parameters,
    "steps": row.steps,
    "training_flops": f"{row.flops:.4g}",
  }
  for title, figures in compared.items():
    line |= {
      title: exact(figures.measured.value),
      f"{title} standard error": exact(figures.measured.error),
      f"{title} difference": exact(figures.difference.value),
      f"{title} difference standard error": exact(figures.difference.error),
      f"{title} published": "" if figures.published is None else figures.published,
      f"{title} published difference": exact(figures.published_difference),
      f"{title} verdict": figures.verdict,
    }
  return line | {"bootstrap p": exact(row.p_value)}


def run_line(run: Run, row: Row, columns: Sequence[Column]) -> dict[str, Any]:
  """A line of runs.csv."""
  results = row.results.get(run.name)
  line: dict[str, Any] = {"run": run.name, "row": run.setting.row, "seed": run.setting.changes.get("seed", "")}
  line["state"] = "done" if results else "failed" if run.failure() else "missing"
  for column in columns:
    line[column.title] = exact(value_of(results, column.value)) if results else ""
  return line | {"steps": results["steps"] if results else "", "parameters": results["parameters"] if results else ""}


def timing_line(run: Run, row: Row) -> dict[str, Any]:
  """A line of timing.csv."""
  clock = row.results[run.name]["time"] if run.name in row.results else {}
  return {
    "run": run.name,
    **{key: f"{value:.4g}" if isinstance(value, float) else value for key, value in clock.items()},
  }


def exact(value: float | None) -> str:
  """A number as it stands in a CSV file: to ten digits, empty for NaN and None."""
  return "" if value is None or math.isnan(value) else f"{value:.10g}"


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
  """Lines with the same keys as CSV; a key that a line lacks is left empty."""
  names = list(dict.fromkeys(name for line in lines for name in line))
  stream = io.StringIO()
  writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
  writer.writeheader()
  writer.writerows(lines)
  return stream.getvalue()


def report_page(
  sweep: dict[str, Any], columns: Sequence[Column], rows: Sequence[Row], compared: Sequence[dict[str, Compared]]
) -> str:
  """report.md."""
  head = ["row", "seeds", "parameters", "FLOPs"]
  for column in columns:
    head += [column.title, "± s.e.", "Δ", "± s.e.", "published", "Δ published"]
    head.append("verdict")
  if any(not math.isnan(row.p_value) for row in rows):
    head.append("p (bootstrap)")
  lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
  for row, figures in zip(rows, compared, strict=True):
    finished = len(row.results)
    seeds = str(finished) if finished == len(row.runs) else f"{finished} of {len(row.runs)}"
    cells = [row.name, seeds, f"{row.parameters:,}", f"{row.flops:.2e}"]
    for column in columns:
      cells += column_cells(column, figures[column.title])
    if head[-1] == "p (bootstrap)":
      cells.append("" if math.isnan(row.p_value) else f"{row.p_value:.3f}")
    lines.append(f"| {' | '.join(cells)} |")
  failures = [f"- {run.name}: {run.failure()}" for row in rows for run in row.runs if run.failure()]
  parts = [
    f"# {sweep['question']}",
    ", ".join(f"{name} {value}" for name, value in sweep["origin"].items())
    + f"; published: {sweep['source'] or 'nothing'}.",
    "\n".join(lines),
    notes(sweep, columns),
    "![comparison](figures/comparison.png)",
  ]
  if failures:
    parts.append("Failed:\n\n" + "\n".join(failures))
  return "\n\n".join(parts) + "\n"


def column_cells(column: Column, figures: Compared) -> list[str]:
  """The cells of one column's figures."""

  def shown(value: float | None, sign: str = "") -> str:
    return "" if value is None or math.isnan(value) else f"{value:{sign}.{column.digits}f}"

  return [
    shown(figures.measured.value),
    shown(figures.measured.error),
    shown(figures.difference.value, "+"),
    shown(figures.difference.error),
    "" if figures.published is None else str(figures.published),
    "" if figures.published_difference is None else f"{figures.published_difference:+.{column.digits}f}",
    figures.verdict,
  ]


def notes(sweep: dict[str, Any], columns: Sequence[Column]) -> str:
  """How to read the table."""
  better = ", ".join(f"{c.title} ({'lower' if c.lower_is_better else 'higher'} is better)" for c in columns)
  pooled = "Its standard error takes the deviation between seeds to be the same in all rows: a row of one seed has an error too."
  work = "FLOPs: of the training's matrix products, from the model's own count. Times and hardware: timing.csv."
  if not sweep["compared_with"]:
    return f"{better}. Δ: less the published figure. {pooled} Verdict: whether that is reached. {work}"
  return (
    f"{better}. Δ: less the row {sweep['compared_with']!r}. {pooled} Verdict: whether our Δ has the sign of the published one; "
    '"within noise" where it is under two standard errors. p: sacreBLEU\'s paired bootstrap over the translations of all common '
    f"seeds. {work}"
  )


if __name__ == "__main__":
  run_command(main)
