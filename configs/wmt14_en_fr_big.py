"""The big model on WMT14 English to French (paper, table 2).

Expected: 41.8 BLEU on newstest2014 the paper's way, the best single model of its time.
Hardware and time in the paper: 3.5 days on 8 P100. Not trained to the end with this code yet.

  python -m transformer_jax.main --config=configs/wmt14_en_fr_big.py --workdir=runs/wmt14_en_fr_big
"""

from ml_collections import ConfigDict

from configs import wmt14_en_de_big, wmt14_en_fr_base


def get_config() -> ConfigDict:
  """The big model of English to German on the French set, with dropout 0.1 (section 6.1)."""
  config = wmt14_en_de_big.get_config()
  french = wmt14_en_fr_base.get_config()
  config.data = french.data
  config.vocabulary = french.vocabulary
  config.model.dropout = 0.1
  return config
