"""benchmarks/attention.py with short rows: every pattern that a CPU has is measured, and the table says what it is."""

import csv
import importlib
import sys
from pathlib import Path

import pytest

from transformer_jax.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def attention(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.chdir(ROOT)  # where the processes that it starts find it, too
  yield importlib.import_module("benchmarks.attention")
  sys.modules.pop("benchmarks.attention", None)


def test_a_table(attention, tmp_path):
  held = bytearray(2_000_000_000)  # what the caller holds is not what the layer takes
  held[::4096] = bytes([1]) * len(held[::4096])
  attention.main(["--lengths=64,128", "--patterns=chunked", f"--out={tmp_path}"])
  with open(tmp_path / "attention.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  del held
  assert [(row["pattern"], row["length"]) for row in rows] == [("chunked", "64"), ("chunked", "128")]
  assert all(float(row["seconds"]) > 0 and 0.1 < float(row["peak GB of the process"]) < 2 for row in rows)
  with pytest.raises(UserError, match="'chunky' is none of"):
    attention.main(["--patterns=chunky"])


@pytest.mark.parametrize("pattern", ["full", "window", "chunked window"])
def test_every_pattern_runs(attention, pattern):
  assert attention.measure(pattern, 64, repeats=1)["seconds"] > 0
