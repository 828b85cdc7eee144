"""Figures of reports."""

import math
import os
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure


def differences_figure(
  rows: Sequence[str], compared: Sequence[Any], title: str, base: str, path: str | os.PathLike
) -> None:
  """Draws each row's difference to the base with two standard errors, and the published one beside it.

  Args:
    rows: their names, from top to bottom.
    compared: `experiments.report.Compared` of each row.
    title: of the column, the axis' label.
    base: the row that they are compared with.
    path: of the PNG file.
  """
  figure = Figure(figsize=(7, 1.2 + 0.28 * len(rows)), layout="constrained")
  axes = figure.add_subplot()
  places = range(len(rows))
  values = [figures.difference.value for figures in compared]
  errors = [0.0 if math.isnan(figures.difference.error) else 2 * figures.difference.error for figures in compared]
  axes.errorbar(values, places, xerr=errors, fmt="o", color="C0", capsize=2, label="here, ± 2 standard errors")
  published = [
    (f.published_difference, place)
    for f, place in zip(compared, places, strict=True)
    if f.published_difference is not None
  ]
  if published:
    axes.plot(*zip(*published, strict=True), "D", color="C1", markersize=5, fillstyle="none", label="published")
  axes.axvline(0.0, color="0.6", linewidth=0.8)
  axes.set_yticks(places, rows)
  axes.invert_yaxis()
  axes.set_xlabel(f"difference in {title} to {base!r}")
  axes.grid(axis="x", linewidth=0.3)
  axes.legend(fontsize="small")
  figure.savefig(path, dpi=150)
