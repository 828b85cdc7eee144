"""The arithmetic of reports: means over seeds, differences with their standard errors, verdicts, paired bootstrap."""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result

from transformer_jax.errors import UserError


class Mean(NamedTuple):
  """The mean of a row's seeds.

  Attributes:
    value: the mean; NaN where no seed has finished.
    error: its standard error, in the same unit; NaN with fewer than two seeds.
    seeds: how many have finished.
  """

  value: float
  error: float
  seeds: int


def mean(values: Sequence[float]) -> Mean:
  """Mean and standard error (with n - 1 in the variance)."""
  if not values:
    return Mean(math.nan, math.nan, 0)
  error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
  return Mean(float(np.mean(values)), error, len(values))


def pooled_deviation(rows: Sequence[Sequence[float]]) -> float:
  """The standard deviation between seeds, taken to be the same in all rows; NaN where no row has two seeds.

  Rows with a single seed get their error from it, and with three seeds it is far steadier than each row's own.
  """
  repeated = [row for row in rows if len(row) > 1]
  freedom = sum(len(row) - 1 for row in repeated)
  if not freedom:
    return math.nan
  return math.sqrt(sum(float(np.var(row, ddof=1)) * (len(row) - 1) for row in repeated) / freedom)


class Difference(NamedTuple):
  """A row's mean less that of the row it is compared with, and the standard error of that."""

  value: float
  error: float


def difference(row: Mean, base: Mean, deviation: float) -> Difference:
  """The difference of two means of independent seeds; `deviation`: between seeds, from `pooled_deviation`."""
  if not row.seeds or not base.seeds:
    return Difference(math.nan, math.nan)
  return Difference(row.value - base.value, deviation * math.sqrt(1 / row.seeds + 1 / base.seeds))


def verdict(measured: Difference, published: float | None) -> str:
  """Whether the sign of a change agrees with the published one.

  "within noise": less than two standard errors from 0. "": there is no published figure, or no measured one.
  """
  if published is None or math.isnan(measured.value):
    return ""
  if math.isnan(measured.error):
    return "one seed: noise unknown"
  if abs(measured.value) < 2 * measured.error:
    return "within noise"
  return "agrees" if measured.value * published > 0 else "disagrees"


def reached(measured: Difference, lower_is_better: bool) -> str:
  """Whether a figure reaches the published one: "reached", "within noise" (two standard errors) or "not reached"."""
  if math.isnan(measured.value):
    return ""
  if (measured.value <= 0) if lower_is_better else (measured.value >= 0):
    return "reached"
  return "within noise" if abs(measured.value) < 2 * measured.error else "not reached"


def paired_bootstrap(
  base: Sequence[str],
  other: Sequence[str],
  references: Sequence[str],
  tokenize: str,
  lowercase: bool,
  samples: int = 1_000,
) -> float:
  """Returns the p-value of a difference in BLEU by sacreBLEU's paired bootstrap resampling (Koehn 2004), seed 12345.

  Args:
    base, other, references: lines in the same order; several seeds stand one after the other.

  Raises:
    UserError: the systems have not as many lines as there are references.
  """
  if not len(base) == len(other) == len(references):
    raise UserError(f"{len(base)} and {len(other)} translations for {len(references)} references")
  os.environ["SACREBLEU_SEED"] = "12345"
  metrics = {"BLEU": BLEU(tokenize=tokenize, lowercase=lowercase)}
  systems: list[tuple[str, Sequence[str]]] = [("base", list(base)), ("other", list(other))]
  _, scores = PairedTest(systems, metrics, references=[list(references)], test_type="bs", n_samples=samples)()
  first, second = (result for result in scores["BLEU"] if isinstance(result, Result))
  # The test is not made for equal scores.
  return 1.0 if first.score == second.score or second.p_value is None else float(second.p_value)
