"""The base model on WMT14 English to German (paper, tables 2 and 3).

Expected: 27.3 BLEU on newstest2014 the paper's way (tokenised, compounds split); sacreBLEU gives about 1 point less.
Hardware and time in the paper: 12 hours on 8 P100. Not trained to the end with this code yet.

  python -m transformer_jax.main --config=configs/wmt14_en_de_base.py --workdir=runs/wmt14_en_de_base

TFDS downloads and prepares the 4.5 M pairs by itself, once (about 2 GB).
"""

from ml_collections import ConfigDict

from transformer_jax.config import default_config


def get_config() -> ConfigDict:
  """The defaults are this experiment; what is written out here is what defines it."""
  config = default_config()
  config.data.train = ("tfds:wmt14_translate/de-en",)
  config.data.valid = "tfds:wmt14_translate/de-en@validation"  # newstest2013
  config.data.test = ("newstest2014=tfds:wmt14_translate/de-en@test",)
  config.data.source_language = "en"
  config.data.target_language = "de"
  config.vocabulary.kind = "bpe"
  config.vocabulary.size = 37_000
  config.model.dtype = "bfloat16"
  config.batch.tokens = 25_000
  config.training.steps = 100_000
  # The paper averages the last 5 checkpoints, written 10 minutes (about 1,500 steps) apart.
  config.training.evaluate_every = 1_500
  config.training.average = 5
  config.decoding.beam_size = 4
  config.decoding.length_penalty = 0.6
  return config
