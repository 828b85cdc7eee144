"""The end of a run: test sets and their scores, `results.json`, figures."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax.analysis.figures import training_figure
from transformer_jax.data.prepared import PreparedData
from transformer_jax.model.build import count
from transformer_jax.tasks import Reader, task_of
from transformer_jax.training.progress import METRICS_FILE
from transformer_jax.training.recorder import perplexity
from transformer_jax.training.resuming import Place, environment
from transformer_jax.training.rundir import write_json_atomically


def finish_run(
  config: ConfigDict,
  workdir: Path,
  console: Console,
  reader: Reader,
  data: PreparedData,
  place: Place,
  valid: dict[str, float],
  averaged: list[int],
) -> dict[str, Any]:
  """Reads and scores the test sets with the final parameters and writes the files; returns `results.json`'s content.

  Args:
    reader: the task's, with the final parameters.
    valid: of the final parameters, from `mean_loss`.
    averaged: the steps whose checkpoints the final parameters are the mean of.
  """
  (workdir / "figures").mkdir(exist_ok=True)
  training_figure(workdir / METRICS_FILE, workdir / "figures" / "training.png")
  tested = task_of(config).test(config, workdir, console, reader, data)
  first: dict[str, Any] = next(iter(tested.scores.values()), {})
  results = {
    "parameters": count(reader.params),
    "steps": place.step,
    "epochs": place.epoch,
    "averaged_steps": averaged,
    "valid": {"perplexity": perplexity(valid["nll"]), **valid},
    "test": {**first, **tested.scores},
    "time": {
      "train_seconds": place.seconds,
      "target_tokens_per_second": place.pieces / place.seconds if place.seconds else 0.0,
      "decode_sentences_per_second": tested.sentences / tested.seconds if tested.seconds else 0.0,
      **environment(),
    },
  }
  write_json_atomically(workdir / "results.json", results)  # last: it says that the run is complete
  return results
