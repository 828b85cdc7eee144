"""Sweeps: what the combinators make, what runs are called, and mistakes in one line."""

import pytest
from helpers.tiny_run import tiny_config

from experiments.sweep import (
  Setting,
  chain,
  check_sweep,
  configure,
  differences,
  grid,
  one,
  one_at_a_time,
  over,
  seeds,
  together,
  zipped,
)
from transformer_jax.errors import UserError


def changes(sweep):
  return [dict(setting.changes) for setting in sweep]


def test_combinators():
  heads, rates = over("model.num_heads", 1, 2), over("model.dropout", 0.0, 0.3)
  assert changes(heads) == [{"model.num_heads": 1}, {"model.num_heads": 2}]
  assert changes(chain(heads, rates)) == changes(heads) + changes(rates)
  assert changes(grid(heads, rates)) == [
    {"model.num_heads": heads, "model.dropout": rate} for heads in (1, 2) for rate in (0.0, 0.3)
  ]
  assert changes(zipped(heads, rates)) == [
    {"model.num_heads": 1, "model.dropout": 0.0},
    {"model.num_heads": 2, "model.dropout": 0.3},
  ]
  assert changes(one_at_a_time(heads, rates)) == [{}, *changes(heads), *changes(rates)]
  assert changes(seeds(heads, 2, first=5)) == [
    {"model.num_heads": heads, "seed": seed} for heads in (1, 2) for seed in (5, 6)
  ]


def test_names_and_rows():
  setting = together(Setting({"model.num_heads": 4}), Setting({"seed": 2}))
  assert (setting.row, setting.name) == ("num_heads=4", "num_heads=4+seed=2")
  labelled = seeds(one("C, N / 3", {"model.num_layers": 2}), 1)[0]
  assert (labelled.row, labelled.name) == ("C, N / 3", "C+N-3+seed=0")
  assert Setting({"seed": 0}).row == "base"
  assert Setting({"data.test": ("tsv:a/b.tsv",)}).name == "test=tsv-a-b.tsv"


def test_a_sweep_becomes_configurations(tmp_path):
  base = tiny_config(tmp_path)
  sweep = grid(over("model.num_heads", 1, 4), over("seed", 0, 1))
  configs = check_sweep(base, sweep)
  assert [(c.model.num_heads, c.seed) for c in configs] == [(1, 0), (1, 1), (4, 0), (4, 1)]
  assert differences(base, configs[3]) == {"model.num_heads": 4, "seed": 1}
  assert base.model.num_heads == 2


@pytest.mark.parametrize(
  "make, message",
  [
    (
      lambda: over("model.num_head", 1),
      "sweep, row 'num_head=1': config has no field model.num_head; did you mean model.num_heads?",
    ),
    (lambda: over("model.num_heads", 3), "sweep, row 'num_heads=3': model.d_model"),
    (lambda: over("model.dropout", "high"), "sweep, row 'dropout=high': model.dropout must be of type float"),
    (lambda: zipped(over("seed", 1, 2), over("model.dropout", 0.1)), "the sweeps have 2, 1 settings"),
    (lambda: grid(over("seed", 1), over("seed", 2)), "both set seed"),
    (lambda: over("seed", 1, 1), "two runs have the name 'base+seed=1'"),
    (lambda: [], "the sweep is empty"),
  ],
)
def test_a_mistake_is_one_line(tmp_path, make, message):
  with pytest.raises(UserError) as caught:
    check_sweep(tiny_config(tmp_path), make())
  assert message in str(caught.value) and "\n" not in str(caught.value)


def test_configure_leaves_the_base_as_it_is(tmp_path):
  base = tiny_config(tmp_path)
  assert configure(base, Setting({"model.dropout": 0.5})).model.dropout == 0.5
  assert base.model.dropout == tiny_config(tmp_path).model.dropout
