"""Task "translate": pairs of sentences, translations, and their scores."""

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

from transformer_jax.analysis.figures import attention_figure
from transformer_jax.data.prepared import PreparedData, TestSet
from transformer_jax.data.prepared import prepare_data as prepare_pairs
from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.decoding.translator import Translator as Reader
from transformer_jax.scoring import check_metrics, figures, score_translations
from transformer_jax.tasks import Tested
from transformer_jax.training.progress import Progress, samples_table
from transformer_jax.training.rundir import write_text_atomically

__all__ = ["Reader", "command", "lines_of", "prepare_data", "show_validation", "test"]

SAMPLES = 10


def prepare_data(config: ConfigDict, vocabularies: Vocabularies | None, rows_multiple: int) -> PreparedData:
  """Reads the pairs; raises UserError where the translations could not be scored at the end."""
  check_metrics(config)
  return prepare_pairs(config, vocabularies, rows_multiple)


def show_validation(progress: Progress, reader: Reader, data: PreparedData, config: ConfigDict) -> dict[str, float]:
  """Prints the translations of the first validation sentences."""
  if config.evaluation.samples:
    pairs = data.valid_pairs[: config.evaluation.samples]
    translations = reader.translate([pair.source for pair in pairs])
    progress.print(samples_table([(*pair, text) for pair, text in zip(pairs, translations, strict=True)]))
  return {}


def test(config: ConfigDict, workdir: Path, console: Console, reader: Reader, data: PreparedData) -> Tested:
  """Translates and scores the test sets; writes `translations/`, `samples.md` and `figures/attention.png`."""
  translations: dict[str, list[str]] = {}
  seconds, sentences = 0.0, 0
  scores: dict[str, Any] = {}
  for test in data.tests:
    console.print(f"translating test set {test.name}, {len(test.sources):,} sentences")
    start = time.perf_counter()
    translations[test.name] = reader.translate(test.sources)
    seconds += time.perf_counter() - start
    sentences += len(test.sources)
    scores[test.name] = score_translations(translations[test.name], test.references, config)
  (workdir / "translations").mkdir(exist_ok=True)
  for test in data.tests:
    lines = "".join(f"{line}\n" for line in translations[test.name])
    write_text_atomically(workdir / "translations" / f"{test.name}.txt", lines)
  if data.tests:
    first = data.tests[0]
    triples = list(zip(first.sources, first.references, translations[first.name], strict=True))[:SAMPLES]
    write_text_atomically(workdir / "samples.md", samples_page(first.name, triples))
    console.print(samples_table(triples))
    if config.evaluation.attention_figure:
      draw_attention(reader, first, workdir / "figures" / "attention.png")
  return Tested(scores, sentences, seconds)


def lines_of(scores: dict[str, Any]) -> list[str]:
  """The metrics in their order, exact matches, and the signature of the first metric, where it has one."""
  shown = list(figures(scores))
  line = ", ".join(figure for figure, _ in shown)
  return [f"{line} of {scores['sentences']:,} sentences", *(signature for _, signature in shown[:1] if signature)]


def command(workdir: Path) -> tuple[str, str]:
  """How to translate."""
  return "translate", f"python -m transformer_jax.translate --workdir={workdir} < in.txt > out.txt"


def samples_page(name: str, triples: list[tuple[str, str, str]]) -> str:
  """The first translations of a test set as Markdown."""
  parts = [f"# The first {len(triples)} sentences of test set {name}\n"]
  for number, (source, reference, translation) in enumerate(triples, start=1):
    lines = (("source", source), ("reference", reference), ("translation", translation))
    parts.append(f"{number}.\n" + "\n".join(f"    {label:<12} {text}" for label, text in lines) + "\n")
  return "\n".join(parts)


def draw_attention(reader: Reader, test: TestSet, path: Path) -> None:
  """Draws the attention to the source for a test sentence of middling length and its translation, where there is any.

  Of a Transformer it is the last decoder layer's, heads as panels.
  """
  vocabularies = reader.vocabularies
  sentences = [source for source in test.sources if source.strip()]
  model = reader.config.model
  if not sentences or (model.kind != "transformer" and model.recurrent_attention == "none"):
    return
  lengths = [len(ids) for ids in vocabularies.source.encode(sentences)]
  sentence = sentences[min(range(len(lengths)), key=lambda i: abs(lengths[i] - 12))]
  (source,) = reader.encode_sources([sentence])
  target = list(reader.search_ids([source])[0][0].ids)
  weights = cross_attention(reader, source, target)[-1]  # [heads, target, source]
  attention_figure(weights, vocabularies.source.pieces(source), vocabularies.target.pieces(target), path)


def cross_attention(
  reader: Reader, source: list[int], target: list[int]
) -> Float[np.ndarray, "layers heads target source"]:
  """Returns the weights of every decoder layer's attention to the source, for one pair of ids that end in EOS."""
  batch = jax.tree.map(jnp.asarray, reader.pair_batch([source], [target], len(source), len(target)))
  # Compiled as a whole: step by step, as Flax runs it without jit, every operation would be compiled for itself.
  apply = jax.jit(functools.partial(reader.model.apply, mutable=["intermediates"]))
  _, sown = apply({"params": reader.params}, batch)
  decoder = sown["intermediates"]["decoder"]
  if reader.config.model.kind != "transformer":
    return np.asarray(decoder["attention"]["weights"][0][0, :, 0])[None, None]  # from [1, target, 1, source]
  layers = [decoder[f"layer_{i}"]["cross_attention"]["weights"][0][0] for i in range(len(decoder))]
  return np.asarray(jnp.stack(layers))
