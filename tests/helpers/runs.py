"""A finished run directory with a small model that was never trained."""

import json

from helpers.params import random_params

from transformer_jax.config import default_config
from transformer_jax.data.sentencepiece_model import train_sentencepiece
from transformer_jax.data.vocabulary import Vocabularies, save_vocabularies
from transformer_jax.model.build import build_model
from transformer_jax.training.checkpoints import save_final

TEXTS = [
  "a small house",
  "the house is small",
  "ein kleines Haus",
  "das Haus ist klein",
  "it is a house",
  "es ist klein",
]


def small_config():
  """Sizes that compile in a second or two."""
  config = default_config()
  config.model.num_layers = 1
  config.model.d_model = 16
  config.model.d_ff = 32
  config.model.num_heads = 2
  config.vocabulary.size = 300
  config.data.max_length = 32
  config.decoding.max_extra = 6
  config.decoding.batch_tokens = 512
  return config


def random_model(config, source_size, target_size, seed=0):
  """A model and parameters that are larger than fresh ones, so that no two pieces are about equally likely."""
  model = build_model(config, source_size, target_size)
  return model, random_params(model, seed, gain=2.0)


def save_run(workdir, config=None):
  """Writes config.json, the vocabulary and the final parameters of a run."""
  config = config or small_config()
  vocabulary = train_sentencepiece(TEXTS, "bpe", config.vocabulary.size, 0.9995)
  vocabularies = Vocabularies(vocabulary, vocabulary)
  workdir.mkdir()
  (workdir / "config.json").write_text(json.dumps(config.to_dict()))
  save_vocabularies(vocabularies, workdir)
  _, params = random_model(config, vocabulary.size, vocabulary.size)
  save_final(workdir, params, {"averaged_steps": [1]})
  return workdir
