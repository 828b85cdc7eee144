"""The paper's tables: layers against their equations, counts against published figures, rows against the formula."""

import csv

import numpy as np
import pytest

from experiments import table1, table2, table3
from experiments.sweep import check_sweep
from transformer_jax.describe import abstract_state
from transformer_jax.errors import UserError
from transformer_jax.model.build import build_model, count


def softmax(scores):
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return weights / weights.sum(axis=-1, keepdims=True)


def test_layers_of_table_1():
  """Against float64 NumPy, written out place by place."""
  generator = np.random.default_rng(0)
  x = generator.normal(size=(32, 6))
  matrix, kernel = generator.normal(size=(6, 6)) / 4, generator.normal(size=(3, 6, 6)) / 4
  scores = x @ x.T / np.sqrt(6)
  np.testing.assert_allclose(table1.self_attention(x), softmax(scores) @ x, rtol=1e-4, atol=1e-5)
  blocks = np.arange(32) // 4  # r = 8: blocks of four places
  near = np.abs(blocks[:, None] - blocks[None]) <= 1
  expected = softmax(np.where(near, scores, -np.inf)) @ x
  np.testing.assert_allclose(table1.restricted_self_attention(x, 8), expected, rtol=1e-4, atol=1e-5)
  h, states = np.zeros(6), []
  for x_t in x:
    h = np.tanh(x_t + matrix @ h)
    states.append(h)
  np.testing.assert_allclose(table1.recurrent(x, matrix), states, rtol=1e-4, atol=1e-5)
  around = np.pad(x, ((1, 1), (0, 0)))
  expected = [sum(around[t + i] @ kernel[i] for i in range(3)) for t in range(32)]
  np.testing.assert_allclose(table1.convolution(x, kernel), expected, rtol=1e-4, atol=1e-5)


def test_exponents_are_slopes():
  sizes = [64, 128, 256, 512]
  assert table1.exponent(sizes, [3e-9 * n**2 for n in sizes]) == pytest.approx(2.0)
  assert table1.exponent(sizes, [1.0, 3e-9 * 128, 3e-9 * 256, 3e-9 * 512]) == pytest.approx(
    1.0
  )  # the first is left out


def test_table_1_runs(tmp_path, capsys):
  table1.main([f"--output={tmp_path}", "--scale=smoke"])
  with open(tmp_path / "exponents.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 8 and all(float(row["time"]) < 4 for row in rows)
  memory = {(row["layer"], row["of"]): float(row["memory"]) for row in rows}
  assert memory["self-attention", "n"] == pytest.approx(2.0, abs=0.3)  # its weights
  assert memory["recurrent", "n"] == pytest.approx(1.0, abs=0.2)
  assert (tmp_path / "table1.png").stat().st_size > 10_000
  with pytest.raises(UserError, match="--scale must be one of paper, smoke"):
    table1.main([f"--output={tmp_path}", "--scale=huge"])


def test_table_2_has_the_published_counts(tmp_path, capsys):
  """9.5 and 32.3 TFLOP a step at 30 pieces a sentence; 3.3e18 and 2.3e19 FLOPs by the paper's rule."""
  table2.main([f"--output={tmp_path}"])
  with open(tmp_path / "table2.csv", newline="") as file:
    rows = {row[""]: row for row in csv.DictReader(file)}
  of_step = rows["FLOPs of a step, counted"]
  assert float(of_step["base"]) == pytest.approx(9.5e12, rel=0.01)
  assert float(of_step["big"]) == pytest.approx(32.3e12, rel=0.01)
  rule = rows["FLOPs by the paper's rule"]
  assert float(rule["base"]) == pytest.approx(3.3e18, rel=0.02) and float(rule["big"]) == pytest.approx(
    2.3e19, rel=0.02
  )
  with pytest.raises(UserError, match="has no results"):
    table2.main([f"--output={tmp_path}", f"--base={tmp_path}"])


# Millions of parameters that a row has more than the base model, from the sizes: 6 + 6 layers, d_model 512, V = 37,000.
DIFFERENCES = {
  "A, 1 head": 0.0,
  "A, 32 heads": 0.0,
  "B, d_k / 4": 37.02 - 44.10,
  "B, d_k / 2": 39.38 - 44.10,
  "C, N / 3": 14.70 - 44.10,
  "C, N 2/3": 29.40 - 44.10,
  "C, N 4/3": 58.80 - 44.10,
  "C, d_model / 2": 17.34 - 44.10 - 0.256 * 37.0,
  "C, d_model x 2": 125.93 - 44.10 + 0.512 * 37.0,
  "C, d_ff / 2": 31.51 - 44.10,
  "C, d_ff x 2": 69.29 - 44.10,
  "big": 176.28 - 44.10 + 0.512 * 37.0,
}


def test_rows_of_table_3_differ_by_the_formula():
  experiment = table3.get_experiment("paper")
  configs = check_sweep(experiment.base, experiment.sweep)
  configs = {setting.row: config for setting, config in zip(experiment.sweep, configs, strict=True)}
  assert list(configs) == list(table3.PUBLISHED)
  base = parameters_of(configs["base"])
  for row, millions in DIFFERENCES.items():
    assert (parameters_of(configs[row]) - base) / 1e6 == pytest.approx(millions, abs=0.011), row


def parameters_of(config):
  return count(abstract_state(config, build_model(config, config.vocabulary.size, config.vocabulary.size)).params)


def test_the_small_table_keeps_the_ratios():
  """Every field that a row changes is the same multiple of the base's at both scales (dropout and smoothing the same value)."""
  changes = {}
  for scale in ("paper", "small"):
    experiment = table3.get_experiment(scale)
    base = experiment.base.model
    of_base = {"d_k": base.d_model // base.num_heads, "d_v": base.d_model // base.num_heads}
    changes[scale] = {}
    for setting in experiment.sweep:
      for name, value in setting.changes.items():
        field = name.split(".")[-1]
        ratio = value / (of_base.get(field) or base[field]) if field in base and field in RATIOS else value
        if name not in ("seed", "training.steps"):
          changes[scale][setting.row, name] = ratio
  assert changes["small"] == changes["paper"]


RATIOS = ("num_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v")


def test_scales():
  """Three seeds at small scale but for the costly rows, one at the others."""
  seeds = [setting.changes["seed"] for setting in table3.get_experiment("small").sweep]
  assert len(seeds) == 18 * 3 + 2
  assert len(table3.get_experiment("smoke").sweep) == len(table3.get_experiment("paper").sweep) == 20
