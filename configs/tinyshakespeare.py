"""A character language model on Tiny Shakespeare in nanoGPT's setting for a CPU.

Expected: a validation loss of 1.776 nats a character, the mean of 3 seeds (docs/results/tinyshakespeare). nanoGPT reports 1.88 in
this setting: 4 layers, 4 heads, 128 wide, context 64, batch 12, 2,000 steps. Hardware and time: one CPU core, 6 to 10 minutes.

  python -m transformer_jax.main --config=configs/tinyshakespeare.py --workdir=runs/shakespeare \
      --config.data.folder=FOLDER

FOLDER holds tinyshakespeare.txt (1,115,394 bytes, https://github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt).
"""

from ml_collections import ConfigDict

from transformer_jax.config import default_config


def get_config() -> ConfigDict:
  """Pre-norm, no dropout; the first 90 % of the characters are trained on."""
  config = default_config()
  config.task = "lm"
  config.data.train = ("stream:tinyshakespeare.txt@0:0.9",)
  config.data.valid = "stream:tinyshakespeare.txt@0.9:1"
  config.data.test = ("validation=stream:tinyshakespeare.txt@0.9:1",)  # there is no other text to test on
  config.vocabulary.kind = "characters"
  config.vocabulary.size = 100
  config.model.num_layers = 4
  config.model.d_model = 128
  config.model.d_ff = 512
  config.model.num_heads = 4
  config.model.dropout = 0.0
  config.model.norm = "pre"
  config.model.activation = "gelu"
  config.model.positions = "rotary"  # nanoGPT's are "learned", with model.max_positions 64
  config.model.init = "normal"
  config.model.scale_embeddings = False
  config.batch.row_length = 64
  config.batch.tokens = 12 * 64
  config.optimizer.name = "adamw"
  config.optimizer.beta2 = 0.99
  config.optimizer.weight_decay = 0.1
  config.optimizer.clip_norm = 1.0
  config.optimizer.schedule = "cosine"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.final_fraction = 0.1
  config.optimizer.warmup_steps = 100
  config.training.steps = 2_000
  config.training.label_smoothing = 0.0
  config.training.evaluate_every = 250
  config.training.average = 1
  return config
