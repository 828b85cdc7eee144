"""Every variant learns to reverse strings (slow); without positions, nothing can. The figures are in docs/results/variants.csv."""

import csv
import os
from pathlib import Path

import jax
import pytest

from transformer_jax.checks import check, load_config_file
from transformer_jax.train import train

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "variants.csv"
HEADS = {"num_heads": 8}
VARIANTS = {
  "pre-norm, sinusoidal positions": {},
  "sinusoidal positions in every layer": {"positions_in": "every"},
  "learned positions": {"positions": "learned"},
  "learned positions in every layer": {"positions": "learned", "positions_in": "every"},
  "shaw positions": {"positions": "shaw"},
  "t5 positions": {"positions": "t5", "t5_buckets": 64},  # with 32, distances from 8 on share buckets
  "rotary positions": {"positions": "rotary"},
  "alibi positions": {"positions": "alibi"},
  "post-norm": {"norm": "post"},
  "both norms": {"norm": "both"},
  "no norm": {"norm": "none"},
  "RMSNorm": {"norm_kind": "rms"},
  "DeepNorm": {"norm": "post", "deepnorm": True, "init": "deepnorm"},
  "one head": {"num_heads": 1},
  "32 heads": {"num_heads": 32},
  "grouped queries": {**HEADS, "num_kv_heads": 2},
  "one key head": {**HEADS, "num_kv_heads": 1},
  "d_k and d_v apart": {"d_k": 8, "d_v": 24},
  "query-key norm": {"qk_norm": True},
  "chunked": {"kernel": "chunked"},
  "local window of 3": {"local_window_size": 3},
  "lstm": {"kind": "lstm"},
  "gru": {"kind": "gru"},
}


# These are at 98.0 to 99.8 % after the 500 steps of the configuration, and some at 99.6 and 99.8 after 2,000: a held-out string
# or two with a symbol twice comes out wrong however often the 10,000 training strings come round. They get 100,000 strings, and
# so many steps.
SLOWER = {
  "shaw positions": 1_000,
  "t5 positions": 2_000,  # 99.8 % after 1,000
  "alibi positions": 1_000,
  "no norm": 1_000,
  "one head": 1_000,
  "grouped queries": 1_000,
  "one key head": 1_000,
  "local window of 3": 1_000,
}


def exact_match(workdir, steps=500, strings=10_000, **model):
  """Trains configs/reverse.py with changes, on one device; percentage of held-out strings reversed without a mistake."""
  config = load_config_file(str(ROOT / "configs" / "reverse.py"))
  config.data.train = (f"reverse:pairs={strings}",)
  config.model.update(model)
  config.training.steps = steps
  config.data.cache = str(workdir / "cache")
  check(config)
  return train(config, workdir / "run")["test"]["exact_match"]


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch):
  """One device, and XLA optimises (tests/conftest.py says why it does not elsewhere)."""
  from transformer_jax.training import step

  data_mesh = step.data_mesh
  monkeypatch.setattr(step, "data_mesh", lambda: data_mesh(jax.devices()[:1]))
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns_to_reverse(variant, tmp_path):
  """And the result is kept."""
  steps, strings = (SLOWER[variant], 100_000) if variant in SLOWER else (500, 10_000)
  result = exact_match(tmp_path, steps, strings, **VARIANTS[variant])
  kept = {}
  if RESULTS.exists():
    with open(RESULTS, newline="") as file:
      kept = {row["variant"]: row for row in csv.DictReader(file)}
  changes = " ".join(f"{name}={value}" for name, value in VARIANTS[variant].items())
  kept[variant] = {
    "variant": variant,
    "config.model": changes,
    "steps": steps,
    "strings": strings,
    "exact_match": f"{result:.1f}",
  }
  names = [*VARIANTS, *(name for name in kept if name not in VARIANTS)]
  with open(RESULTS, "w", newline="") as file:
    writer = csv.DictWriter(file, ["variant", "config.model", "steps", "strings", "exact_match"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept[name] for name in names if name in kept)
  assert result == 100.0


@pytest.mark.slow
def test_without_positions_nothing_is_reversed(tmp_path):
  """The encoder cannot tell order then: more than a few strings (of one symbol, or of the same ones) would mean a leak."""
  result = exact_match(tmp_path, positions="none")
  assert result < 20.0
