"""The configuration that experiments take at scale "smoke"."""

from ml_collections import ConfigDict

from transformer_jax.config import default_config


def smoke_config() -> ConfigDict:
  """A model of one layer that copies strings badly after seconds: it shows that an experiment runs, and nothing else."""
  config = default_config()
  corpus = "copy:symbols=10,length=5,pairs=200,heldout=20"
  config.data.train = (corpus,)
  config.data.valid = corpus
  config.data.test = (corpus,)
  config.data.max_length = 8
  config.vocabulary.kind = "words"
  config.vocabulary.size = 20
  config.model.num_layers = 1
  config.model.d_model = 32
  config.model.d_ff = 64
  config.model.num_heads = 8
  config.batch.tokens = 128
  config.batch.row_length = 16
  config.optimizer.schedule = "constant"
  config.optimizer.learning_rate = 0.01
  config.optimizer.warmup_steps = 5
  config.training.steps = 20
  config.training.evaluate_every = 20
  config.training.average = 1
  config.decoding.method = "greedy"
  config.decoding.max_extra = 2
  config.evaluation.samples = 0
  config.evaluation.attention_figure = False
  config.evaluation.tokenize = "none"
  return config
