"""Pairs of random ids with the lengths of real text, for measuring speed where the text is not at hand."""

from typing import NamedTuple

import numpy as np

from transformer_jax.data.encoded import Encoded, Ragged
from transformer_jax.data.vocabulary import EOS, SPECIALS


class Lengths(NamedTuple):
  """Pieces a side, end of sentence included: log-normal, with one spread, the two sides correlated."""

  source: float  # mean
  target: float  # mean
  spread: float  # standard deviation of the logarithms
  correlation: float  # of the logarithms


HOME_ASSISTANT = Lengths(10.2, 11.8, 0.63, 0.93)  # measured on home_assistant/en-de with 3,000 BPE pieces
# A mean of 30, as in the count of 9.5 TFLOP a step; spread and correlation are assumed.
WMT14 = Lengths(30.0, 30.0, 0.6, 0.9)


def synthetic_pairs(count: int, vocabularies: tuple[int, int], lengths: Lengths, longest: int) -> Encoded:
  """Pairs of random ids with the given lengths, cut to 2 … `longest`; the same on every call."""
  random = np.random.default_rng(0)
  means = np.log([lengths.source, lengths.target]) - lengths.spread**2 / 2
  covariance = lengths.spread**2 * np.array([[1.0, lengths.correlation], [lengths.correlation, 1.0]])
  drawn = np.exp(random.multivariate_normal(means, covariance, size=count))
  pieces = np.clip(np.rint(drawn), 2, longest).astype(np.int32)  # [pairs, 2]

  def side(column: int) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(pieces[:, column], dtype=np.int64)])
    ids = random.integers(len(SPECIALS), vocabularies[column], offsets[-1], dtype=np.int32)
    ids[offsets[1:] - 1] = EOS
    return Ragged(ids, offsets)

  return Encoded(
    sources=side(0),
    targets=side(1),
    source_lengths=np.ascontiguousarray(pieces[:, 0]),
    target_lengths=np.ascontiguousarray(pieces[:, 1]),
    removed={},
    corpus_offsets=(0, count),
    weights=(1.0,),
  )
