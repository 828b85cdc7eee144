"""benchmarks/gpu.py, on the CPU with tiny sizes: every piece runs, and what it prints is what it says."""

import csv
import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from transformer_jax.checks import load_config_file
from transformer_jax.data.vocabulary import EOS
from transformer_jax.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gpu():
  sys.path.insert(0, str(ROOT))
  yield importlib.import_module("benchmarks.gpu")
  sys.path.remove(str(ROOT))


@pytest.mark.slow  # a minute or two of compiling; the machine that it is for runs it anyway
def test_every_piece_runs_with_tiny_sizes_and_leaves_its_tables(gpu, tmp_path, capsys):
  gpu.main(["--tiny", f"--out={tmp_path}", "--seconds=1000000"])
  tables = {}
  for name in ("machine", "base", "agreement", "quickstart"):
    with open(tmp_path / f"{name}.csv", newline="") as file:
      tables[name] = list(csv.DictReader(file))
  fast, cudnn = tables["base"]
  assert float(fast["ms a step"]) > 0 and float(fast["memory GiB"]) > 0 and float(fast["TFLOP/s"]) > 0
  assert fast["batches"].endswith("4 x (32 + 32)")
  assert cudnn["attention"] == "cudnn" and cudnn["ms a step"].startswith("not here: ")  # there is none on a CPU
  exact, bfloat16, _ = tables["agreement"]
  assert exact["arithmetic"] == "float32, xla" and float(exact["gradients"]) == 0.0  # on a CPU every precision is full
  assert 1e-4 < float(bfloat16["gradients"]) < 0.1 and float(bfloat16["loss"]) < 0.01
  (large,) = tables["quickstart"]
  assert (
    float(large["target tokens/s"]) > 0 and large["arithmetic"] == "bfloat16" and large["batches"].startswith("large")
  )
  page = (tmp_path / "gpu.md").read_text()
  assert "synthetic ids with the lengths of home_assistant/en-de" in page
  assert "written to" in capsys.readouterr().out


def test_without_a_gpu_one_line_says_so(gpu, tmp_path):
  with pytest.raises(UserError, match="no GPU is found"):
    gpu.main([f"--out={tmp_path / 'out'}"])
  assert not (tmp_path / "out").exists()


def test_no_measurement_begins_after_the_deadline(gpu):
  config = gpu.base_config(tiny=True)
  mesh = gpu.programs.data_mesh(jax.devices()[:1])
  table = gpu.speed_table("x", "x", [("packed", config, 1)], None, (50, 50), 1, 1.0, mesh, gpu.Deadline(-1.0))
  assert table.rows[0][3] == "left out: no time"
  assert len(table.rows[0]) == len(table.columns)


def test_the_real_corpus_is_used_where_it_is_and_the_words_say_so(gpu, tmp_path):
  config = load_config_file(str(ROOT / "configs" / "reverse.py"))
  config.data.cache = str(tmp_path)
  config.data.train = ("reverse:pairs=100,heldout=10",)
  pairs, sizes, words = gpu.quickstart_pairs(config, 50)
  assert (len(pairs), sizes, words) == (100, (24, 24), "the real corpus, reverse:pairs=100,heldout=10")
  config.data.train = ("text:absent.en,absent.de",)
  pairs, sizes, words = gpu.quickstart_pairs(config, 50)
  assert (len(pairs), sizes) == (50, (100, 100)) and words.startswith("synthetic ids") and "absent.en" in words


def test_synthetic_pairs_have_the_lengths_that_were_asked_for(gpu):
  lengths = type(gpu.WMT14)
  pairs = gpu.synthetic_pairs(20_000, (50, 60), lengths(12.0, 14.0, 0.5, 0.9), longest=200)
  logs = np.log(pairs.source_lengths), np.log(pairs.target_lengths)
  assert abs(pairs.source_lengths.mean() - 12.0) < 0.3 and abs(pairs.target_lengths.mean() - 14.0) < 0.3
  assert abs(np.corrcoef(*logs)[0, 1] - 0.9) < 0.03
  assert all(pairs.sources[i][-1] == EOS and (pairs.sources[i][:-1] > 3).all() for i in range(100))
  assert pairs.targets.ids.max() == 59 and len(pairs.targets[7]) == pairs.target_lengths[7]


def test_relative_differences_name_the_array_that_differs_most(gpu):
  reference = np.float32(2.0), {"a": np.array([3.0, 4.0]), "b": {"c": np.array([0.0, 1.0])}}
  found = np.float32(2.2), {"a": np.array([3.0, 4.5]), "b": {"c": np.array([0.0, 1.5])}}
  loss, all_arrays, worst, name = gpu.relative_differences(found, reference)
  assert (round(loss, 4), round(worst, 4), name) == (0.1, 0.5, "b/c")
  assert abs(all_arrays - np.sqrt((0.25 + 0.25) / (25 + 1))) < 1e-12


def test_a_defect_is_no_line_of_the_table(gpu):
  with pytest.raises(ValueError, match="a defect"):
    gpu.why_not(ValueError("a defect"), "xla")
  assert gpu.why_not(RuntimeError("RESOURCE_EXHAUSTED: too large"), "xla").startswith("not here: ")
