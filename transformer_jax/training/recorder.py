"""Takes down what the updates report, without making any of them wait."""

import math
import time

import jax
from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.training.progress import Metrics, Progress
from transformer_jax.training.resuming import Place
from transformer_jax.training.step import StepMetrics

SECONDS_BETWEEN_FLUSHES = 1.0


class Recorder:
  """Collects the metrics of updates and writes them out about once a second: numbers are fetched from the devices late."""

  def __init__(self, training: ConfigDict, metrics: Metrics, progress: Progress, place: Place, lane: int | None = None):
    """`place.pieces` and `place.seconds` are kept up to date by `flush`.

    `lane`: which entry of the arrays is this run's, where what is added are the metrics of several runs.
    """
    self.training, self.metrics, self.progress, self.place, self.lane = training, metrics, progress, place, lane
    self.waiting: list[tuple[int, StepMetrics]] = []
    self.clock = time.perf_counter()

  def add(self, step_metrics: StepMetrics) -> None:
    """Takes the metrics of the update that `place.step` numbers."""
    self.waiting.append((self.place.step, step_metrics))
    if time.perf_counter() - self.clock > SECONDS_BETWEEN_FLUSHES:
      self.flush()

  def restart_clock(self) -> None:
    """Leaves the time since the last `flush` out of the time of the updates: call it after a validation."""
    self.clock = time.perf_counter()

  def flush(self) -> None:
    """Writes a line of metrics.jsonl for every `log_every`-th update and moves the bar.

    Raises:
      UserError: `max_nonfinite` updates in a row were skipped because loss or gradient was not finite.
    """
    if not self.waiting:
      return
    steps, values = [step for step, _ in self.waiting], jax.device_get([metrics for _, metrics in self.waiting])
    self.waiting = []
    if self.lane is not None:
      values = [jax.tree.map(lambda array: array[self.lane], metrics) for metrics in values]
    now = time.perf_counter()
    seconds, self.clock = now - self.clock, now
    pieces = sum(int(metrics.sums.pieces) for metrics in values)
    self.place.seconds += seconds
    self.place.pieces += pieces
    clock = {"seconds": self.place.seconds, "target_tokens_per_second": pieces / seconds}
    for step, metrics in zip(steps, values, strict=True):
      line = self._line(step, metrics)
      if step % self.training.log_every == 0:
        self.metrics.write(step, "train", line, clock)
      if metrics.skipped_in_a_row >= self.training.max_nonfinite:
        raise UserError(
          f"step {step}: the loss or gradient was not finite {metrics.skipped_in_a_row} times in a row "
          "(training.max_nonfinite); lower optimizer.learning_rate or set optimizer.clip_norm, and start again"
        )
    self.progress.update(
      steps[-1], loss=line["loss"], perplexity=perplexity(line["nll"]), tokens_per_second=pieces / seconds
    )

  def _line(self, step: int, metrics: StepMetrics) -> dict[str, float]:
    pieces = max(float(metrics.sums.pieces), 1.0)
    return {
      "loss": float(metrics.sums.loss) / pieces,
      "nll": float(metrics.sums.nll) / pieces,
      "learning_rate": float(metrics.learning_rate),
      "gradient_norm": float(metrics.gradient_norm),
      "pieces": int(metrics.sums.pieces),
      "skipped": int(metrics.skipped),
    }


def perplexity(nll: float) -> float:
  """exp of the mean negative log-likelihood in nats; infinite where a float cannot hold it."""
  return math.exp(nll) if nll < 700 else math.inf
