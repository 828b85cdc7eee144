"""What a run tells its user before the bar starts and after it has ended."""

import itertools
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax.data.batches import Batch
from transformer_jax.data.prepared import PreparedData
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.model.build import count
from transformer_jax.tasks import task_of
from transformer_jax.training.progress import duration, facts_table


def show_start(console: Console, config: ConfigDict, workdir: Path, newest: int | None) -> None:
  """Says where the run lies, on what it runs and from where it goes on."""
  facts = {"run directory": str(workdir), "device": device(), "corpus": ", ".join(config.data.train)}
  if newest is not None:
    facts["going on"] = f"from the checkpoint of step {newest:,}"
  console.print(facts_table(facts))


def show_start_together(console: Console, config: ConfigDict, runs: list[str]) -> None:
  """The same for runs that train as one program, with a line for each of them."""
  console.print(facts_table({"runs": runs, "device": device(), "corpus": ", ".join(config.data.train)}))


def device() -> str:
  """What the run computes on: "CPU, 2 cores (JAX 0.10.2, Python 3.11.9)"."""
  devices = jax.devices()
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  kind = f"CPU, {cores} cores" if devices[0].platform == "cpu" else devices[0].device_kind
  copies = f"{len(devices)} × " if len(devices) > 1 else ""
  kind += f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
  return f"{copies}{kind} (JAX {jax.__version__}, Python {platform.python_version()})"


def show_data(console: Console, config: ConfigDict, data: PreparedData) -> None:
  """Says what is trained on and shows the first pairs as the model sees them."""
  sizes = dict.fromkeys(f"{vocabulary.size:,}" for vocabulary in data.vocabularies)
  kinds = dict.fromkeys([config.vocabulary.kind, config.vocabulary.target_kind or config.vocabulary.kind])
  first_epoch = data.train_plan.epoch(0)
  batch = first_epoch[0]
  sides = [
    side for side, segments in (("source", batch.source_segments), ("target", batch.target_segments)) if segments.any()
  ]
  shapes = ", ".join(
    f"{shape.rows} rows of {' + '.join(str(getattr(shape, f'{side}_length')) for side in sides)}"
    for shape in data.train_plan.shapes
  )
  padding = first_epoch.padding()
  facts: dict[str, str | list[str]] = {
    "data" if data.train is None else "pairs": data.summary,
    "vocabulary": f"{' and '.join(sizes)} pieces ({' and '.join(kinds)})",
    "batches": f"{shapes} pieces; padding {', '.join(f'{padding[side]:.1%} of the {side}' for side in sides)}",
  }
  facts["first batch"] = [
    line for lines in itertools.islice(first_pieces(batch, data.vocabularies), 3) for line in lines
  ]
  console.print(facts_table(facts))


def first_pieces(batch: Batch, vocabularies: Vocabularies) -> Iterator[list[str]]:
  """Yields what stands together in a batch as pieces, separated by spaces: source and target, or the side there is.

  Pieces that are spaces or line breaks are shown as ␣ and ⏎.
  """
  sides = (
    (batch.source, batch.source_segments, vocabularies.source),
    (batch.target_outputs, batch.target_segments, vocabularies.target),
  )
  shown = {" ": "␣", "\n": "⏎"}
  for row in range(len(batch.source)):
    for segment in range(1, int(max(segments[row].max() for _, segments, _ in sides)) + 1):
      source, target = (
        " ".join(shown.get(piece, piece) for piece in vocabulary.pieces(ids[row][segments[row] == segment].tolist()))
        for ids, segments, vocabulary in sides
      )
      yield [source, f"→ {target}"] if source and target else [source or target]


def show_model(console: Console, params: PyTree, batches: int, done: int, steps: int, seconds_per_step: float) -> None:
  """Says how large the model is and how long training will take; `batches`: in one pass over the corpus."""
  left = steps - done
  facts = {
    "model": f"{count(params):,} parameters",
    "training": f"{left:,} steps, {left / batches:.1f} passes over the corpus, about {duration(left * seconds_per_step)}",
  }
  console.print(facts_table(facts))


def show_results(console: Console, config: ConfigDict, results: dict[str, Any], workdir: Path) -> None:
  """Prints the scores and where the files are."""
  task, valid, clock = task_of(config), results["valid"], results["time"]
  tests = {name: scores for name, scores in results["test"].items() if isinstance(scores, dict)}
  facts: dict[str, str | list[str]] = {
    "validation": f"perplexity {valid['perplexity']:.2f} ({valid['nll']:.4f} nats a piece)"
  }
  for name, scores in tests.items():
    facts["test" if name == "test" else f"test {name}"] = task.lines_of(scores)
  facts["time"] = (
    f"{duration(clock['train_seconds'])} of training, {clock['target_tokens_per_second']:,.0f} target tokens/s"
    + (f"; {speed:.1f} sentences/s read" if (speed := clock["decode_sentences_per_second"]) else "")
  )
  facts["files"] = f"{workdir}: {', '.join(files_of(workdir))}"
  name, command = task.command(workdir)
  facts[name] = command
  console.print(facts_table(facts))


def files_of(workdir: Path) -> list[str]:
  """What a finished run leaves for people, of what is there."""
  names = ("samples.md", "translations", "labels", "figures", "results.json", "metrics.jsonl", "tensorboard")
  return [f"{name}/" if (workdir / name).is_dir() else name for name in names if (workdir / name).exists()]
