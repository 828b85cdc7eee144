"""The arithmetic of reports against Python's own statistics, by hand, and against resampling written out."""

import math
import random
import statistics

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from experiments.statistics import Difference, Mean, difference, mean, paired_bootstrap, pooled_deviation, verdict
from transformer_jax.errors import UserError


def test_mean_and_standard_error():
  values = [25.1, 24.7, 25.9]
  got = mean(values)
  assert got.seeds == 3
  assert got.value == pytest.approx(statistics.mean(values))
  assert got.error == pytest.approx(statistics.stdev(values) / math.sqrt(3))
  assert mean([2.0]).value == 2.0 and math.isnan(mean([2.0]).error)
  assert math.isnan(mean([]).value)


def test_deviation_pooled_over_rows():
  """Of equally many seeds, the pooled variance is the mean of the rows' variances; rows of one seed say nothing."""
  rows = [[1.0, 2.0, 4.0], [7.0, 7.5, 9.0], [3.0]]
  expected = math.sqrt(statistics.mean([statistics.variance(rows[0]), statistics.variance(rows[1])]))
  assert pooled_deviation(rows) == pytest.approx(expected)
  assert math.isnan(pooled_deviation([[1.0], [2.0]]))
  got = difference(Mean(26.0, 0.1, 1), Mean(25.0, 0.1, 3), 0.3)
  assert got.value == 1.0 and got.error == pytest.approx(0.3 * math.sqrt(1 + 1 / 3))


def test_the_error_of_a_difference_is_what_repetition_shows():
  generator = np.random.default_rng(0)
  drawn = generator.normal(0.0, 0.4, (20_000, 3)).mean(axis=1) - generator.normal(0.0, 0.4, (20_000, 2)).mean(axis=1)
  expected = difference(Mean(0.0, 0.0, 3), Mean(0.0, 0.0, 2), 0.4).error
  assert drawn.std() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
  "measured, published, expected",
  [
    (Difference(-1.0, 0.2), -0.9, "agrees"),
    (Difference(1.0, 0.2), -0.9, "disagrees"),
    (Difference(-0.3, 0.2), -0.9, "within noise"),
    (Difference(1.0, 0.2), 0.0, "disagrees"),
    (Difference(0.1, 0.2), 0.0, "within noise"),
    (Difference(1.0, math.nan), 0.5, "one seed: noise unknown"),
    (Difference(math.nan, math.nan), 0.5, ""),
    (Difference(1.0, 0.2), None, ""),
  ],
)
def test_verdicts(measured, published, expected):
  assert verdict(measured, published) == expected


def test_paired_bootstrap_against_resampling_written_out():
  """The p-value of sacreBLEU's test is within chance of one counted from BLEU scores of resampled sentences."""
  generator = random.Random(1)
  words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "to", "it"]
  references = [" ".join(generator.choices(words, k=8)) for _ in range(60)]

  def damaged(lines, share):
    return [" ".join(w if generator.random() > share else "no" for w in line.split()) for line in lines]

  base, other = damaged(references, 0.18), damaged(references, 0.27)
  metric = BLEU(tokenize="none")

  def gain(indices):
    return (
      metric.corpus_score([other[i] for i in indices], [[references[i] for i in indices]]).score
      - metric.corpus_score([base[i] for i in indices], [[references[i] for i in indices]]).score
    )

  gains = np.array([gain(generator.choices(range(60), k=60)) for _ in range(400)])
  expected = np.mean(np.abs(gains - gains.mean()) >= abs(gain(range(60))))
  got = paired_bootstrap(base, other, references, "none", False)
  assert got == pytest.approx(expected, abs=0.05)
  assert got == paired_bootstrap(base, other, references, "none", False)
  assert paired_bootstrap(base, base, references, "none", False) == 1.0
  assert paired_bootstrap(references, damaged(references, 0.6), references, "none", False) < 0.005


def test_paired_bootstrap_wants_equal_numbers():
  with pytest.raises(UserError, match="1 and 2 translations for 2 references"):
    paired_bootstrap(["a"], ["a", "b"], ["a", "b"], "none", False)
