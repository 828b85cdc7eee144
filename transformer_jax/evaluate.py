"""Translates a file with a finished run and compares the translations with references: BLEU, chrF and other metrics.

  python -m transformer_jax.evaluate --workdir=runs/quickstart --source=test.en --reference=test.de --metrics=bleu,paper_bleu

The metrics are the run's own (`evaluation.metrics`) unless --metrics names others. Every line counts, blank ones too. The
references are compared as they are: they never pass through a vocabulary.
"""

import json

from absl import flags

from transformer_jax.commands import (
  check_writable,
  define_search_flags,
  parse_flags,
  required,
  run_command,
  search_changes,
  write_lines,
)
from transformer_jax.decoding.translator import Translator
from transformer_jax.score import read_pair
from transformer_jax.scoring import METRICS, check_metrics, figures, score_translations


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  define_search_flags(values)
  flags.DEFINE_string("source", None, "file to translate", flag_values=values)
  flags.DEFINE_string("reference", None, "file of reference translations, line by line", flag_values=values)
  flags.DEFINE_string("output", None, "file to write the translations to", flag_values=values)
  flags.DEFINE_list("metrics", None, f"what to measure, of {', '.join(METRICS)}", flag_values=values)
  flags.DEFINE_boolean("json", False, "print one JSON object with the names of results.json", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  workdir, source, reference = required(values, "workdir", "source", "reference")
  check_writable(values.output)
  sources, references = read_pair(source, reference)
  changes = search_changes(values)
  if values.metrics is not None:
    changes["evaluation.metrics"] = tuple(values.metrics)
  translator = Translator.load(workdir, changes)
  check_metrics(translator.config)
  translations = translator.translate(sources)
  scores = score_translations(translations, references, translator.config)
  if values.output:
    write_lines(values.output, translations)
  if values.json:
    write_lines(None, [json.dumps(scores)])
    return
  lines = [f"{figure}  {signature}".rstrip() for figure, signature in figures(scores)]
  write_lines(None, [*lines, f"sentences {scores['sentences']}"])


if __name__ == "__main__":
  run_command(main)
