"""Task "lm": running text, its perplexity, and text drawn from the model."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import logging
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax.data.corpora import Pair, named_corpora
from transformer_jax.data.prepared import PreparedData
from transformer_jax.data.streams import StreamPlan, read_stream
from transformer_jax.data.vocabulary import Vocabularies, build_vocabularies
from transformer_jax.decoding.generator import Generator as Reader
from transformer_jax.tasks import Tested
from transformer_jax.training import step as programs
from transformer_jax.training.progress import Progress
from transformer_jax.training.recorder import perplexity
from transformer_jax.training.rundir import write_text_atomically
from transformer_jax.training.validation import mean_loss

__all__ = ["Reader", "command", "lines_of", "prepare_data", "show_validation", "test"]

SAMPLE_PIECES = 500


class StreamTest(NamedTuple):
  """A test set: running text."""

  name: str
  plan: StreamPlan
  characters: int


def prepare_data(config: ConfigDict, vocabularies: Vocabularies | None, rows_multiple: int) -> PreparedData:
  """Reads the texts, makes the vocabulary of the training text, and cuts them into windows."""
  data, batch = config.data, config.batch
  train = "".join(read_stream(spec, data.folder) for spec in data.train)
  if vocabularies is None:
    logging.info("training the vocabulary (%s, %d pieces)", config.vocabulary.kind, config.vocabulary.size)
    vocabularies = build_vocabularies(config.vocabulary, [[Pair(train, "")]], folder=data.folder, seed=config.seed)
  vocabulary = vocabularies.target

  def plan(text: str, shuffle: bool) -> StreamPlan:
    (ids,) = vocabulary.encode([text])
    return StreamPlan(ids, batch.row_length, batch.tokens, config.seed, rows_multiple, shuffle)

  valid = read_stream(data.valid, data.folder)
  tests = [
    StreamTest(name, plan(text, False), len(text))
    for name, text in ((name, read_stream(spec, data.folder)) for name, spec in named_corpora(data.test))
  ]
  return PreparedData(
    vocabularies=vocabularies,
    train=None,
    train_plan=plan(train, True),
    valid=None,
    valid_plan=plan(valid, False),
    valid_pairs=[],
    tests=tests,
    summary=f"training {len(train):,} characters, validation {len(valid):,}, test: "
    + (", ".join(f"{test.name} {test.characters:,}" for test in tests) or "none"),
  )


def show_validation(progress: Progress, reader: Reader, data: PreparedData, config: ConfigDict) -> dict[str, float]:
  """Prints a little text that the model draws."""
  if config.evaluation.samples:
    progress.print(reader.generate("\n", 100, config.seed))
  return {}


def test(config: ConfigDict, workdir: Path, console: Console, reader: Reader, data: PreparedData) -> Tested:
  """Scores the test texts, every piece of them; writes `samples.md` with text that is drawn."""
  scores: dict[str, dict[str, Any]] = {}
  devices = jax.tree.leaves(reader.params)[0].devices()
  mesh = programs.data_mesh(sorted(devices, key=lambda device: device.id))  # the batches go where the parameters are
  loss_of = jax.jit(lambda params, batch: programs.batch_loss(reader.model, params, batch, None, 0.0))
  for test in data.tests:
    loss = mean_loss(loss_of, reader.params, test.plan, mesh)
    nll, pieces = loss["nll"], loss["pieces"]
    scores[test.name] = {
      "nll": nll,
      "perplexity": perplexity(nll),
      "bits_per_character": nll * pieces / math.log(2) / test.characters,
      "pieces": pieces,
      "characters": test.characters,
    }
  sample = reader.generate("\n", SAMPLE_PIECES, config.seed)
  write_text_atomically(workdir / "samples.md", f"# Text drawn from the model\n\n```\n{sample}\n```\n")
  console.print(sample, markup=False)
  return Tested(scores, 0, 0.0)


def lines_of(scores: dict[str, Any]) -> list[str]:
  """Perplexity and bits per character."""
  return [
    f"{scores['nll']:.4f} nats a piece (perplexity {scores['perplexity']:.2f}), "
    f"{scores['bits_per_character']:.4f} bits per character of {scores['characters']:,}"
  ]


def command(workdir: Path) -> tuple[str, str]:
  """How to draw more."""
  return "generate", f'python -m transformer_jax.generate --workdir={workdir} --prompt="…" --pieces=500'
