"""Spelling to phonemes (SIGMORPHON 2020, task 1), character by character: French, and any other language of the task.

Expected (test set, the task's own Transformer; its size, batch and dropout were chosen for each language on dev): word error rate /
phoneme error rate arm 15.78 / 3.44, bul 29.11 / 6.70, fre 7.56 / 2.12, gre 14.89 / 2.75, hin 7.11 / 1.70, hun 3.11 / 0.60,
ice 10.22 / 2.44. Hardware and time: see docs/results once this has been trained with this code.

  python -m transformer_jax.main --config=configs/g2p.py --config.data.folder=FOLDER --workdir=runs/g2p_fre

FOLDER holds fre_train.tsv, fre_dev.tsv and fre_test.tsv (3,600 / 450 / 450 lines "word TAB phonemes"), which the task publishes as
sigmorphon/2020, task1/data. Another language, for example Hindi: --config.data.train=tsv:hin_train.tsv
--config.data.valid=tsv:hin_dev.tsv --config.data.test=hin=tsv:hin_test.tsv.

Source: Gorman et al. 2020, "The SIGMORPHON 2020 Shared Task on Multilingual Grapheme-to-Phoneme Conversion".
"""

from ml_collections import ConfigDict

from transformer_jax.config import default_config


def get_config() -> ConfigDict:
  """The task's baseline in its small size, with rotary positions in place of sinusoids and Muon in place of Adam.

  So 2,500 updates of about 130 words do for the task's 5,000 of 256. Positions, dropout and the number of updates were chosen
  on the dev sets of Icelandic and Hungarian (docs/results/g2p).
  """
  config = default_config()
  config.data.train = ("tsv:fre_train.tsv",)
  config.data.valid = "tsv:fre_dev.tsv"
  config.data.test = ("fre=tsv:fre_test.tsv",)
  config.data.max_length = 64
  config.vocabulary.kind = "characters"
  config.vocabulary.target_kind = "words"  # a phoneme may be written with several characters
  config.vocabulary.shared = False
  config.vocabulary.size = 1_000  # at most: every character and every phoneme of the training side
  config.model.num_layers = 4
  config.model.d_model = 128
  config.model.d_ff = 512
  config.model.num_heads = 4
  config.model.norm = "pre"
  config.model.positions = "rotary"
  config.model.share_embeddings = "target"
  config.model.dropout = 0.3
  config.model.attention_dropout = 0.3
  config.model.ffn_dropout = 0.3
  config.batch.tokens = 1_024
  config.optimizer.name = "muon"
  config.optimizer.schedule = "linear"
  config.optimizer.learning_rate = 0.005
  config.optimizer.warmup_steps = 100
  config.training.steps = 2_500
  config.training.evaluate_every = 250
  config.training.average = 1
  config.decoding.beam_size = 5
  config.evaluation.metrics = ("wer", "per")
  return config
