"""A vocabulary for tests whose pieces are the numbers that stand in a line, parted by spaces."""

from transformer_jax.data.vocabulary import Vocabulary


class Numbers(Vocabulary):
  """ "7 4 9" is the ids [7, 4, 9]."""

  suffix = ".txt"

  def __init__(self, size):
    self._size = size

  @property
  def size(self):
    return self._size

  def encode(self, texts):
    return [[int(word) for word in text.split()] for text in texts]

  def decode(self, ids):
    return [" ".join(str(i) for i in row if i > 3) for row in ids]

  def pieces(self, ids):
    return [str(i) for i in ids]

  def to_bytes(self):
    return str(self._size).encode()
