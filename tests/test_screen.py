"""The first batch as it is shown before training."""

import numpy as np

from transformer_jax.data.batches import Batch
from transformer_jax.data.pieces import EOS, count_pieces
from transformer_jax.data.streams import StreamPlan
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.screen import first_pieces


def test_pairs():
  """Two pairs in the first row, one in the second, each as source and target."""
  vocabulary = count_pieces(["a b c"], "words", 10)
  a, b, c = vocabulary.encode(["a b c"])[0]
  source = np.array([[a, EOS, b, c, EOS, 0], [c, EOS, 0, 0, 0, 0]])
  source_segments = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0]])
  target, target_segments = np.array([[b, EOS, c], [a, EOS, 0]]), np.array([[1, 1, 2], [1, 1, 0]])
  batch = Batch(source, source, source_segments, target, target, target, target_segments)
  assert list(first_pieces(batch, Vocabularies(vocabulary, vocabulary))) == [
    ["a </s>", "→ b </s>"],
    ["b c </s>", "→ c"],
    ["c </s>", "→ a </s>"],
  ]


def test_running_text():
  """There is no source; spaces and line breaks can be told apart."""
  text = "a b\nab a"
  vocabulary = count_pieces([text], "characters", 10)
  batch = StreamPlan(vocabulary.encode([text])[0], 4, 8, seed=0, rows_multiple=1, shuffle=False).epoch(0)[0]
  assert list(first_pieces(batch, Vocabularies(vocabulary, vocabulary))) == [["a ␣ b ⏎"], ["a b ␣ a"]]
