"""Sentiment of film-review sentences (SST-2), from scratch.

  python -m transformer_jax.main --config=configs/sst2.py --workdir=runs/sst2 --config.data.folder=FOLDER

Expected: test accuracy 81.1 % (three seeds: 82.7, 79.8, 80.8), beside 81.8 % of a unigram naive Bayes; docs/results/sst2 says
why it is not more. Time: a minute on one CPU core.

FOLDER holds stsa.binary.train, .dev and .test (6,920 / 872 / 1,821 lines "label text", of the Stanford Sentiment Treebank).
"""

from ml_collections import ConfigDict

from transformer_jax.config import default_config


def get_config() -> ConfigDict:
  """A small encoder that stops early, chosen on dev: see docs/results/sst2."""
  config = default_config()
  config.task = "classify"
  config.data.train = ("labelled:stsa.binary.train",)
  config.data.valid = "labelled:stsa.binary.dev"
  config.data.test = ("labelled:stsa.binary.test",)
  config.data.max_length = 64
  config.vocabulary.shared = False
  config.vocabulary.kind = "words"
  config.vocabulary.size = 16_000
  config.vocabulary.target_kind = "words"
  config.vocabulary.target_size = 6  # two labels and the four special pieces
  config.model.num_layers = 1
  config.model.d_model = 128
  config.model.d_ff = 256
  config.model.num_heads = 4
  config.model.dropout = 0.5
  config.model.norm = "none"  # a word that says nothing may then be a vector near 0, and stay out of the mean
  config.model.positions = "none"
  config.model.init = "normal"
  config.batch.packing = False
  config.batch.tokens = 2_048
  config.optimizer.name = "adamw"
  config.optimizer.weight_decay = 0.1
  config.optimizer.schedule = "linear"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_steps = 100
  config.training.steps = 400
  config.training.label_smoothing = 0.1
  config.training.evaluate_every = 50
  config.training.average = 1
  config.training.patience = 5
  return config
