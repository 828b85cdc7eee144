"""The base model on WMT14 English to French (paper, table 2).

Expected: 38.1 BLEU on newstest2014 the paper's way.
Hardware and time in the paper: 12 hours on 8 P100. Not trained to the end with this code yet.

  python -m transformer_jax.main --config=configs/wmt14_en_fr_base.py --workdir=runs/wmt14_en_fr_base

The 36 M pairs of the French set are some 20 GB of downloads.
"""

from ml_collections import ConfigDict

from configs import wmt14_en_de_base


def get_config() -> ConfigDict:
  """As English to German, with the French set and 32,000 pieces (section 5.1)."""
  config = wmt14_en_de_base.get_config()
  config.data.train = ("tfds:wmt14_translate/fr-en",)
  config.data.valid = "tfds:wmt14_translate/fr-en@validation"
  config.data.test = ("newstest2014=tfds:wmt14_translate/fr-en@test",)
  config.data.target_language = "fr"
  config.vocabulary.size = 32_000
  return config
