"""The big model on WMT14 English to German (paper, tables 2 and 3).

Expected: 28.4 BLEU on newstest2014 the paper's way; sacreBLEU gives about 1 point less.
Hardware and time in the paper: 3.5 days on 8 P100. Not trained to the end with this code yet.

  python -m transformer_jax.main --config=configs/wmt14_en_de_big.py --workdir=runs/wmt14_en_de_big
"""

from ml_collections import ConfigDict

from configs import wmt14_en_de_base


def get_config() -> ConfigDict:
  """The base experiment with the big model, three times the steps and the mean of 20 checkpoints."""
  config = wmt14_en_de_base.get_config()
  config.model.d_model = 1_024
  config.model.d_ff = 4_096
  config.model.num_heads = 16
  config.model.dropout = 0.3
  config.training.steps = 300_000
  config.training.evaluate_every = (
    1_000  # 10 minutes on the paper's machine, at 1.0 s a step: 600; fewer copies, same span
  )
  config.training.average = 20
  return config
