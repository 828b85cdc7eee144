"""The end of a run: test translations and their scores, `results.json`, `samples.md`, figures."""

import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax.analysis.figures import attention_figure, training_figure
from transformer_jax.data.prepared import PreparedData, TestSet
from transformer_jax.decoding.translator import Translator
from transformer_jax.describe import count
from transformer_jax.scoring import score_translations
from transformer_jax.training.progress import METRICS_FILE, samples_table
from transformer_jax.training.recorder import perplexity
from transformer_jax.training.resuming import Place
from transformer_jax.training.rundir import write_json_atomically, write_text_atomically

SAMPLES = 10


def finish_run(
  config: ConfigDict,
  workdir: Path,
  console: Console,
  translator: Translator,
  data: PreparedData,
  place: Place,
  valid: dict[str, float],
  averaged: list[int],
) -> dict[str, Any]:
  """Translates and scores the test sets with the final parameters and writes the files; returns `results.json`'s content.

  Args:
    translator: with the final parameters.
    valid: of the final parameters, from `mean_loss`.
    averaged: the steps whose checkpoints the final parameters are the mean of.
  """
  translations: dict[str, list[str]] = {}
  seconds, sentences = 0.0, 0
  scores: dict[str, Any] = {}
  for test in data.tests:
    console.print(f"translating test set {test.name}, {len(test.sources):,} sentences")
    start = time.perf_counter()
    translations[test.name] = translator.translate(test.sources)
    seconds += time.perf_counter() - start
    sentences += len(test.sources)
    scores[test.name] = score_translations(translations[test.name], test.references, config.evaluation)
  results = {
    "parameters": count(translator.params),
    "steps": place.step,
    "epochs": place.epoch,
    "averaged_steps": averaged,
    "valid": {"perplexity": perplexity(valid["nll"]), **valid},
    "test": {**(scores[data.tests[0].name] if data.tests else {}), **scores},
    "time": {
      "train_seconds": place.seconds,
      "target_tokens_per_second": place.pieces / place.seconds if place.seconds else 0.0,
      "decode_sentences_per_second": sentences / seconds if seconds else 0.0,
    },
  }
  (workdir / "figures").mkdir(exist_ok=True)
  (workdir / "translations").mkdir(exist_ok=True)
  for test in data.tests:
    lines = "".join(f"{line}\n" for line in translations[test.name])
    write_text_atomically(workdir / "translations" / f"{test.name}.txt", lines)
  training_figure(workdir / METRICS_FILE, workdir / "figures" / "training.png")
  if data.tests:
    first = data.tests[0]
    triples = list(zip(first.sources, first.references, translations[first.name], strict=True))[:SAMPLES]
    write_text_atomically(workdir / "samples.md", samples_page(first.name, triples))
    console.print(samples_table(triples))
    draw_attention(translator, first, workdir / "figures" / "attention.png")
  write_json_atomically(workdir / "results.json", results)  # last: it says that the run is complete
  return results


def samples_page(name: str, triples: list[tuple[str, str, str]]) -> str:
  """The first translations of a test set as Markdown."""
  parts = [f"# The first {len(triples)} sentences of test set {name}\n"]
  for number, (source, reference, translation) in enumerate(triples, start=1):
    lines = (("source", source), ("reference", reference), ("translation", translation))
    parts.append(f"{number}.\n" + "\n".join(f"    {label:<12} {text}" for label, text in lines) + "\n")
  return "\n".join(parts)


def draw_attention(translator: Translator, test: TestSet, path: Path) -> None:
  """Draws the last decoder layer's attention to the source for a test sentence of middling length and its translation."""
  vocabularies = translator.vocabularies
  sentences = [source for source in test.sources if source.strip()]
  if not sentences:
    return
  lengths = [len(ids) for ids in vocabularies.source.encode(sentences)]
  sentence = sentences[min(range(len(lengths)), key=lambda i: abs(lengths[i] - 12))]
  (source,) = translator.encode_sources([sentence])
  target = list(translator.search_ids([source])[0][0].ids)
  weights = cross_attention(translator, source, target)[-1]  # [heads, target, source]
  attention_figure(weights, vocabularies.source.pieces(source), vocabularies.target.pieces(target), path)


def cross_attention(
  translator: Translator, source: list[int], target: list[int]
) -> Float[np.ndarray, "layers heads target source"]:
  """Returns the weights of every decoder layer's attention to the source, for one pair of ids that end in EOS."""
  batch = jax.tree.map(jnp.asarray, translator.pair_batch([source], [target], len(source), len(target)))
  # Compiled as a whole: step by step, as Flax runs it without jit, every operation would be compiled for itself.
  apply = jax.jit(functools.partial(translator.model.apply, mutable=["intermediates"]))
  _, sown = apply({"params": translator.params}, batch)
  decoder = sown["intermediates"]["decoder"]
  layers = [decoder[f"layer_{i}"]["cross_attention"]["weights"][0][0] for i in range(len(decoder))]
  return np.asarray(jnp.stack(layers))
