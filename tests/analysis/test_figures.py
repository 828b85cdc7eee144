"""The figures: what stands in them, and that any text and any state of a run can be drawn."""

import json
import warnings

import numpy as np
import pytest
from absl import logging as absl_logging
from matplotlib.image import imread

from transformer_jax.analysis import figures
from transformer_jax.analysis.figures import attention_figure, training_figure

PIECES = ["▁Turn", "▁on", "▁$x_1$", "{name}", "</s>"]


def weights(heads, targets, sources):
  """Random rows that sum to 1: [heads, targets, sources]."""
  table = np.random.default_rng(0).random((heads, targets, sources)).astype(np.float32)
  return table / table.sum(-1, keepdims=True)


@pytest.fixture
def drawn(monkeypatch):
  """The figures that would have been saved."""
  kept = []
  monkeypatch.setattr(figures, "_save", lambda figure, path: kept.append(figure))
  return kept


@pytest.mark.parametrize("heads", [1, 4, 6])
def test_attention_has_a_panel_for_each_head_and_one_colour_bar(drawn, heads):
  table = weights(heads, 3, 5)
  attention_figure(table, PIECES, PIECES[:3], "a.png")
  *panels, bar = [axes for axes in drawn[0].axes if axes.get_visible()]
  assert [axes.get_title() for axes in panels] == [f"head {i}" for i in range(1, heads + 1)]
  for axes, shown in zip(panels, table, strict=True):
    np.testing.assert_array_equal(axes.images[0].get_array(), shown)
    assert axes.images[0].get_clim() == (0.0, 1.0)  # one scale for all
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first target piece stands at the top
  columns = min(heads, 4)
  for axes in panels[::columns]:  # leftmost
    assert [label.get_text() for label in axes.get_yticklabels()] == PIECES[:3]
  for axes in panels[-columns:]:  # nothing below
    assert [label.get_text() for label in axes.get_xticklabels()] == PIECES
  assert bar.get_ylabel() == "attention weight"


def test_a_dollar_sign_starts_no_formula(drawn):
  attention_figure(weights(1, 1, 1), ["$x$"], ["a"], "a.png")
  assert not drawn[0].axes[0].get_xticklabels()[0].get_parse_math()


def test_attention_draws_any_piece_without_a_warning_of_matplotlib(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(absl_logging, "warning", lambda text, *arguments: said.append(text % arguments))
  pieces = [
    *PIECES,
    "\u0378",
    "a\x00\u00a0b",
    "\u20ec",
  ]  # no character at all, control characters, one that DejaVu lacks
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    attention_figure(weights(1, 8, 5), PIECES, pieces, tmp_path / "a.png")
  picture = imread(tmp_path / "a.png")
  assert picture.shape[0] > 150 and picture[..., :3].std() > 0.05
  assert said == []  # what no standard defines is no missing font


def test_characters_without_a_font_are_named_once(drawn, monkeypatch):
  said = []
  monkeypatch.setattr(absl_logging, "warning", lambda text, *arguments: said.append(text % arguments))
  monkeypatch.setattr(figures, "_glyphs", lambda family: frozenset(map(ord, "▁ab")))
  attention_figure(weights(2, 1, 3), ["▁a", "漢b", "漢字"], ["a"], "a.png", title="ab")
  assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["▁a", "□b", "□□"]
  assert len(said) == 1 and "字漢" in said[0]


def test_attention_refuses_other_numbers_of_pieces(tmp_path):
  with pytest.raises(ValueError, match="3 x 2"):
    attention_figure(weights(1, 3, 2), ["a", "b", "c"], ["a", "b", "c"], tmp_path / "a.png")


TRAIN = [{"step": 10 * i, "split": "train", "nll": 5 / i, "learning_rate": 1e-4 * i, "time": {}} for i in range(1, 20)]
VALID = [{"step": 100, "split": "valid", "nll": 0.7, "time": {}}]


@pytest.mark.parametrize(
  ("lines", "curves"),
  [
    (TRAIN + VALID, {"training": 19, "validation": 1, "learning rate": 19}),
    (TRAIN[:1], {"training": 1, "learning rate": 1}),
    ([{"step": 1, "split": "train", "loss": 3.0}], {"training": 1}),
    (
      [{**TRAIN[0], "nll": None}, *TRAIN[1:], {"step": 7, "split": "test", "nll": 3.0}],
      {"training": 19, "learning rate": 19},
    ),
    ([], {}),
  ],
)
def test_training_figure_shows_what_the_file_has(tmp_path, drawn, lines, curves):
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "sp')
  training_figure(tmp_path / "metrics.jsonl", tmp_path / "training.png")
  loss, rate = drawn[0].axes
  assert {line.get_label(): len(line.get_xdata()) for line in (*loss.lines, *rate.lines)} == curves
  for line in (*loss.lines, *rate.lines):
    assert len(line.get_xdata()) > 1 or line.get_marker() == "o"  # else a single point is invisible
  assert rate.get_xlabel() == "updates" and loss.get_shared_x_axes().joined(loss, rate)
  if "training" in curves:
    steps, values = loss.lines[0].get_data()
    expected = [line.get("nll", line.get("loss")) for line in lines if line["split"] == "train"]
    np.testing.assert_array_equal(values, np.array(expected, float))
    assert list(steps) == [line["step"] for line in lines if line["split"] == "train"]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == [
      name for name in curves if name != "learning rate"
    ]


@pytest.mark.parametrize("lines", [[], TRAIN[:1]])
def test_a_training_figure_is_drawn_without_warnings_and_the_same_each_time(tmp_path, lines):
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for name in ("first.png", "second.png"):
      training_figure(tmp_path / "metrics.jsonl", tmp_path / name)
  assert imread(tmp_path / "first.png").shape[0] > 500
  assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
