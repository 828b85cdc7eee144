"""Task "classify": texts and their labels; accuracy and macro F1, beside two baselines."""

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import accuracy_score, f1_score
from sklearn.naive_bayes import MultinomialNB

from transformer_jax.data.changed import label_plan
from transformer_jax.data.corpora import Pair, open_corpus
from transformer_jax.data.pieces import count_pieces
from transformer_jax.data.prepared import PreparedData
from transformer_jax.data.prepared import prepare_data as prepare_pairs
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.decoding.labeller import Labeller as Reader
from transformer_jax.errors import UserError
from transformer_jax.tasks import Tested
from transformer_jax.training.progress import Progress
from transformer_jax.training.rundir import write_text_atomically

__all__ = ["Reader", "command", "lines_of", "prepare_data", "show_validation", "test"]


def prepare_data(config: ConfigDict, vocabularies: Vocabularies | None, rows_multiple: int) -> PreparedData:
  """As for pairs, each text in a row of its own with its label as the one target piece."""
  if vocabularies is not None and vocabularies.shared:  # of the masked language model that this run starts from
    corpora = [open_corpus(spec, "train", config.data, config.seed) for spec in config.data.train]
    labels = count_pieces((pair.target for corpus in corpora for pair in corpus), "words", config.vocabulary.size)
    vocabularies = Vocabularies(vocabularies.source, labels)
  data = prepare_pairs(config, vocabularies, rows_multiple)
  for name, encoded in (("data.train", data.train), ("data.valid", data.valid)):
    if encoded is not None and encoded.target_lengths.max() > 2:  # the label and the end of sentence
      raise UserError(
        f'{name}: with task "classify" every target is one word, its label; name the corpus labelled:FILE'
      )
  first = config.model.pooling == "first"
  return dataclasses.replace(
    data, train_plan=label_plan(data.train_plan, first), valid_plan=label_plan(data.valid_plan, first)
  )


def show_validation(progress: Progress, reader: Reader, data: PreparedData, config: ConfigDict) -> dict[str, float]:
  """Prints the accuracy on the validation set."""
  labels = reader.label([pair.source for pair in data.valid_pairs])
  accuracy = 100.0 * accuracy_score([pair.target for pair in data.valid_pairs], labels)
  progress.print(f"accuracy {accuracy:.2f} % of {len(labels):,} texts")
  return {"accuracy": float(accuracy)}


def test(config: ConfigDict, workdir: Path, console: Console, reader: Reader, data: PreparedData) -> Tested:
  """Labels and scores the test sets; writes `labels/`. The baselines are made from the training texts."""
  corpora = [open_corpus(spec, "train", config.data, config.seed) for spec in config.data.train]
  train = [pair for corpus in corpora for pair in corpus]
  (workdir / "labels").mkdir(exist_ok=True)
  scores: dict[str, dict[str, Any]] = {}
  seconds, sentences = 0.0, 0
  for test in data.tests:
    console.print(f"labelling test set {test.name}, {len(test.sources):,} texts")
    start = time.perf_counter()
    labels = reader.label(test.sources)
    seconds += time.perf_counter() - start
    sentences += len(labels)
    write_text_atomically(workdir / "labels" / f"{test.name}.txt", "".join(f"{label}\n" for label in labels))
    scores[test.name] = {
      "accuracy": 100.0 * float(accuracy_score(test.references, labels)),
      "macro_f1": 100.0 * float(f1_score(test.references, labels, average="macro")),
      "sentences": len(labels),
      **baselines(train, test.sources, test.references),
    }
  return Tested(scores, sentences, seconds)


def baselines(train: list[Pair], texts: list[str], labels: list[str]) -> dict[str, float]:
  """Accuracies, in percent, of the commonest training label and of naive Bayes on counts of words (add-one smoothing)."""
  commonest = Counter(pair.target for pair in train).most_common(1)[0][0]
  counts = CountVectorizer(token_pattern=r"\S+", lowercase=False)
  bayes = MultinomialNB(alpha=1.0).fit(
    counts.fit_transform([pair.source for pair in train]), [pair.target for pair in train]
  )
  return {
    "majority_accuracy": 100.0 * labels.count(commonest) / len(labels),
    "naive_bayes_accuracy": 100.0 * float(accuracy_score(labels, bayes.predict(counts.transform(texts)))),
  }


def lines_of(scores: dict[str, Any]) -> list[str]:
  """Accuracy and F1, and those of the baselines."""
  return [
    f"accuracy {scores['accuracy']:.2f} %, macro F1 {scores['macro_f1']:.2f} % of {scores['sentences']:,} texts",
    f"majority class {scores['majority_accuracy']:.2f} %, unigram naive Bayes {scores['naive_bayes_accuracy']:.2f} %",
  ]


def command(workdir: Path) -> tuple[str, str]:
  """How to label."""
  return "classify", f"python -m transformer_jax.classify --workdir={workdir} < in.txt > out.txt"
