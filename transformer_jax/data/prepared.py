"""From the corpora that a configuration names to batch plans and test sets: the data of one run."""

import dataclasses
from pathlib import Path
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from transformer_jax.data.batches import BatchPlan, Plan
from transformer_jax.data.corpora import Corpus, Pair, named_corpora, open_corpus
from transformer_jax.data.encoded import Encoded, encode_corpora
from transformer_jax.data.vocabulary import Vocabularies, build_vocabularies
from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TestSet:
  """A named set of pairs that is translated and scored. The references stay text."""

  name: str
  sources: list[str]
  references: list[str]


@dataclasses.dataclass(frozen=True)
class PreparedData:
  """What a training run reads."""

  vocabularies: Vocabularies
  train: Encoded | None  # None: running text
  train_plan: Plan
  valid: Encoded | None
  valid_plan: Plan
  valid_pairs: list[Pair]
  tests: list[Any]  # TestSets, or those of the task
  summary: str  # how much there is of each, for the screen


def prepare_data(config: ConfigDict, vocabularies: Vocabularies | None, rows_multiple: int) -> PreparedData:
  """Opens, encodes and plans everything that `config` names.

  Args:
    config: the checked configuration.
    vocabularies: those of the run, when there are any already; None trains them on the training side.
    rows_multiple: the number of devices; every batch has a multiple of so many rows.
  """
  data = config.data
  cache = Path(data.cache).expanduser()
  corpora = [open_corpus(spec, "train", data, config.seed) for spec in data.train]
  valid = open_corpus(data.valid, "validation", data, config.seed)
  test_sets = [
    read_test_set(name, open_corpus(spec, "test", data, config.seed)) for name, spec in named_corpora(data.test)
  ]
  if vocabularies is None:
    logging.info("training the vocabulary (%s, %d pieces)", config.vocabulary.kind, config.vocabulary.size)
    vocabularies = build_vocabularies(config.vocabulary, corpora, folder=data.folder, seed=config.seed)
  encoded = encode_corpora(
    corpora, vocabularies, max_length=data.max_length, max_ratio=data.max_ratio, weights=data.weights, cache=cache
  )
  valid_encoded = encode_corpora([valid], vocabularies, max_length=data.max_length, cut_long=True, cache=cache)
  return PreparedData(
    vocabularies=vocabularies,
    train=encoded,
    train_plan=batch_plan(encoded, config, rows_multiple, shuffle=True),
    valid=valid_encoded,
    valid_plan=batch_plan(valid_encoded, config, rows_multiple, shuffle=False),
    valid_pairs=list(valid),
    tests=test_sets,
    summary=summary(encoded, valid_encoded, test_sets),
  )


def summary(train: Encoded, valid: Encoded, tests: list[TestSet]) -> str:
  """The numbers of pairs, and of those that are not trained on."""
  removed = ", ".join(f"{number:,} {reason}" for reason, number in train.removed.items() if number) or "none"
  names = ", ".join(f"{test.name} {len(test.sources):,}" for test in tests) or "none"
  return f"training {len(train):,} (removed: {removed}), validation {len(valid):,}, test: {names}"


def read_test_set(name: str, corpus: Corpus) -> TestSet:
  """Reads a test set whole; raises UserError if it holds no pair."""
  pairs = list(corpus)
  if not pairs:
    raise UserError(f"data.test: the corpus of {name} ({corpus.name}) is empty")
  return TestSet(name, [pair.source for pair in pairs], [pair.target for pair in pairs])


def batch_plan(encoded: Encoded, config: ConfigDict, rows_multiple: int, shuffle: bool) -> BatchPlan:
  """The batches of a corpus under `config.batch`, in random order for training, in file order for evaluation."""
  return BatchPlan(
    encoded,
    tokens=config.batch.tokens,
    packing=config.batch.packing,
    row_length=config.batch.row_length,
    buckets=config.batch.buckets,
    max_length=config.data.max_length,
    seed=config.seed,
    rows_multiple=rows_multiple,
    shuffle=shuffle,
  )
