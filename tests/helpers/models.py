"""Small models for tests, made like those of a run: from the fields of `config.model`."""

from helpers.params import random_params

from transformer_jax.config import default_config
from transformer_jax.model.config import model_config
from transformer_jax.model.recurrent import Recurrent
from transformer_jax.model.transformer import Transformer

VOCABULARY = 23


def small_config(**changes):
  """A ModelConfig of 2 + 2 layers of width 12; `source_vocabulary` and `target_vocabulary` may be given, too."""
  sizes = {name: changes.pop(name, VOCABULARY) for name in ("source_vocabulary", "target_vocabulary")}
  model = default_config().model
  model.update({"num_layers": 2, "d_model": 12, "d_ff": 20, "num_heads": 3, **changes})
  return model_config(model, **sizes)


def initialised(config, seed=0):
  """A model and random parameters."""
  model = Transformer(config) if config.kind == "transformer" else Recurrent(config)
  return model, random_params(model, seed)
