"""Figures of a run: the training curves and what the attention heads look at.

Drawn with matplotlib's objects, without pyplot: nothing is shared between figures, and no display is needed.
"""

import math
import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from transformer_jax.training.progress import read_metrics

DPI = 150
INCHES_PER_PIECE, INCHES_AT_MOST = 0.17, 12  # of a panel; longer sentences get smaller print
UNDRAWABLE = "□"


class _Fonts(NamedTuple):
  """Font families in order of preference, and all that they can draw."""

  families: list[str]
  glyphs: frozenset[int]


def attention_figure(
  weights: Float[np.ndarray, "heads target source"],
  source_pieces: Sequence[str],
  target_pieces: Sequence[str],
  path: str | os.PathLike,
  title: str = "",
) -> None:
  """Draws attention weights: a panel a head, keys across, queries down, one scale of colour.

  Args:
    weights: probabilities; each row over the source sums to 1.
    source_pieces: what is attended to (the keys), in order.
    target_pieces: what attends (the queries), in order.
    path: the PNG to write.
    title: e.g. which layer; empty: "Cross-attention".

  Raises:
    ValueError: the numbers of pieces are not those of the weights.
  """
  heads, targets, sources = weights.shape
  if (targets, sources) != (len(target_pieces), len(source_pieces)):
    raise ValueError(f"weights of {targets} x {sources} for {len(target_pieces)} x {len(source_pieces)} pieces")
  fonts = _fonts_for([*source_pieces, *target_pieces, title])
  columns = min(heads, 4)
  rows = math.ceil(heads / columns)
  piece = min(INCHES_PER_PIECE, INCHES_AT_MOST / max(sources, targets))
  width, height = max(1.2, piece * sources), max(1.2, piece * targets)
  figure = Figure(figsize=(columns * (width + 0.1) + 2.0, rows * (height + 0.4) + 1.4), layout="compressed")
  panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
  for head, axes in enumerate(panels.flat):
    if head >= heads:
      axes.set_visible(False)
      continue
    image = axes.imshow(weights[head], vmin=0.0, vmax=1.0, cmap="Blues", aspect="equal")
    axes.set_title(f"head {head + 1}", fontsize=9)
    _label_pieces(axes, source_pieces, target_pieces, fonts, size=8 * piece / INCHES_PER_PIECE)
    # Shared axes label the outermost panels only; above an empty place that is the last panel of the column.
    axes.tick_params(labelbottom=head + columns >= heads)
  figure.colorbar(image, ax=panels, label="attention weight", shrink=0.7, aspect=30)
  figure.suptitle(_drawable(title or "Cross-attention", fonts), fontfamily=fonts.families, parse_math=False)
  figure.supxlabel("source (attended to)", fontsize=9)
  figure.supylabel("target (predicted)", fontsize=9)
  _save(figure, path)


def _label_pieces(
  axes: Axes, source_pieces: Sequence[str], target_pieces: Sequence[str], fonts: _Fonts, size: float
) -> None:
  """Puts the pieces on the axes, as they are ("$" starts no formula)."""
  for axis, pieces, rotation in ((axes.xaxis, source_pieces, 90), (axes.yaxis, target_pieces, 0)):
    labels = [_drawable(piece, fonts) for piece in pieces]
    axis.set_ticks(
      range(len(pieces)), labels, fontsize=size, fontfamily=fonts.families, rotation=rotation, parse_math=False
    )
    axis.set_tick_params(length=0)


def training_figure(metrics: str | os.PathLike, path: str | os.PathLike) -> None:
  """Draws loss and learning rate against the number of updates.

  The loss of "train" and "valid" is their "nll" (negative log-likelihood per target piece, in nats) where the file has
  it, else their "loss".

  Args:
    metrics: a `metrics.jsonl`, also of a run that has just begun.
    path: the PNG to write.
  """
  lines = read_metrics(metrics)
  figure = Figure(figsize=(8, 6), layout="constrained")
  loss_axes, rate_axes = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
  name = "nll" if any(line.get("nll") is not None for line in lines) else "loss"
  for split, label, style in (
    ("train", "training", {"linewidth": 1, "color": "tab:blue"}),
    ("valid", "validation", {"marker": "o", "color": "tab:red"}),
  ):
    _draw_curve(loss_axes, [line for line in lines if line.get("split") == split], name, label, style)
  _draw_curve(rate_axes, lines, "learning_rate", "learning rate", {"color": "tab:green"})
  loss_axes.set_ylabel("negative log-likelihood\nper target piece (nats)" if name == "nll" else "loss per target piece")
  rate_axes.set_ylabel("learning rate")
  rate_axes.set_xlabel("updates")
  rate_axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
  rate_axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
  rate_axes.set_xlim(left=0)
  rate_axes.set_ylim(bottom=0)
  for axes in (loss_axes, rate_axes):
    axes.grid(alpha=0.3)
  if loss_axes.lines:
    loss_axes.legend()
  figure.suptitle("Training")
  _save(figure, path)


def _draw_curve(axes: Axes, lines: Iterable[dict[str, Any]], name: str, label: str, style: dict[str, Any]) -> None:
  """Draws one value of the lines that have it; a null is a gap."""
  points = [(line["step"], np.nan if line[name] is None else line[name]) for line in lines if name in line]
  if points:
    if len(points) == 1:
      style = {"marker": "o", **style}  # a line needs two points to be seen
    axes.plot(*zip(*points, strict=True), label=label, markersize=4, **style)


def _save(figure: Figure, path: str | os.PathLike) -> None:
  FigureCanvasAgg(figure)
  # No software version or date inside: the same data gives the same bytes.
  figure.savefig(path, dpi=DPI, bbox_inches="tight", format="png", metadata={"Software": None})


@cache
def _glyphs(family: str) -> frozenset[int]:
  """The characters of a font family's upright face; none of a font of bitmaps (colour emoji), which cannot be drawn."""
  font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=[family])))
  return frozenset(font.get_charmap()) if font.scalable else frozenset()


def _fonts_for(texts: Iterable[str]) -> _Fonts:
  """DejaVu Sans, which matplotlib brings, and for characters that it lacks the first installed fonts that have them."""
  families, glyphs = ["DejaVu Sans"], _glyphs("DejaVu Sans")
  wanted = {ord(c) for text in texts for c in text if c.isprintable()}
  faces = font_manager.fontManager.ttflist if wanted - glyphs else []
  for family in sorted({face.name for face in faces if face.style == "normal" and face.weight in (400, "normal")}):
    # "Last Resort", which matplotlib brings too, draws a box for every character.
    if "Last Resort" not in family and (wanted - glyphs) & _glyphs(family):
      families.append(family)
      glyphs |= _glyphs(family)
  if wanted - glyphs:
    some = "".join(map(chr, sorted(wanted - glyphs)[:10]))
    logging.warning("no installed font draws %s: shown as %s in figures; install e.g. the Noto fonts", some, UNDRAWABLE)
  return _Fonts(families, glyphs)


def _drawable(text: str, fonts: _Fonts) -> str:
  """Replaces what none of the fonts has, which matplotlib would warn about character by character."""
  return "".join(c if c.isprintable() and ord(c) in fonts.glyphs else " " if c.isspace() else UNDRAWABLE for c in text)
