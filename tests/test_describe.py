"""The sizes that `describe` prints, against the paper's, and against XLA's own count."""

from pathlib import Path

import jax
import pytest

from transformer_jax import describe as sizes_of
from transformer_jax.checks import parse_arguments
from transformer_jax.config import default_config
from transformer_jax.describe import describe, forward_work, pieces_of_step, shape_batch
from transformer_jax.errors import UserError
from transformer_jax.model.build import build_model
from transformer_jax.model.config import model_config
from transformer_jax.model.transformer import Transformer

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


def config_of(name, **model):
  config, _ = parse_arguments([f"--config={next(path for path in CONFIGS if path.stem == name)}"])
  for field, value in model.items():
    config.model[field] = value
  return config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds_its_model(path):
  sizes = describe(config_of(path.stem))
  assert sizes["parameters"] == sum(sizes["parts"].values())
  assert sizes["parameter_bytes"] == 4 * sizes["parameters"]


@pytest.mark.parametrize(
  ("name", "layers", "vocabulary", "without_embeddings", "tera"),
  [("wmt14_en_de_base", 6, 37_000, 44.10e6, 9.5), ("wmt14_en_de_big", 6, 37_000, 176.28e6, 32.3)],
)
def test_the_models_of_the_paper(name, layers, vocabulary, without_embeddings, tera):
  """Parameters and the work of a step of 25,000 + 25,000 pieces, as computed in the facts about the paper."""
  config = config_of(name)
  sizes = describe(config)
  d, ff = config.model.d_model, config.model.d_ff
  # By hand: 4 d² an attention without biases, 2 d ff + ff + d a feed-forward layer, 2 d a norm.
  feed_forward = 2 * d * ff + ff + d
  expected = layers * ((4 * d * d + feed_forward + 4 * d) + (8 * d * d + feed_forward + 6 * d))
  assert sizes["without_embeddings"] == expected
  assert sizes["without_embeddings"] == pytest.approx(without_embeddings, abs=0.005e6)
  assert sizes["parameters"] == expected + vocabulary * d
  assert sizes["parts"]["target_embedding"] == vocabulary * d
  assert sizes["parts"]["encoder self_attention"] == layers * 4 * d * d
  assert sizes["parts"]["decoder norms"] == layers * 6 * d
  assert sizes["step_flops"] / 1e12 == pytest.approx(tera, abs=0.05)
  # Adam: two moments for each parameter, and two counters (its own and the schedule's).
  assert sizes["parameter_bytes"] == 4 * sizes["parameters"]
  assert sizes["optimizer_bytes"] == 2 * sizes["parameter_bytes"] + 8


def test_the_variations_of_table_3():
  """The differences between its rows."""
  base = describe(config_of("wmt14_en_de_base"))["parameters"]
  for d, heads in ((512, 1), (16, 32)):  # rows A: as many heads as keep h d_k at 512
    assert describe(config_of("wmt14_en_de_base", num_heads=heads, d_k=d, d_v=d))["parameters"] == base
  narrow = describe(config_of("wmt14_en_de_base", d_k=16, d_v=64))["parameters"]
  assert base - narrow == 18 * 2 * 512 * 8 * 48  # row B: queries and keys of 18 attentions, 7.08 M
  deep = describe(config_of("wmt14_en_de_base", num_layers=8))["parameters"]
  assert deep - base == pytest.approx(14.70e6, abs=0.005e6)


def test_shared_matrices_are_counted_once():
  config = default_config()
  config.vocabulary.size = 1_000
  config.model.d_model = 64
  config.vocabulary.shared = False
  config.vocabulary.target_size = 600
  parts = {}
  for share in ("target", "none"):
    config.model.share_embeddings = share
    parts[share] = describe(config)["parts"]
  assert (parts["target"]["source_embedding"], parts["target"]["target_embedding"]) == (64_000, 600 * 64)
  assert "output_layer" not in parts["target"] and parts["none"]["output_layer"] == 600 * 64
  config.vocabulary.shared, config.vocabulary.target_size, config.model.share_embeddings = True, 0, "all"
  shared = describe(config)
  assert [name for name in shared["parts"] if name.endswith(("embedding", "layer"))] == ["target_embedding"]
  assert shared["parts"]["target_embedding"] == 64_000


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"d_k": 8, "d_v": 40, "num_decoder_layers": 3},
    {"activation": "swiglu", "num_kv_heads": 1},
    {"tie_projections": "kv"},
  ],
)
def test_the_work_is_what_xla_counts(changes):
  """A forward pass of one pair; XLA counts the element-wise operations too, which are few in a model this wide."""
  config = default_config().model
  config.num_layers, config.d_model, config.d_ff, config.num_heads = 2, 256, 1024, 4
  for field, value in changes.items():
    config[field] = value
  sizes = model_config(config, 500, 500)
  model, source, target = Transformer(sizes), 40, 24
  batch = shape_batch(1, source, target)
  params = jax.eval_shape(lambda batch: model.init(jax.random.key(0), batch)["params"], batch)
  program = jax.jit(lambda params, batch: model.apply({"params": params}, batch)).lower(params, batch)
  work = forward_work(sizes, source, target)
  counted = program.cost_analysis()["flops"]
  assert counted == pytest.approx(work.source * source + work.target * target, rel=0.03)


@pytest.mark.parametrize("task", ["lm", "classify", "mlm"])
def test_the_work_of_one_side_is_what_xla_counts(task):
  """A decoder alone has no attention to a memory, an encoder alone no output layer but the label's or the masks'."""
  config = default_config()
  config.task = task
  config.model.update({"num_layers": 2, "d_model": 256, "d_ff": 1024, "num_heads": 4})
  model = build_model(config, 500, 500 if task != "classify" else 8)
  batch = shape_batch(1, 40, 1 if task == "classify" else 40)
  params = jax.eval_shape(lambda batch: model.init(jax.random.key(0), batch)["params"], batch)
  program = jax.jit(lambda params, batch: model.apply({"params": params}, batch)).lower(params, batch)
  config.batch.tokens = config.batch.row_length = 40
  source, target = pieces_of_step(config, 40)
  work = forward_work(model.config, 40, 40, task)
  assert program.cost_analysis()["flops"] == pytest.approx(work.source * source + work.target * target, rel=0.03)


def test_nothing_is_allocated(monkeypatch):
  """The big model is described without one of its arrays being made."""
  before = len(jax.live_arrays())
  describe(config_of("wmt14_en_fr_big"))
  assert len(jax.live_arrays()) <= before


def test_the_command_prints_the_tables(capsys):
  path = next(path for path in CONFIGS if path.stem == "wmt14_en_de_big")
  sizes_of.main([f"--config={path}"])
  output = capsys.readouterr().out
  for text in ("214,171,648", "176,283,648", "32.273 TFLOP", "MiB", "encoder self_attention"):
    assert text in output
  with pytest.raises(UserError, match="unknown argument --workdir=x"):
    sizes_of.main([f"--config={path}", "--workdir=x"])
