"""Figures of reports."""

import math
import os
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def differences_figure(compared: Sequence[tuple[str, Any]], title: str, base: str, path: str | os.PathLike) -> None:
  """Draws each row's difference to the base with two standard errors, and the published one beside it.

  Args:
    compared: name and `experiments.report.Compared` of each row, from top to bottom.
    title: of the column, the axis' label.
    base: the row that they are compared with.
    path: of the PNG file.
  """
  figure, axes = rows_axes([name for name, _ in compared])
  draw_rows(
    axes,
    [(figures.difference.value, figures.difference.error, figures.published_difference) for _, figures in compared],
  )
  axes.axvline(0.0, color="0.6", linewidth=0.8)
  axes.set_xlabel(f"difference in {title} to {base!r}")
  figure.savefig(path, dpi=150)


def values_figure(compared: Sequence[tuple[str, Any]], title: str, path: str | os.PathLike) -> None:
  """Draws each row's figure with two standard errors, and the published one; the arguments are `differences_figure`'s."""
  figure, axes = rows_axes([name for name, _ in compared])
  draw_rows(axes, [(figures.measured.value, figures.measured.error, figures.published) for _, figures in compared])
  axes.set_xlabel(title)
  figure.savefig(path, dpi=150)


def rows_axes(names: Sequence[str]) -> tuple[Figure, Axes]:
  """An empty figure with a line for each name, from top to bottom."""
  figure = Figure(figsize=(7, 1.4 + 0.28 * len(names)), layout="constrained")
  axes = figure.add_subplot()
  axes.set_yticks(range(len(names)), names)
  axes.set_ylim(len(names) - 0.5, -0.5)
  axes.grid(axis="x", linewidth=0.3)
  return figure, axes


def draw_rows(axes: Axes, rows: Sequence[tuple[float, float, float | None]]) -> None:
  """Draws (ours, standard error, published) of each row; what is NaN or None is left out."""
  errors = [0.0 if math.isnan(error) else 2 * error for _, error, _ in rows]
  ours = [value for value, _, _ in rows]
  axes.errorbar(ours, range(len(rows)), xerr=errors, fmt="o", color="C0", capsize=2, label="here, ± 2 standard errors")
  published = [(value, place) for place, (_, _, value) in enumerate(rows) if value is not None]
  if published:
    axes.plot(*zip(*published, strict=True), "D", color="C1", markersize=5, fillstyle="none", label="published")
  axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
