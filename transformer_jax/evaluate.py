"""Compares translations with references: BLEU, chrF and other metrics.

  python -m transformer_jax.evaluate --workdir=runs/quickstart --source=test.en --reference=test.de --metrics=bleu,paper_bleu

translates a file with a finished run first, and

  python -m transformer_jax.evaluate --hypotheses=fre.hyp --reference=fre.ref --metrics=wer,per

takes translations that are there already, from whatever system. The metrics and their settings are those of the run
(`evaluation.*`), without a run those of the default configuration, unless --metrics and --tokenize name others. Every line counts,
blank ones too. The references are compared as they are: they never pass through a vocabulary.
"""

import json
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

from transformer_jax.checks import check, load_saved_config, set_field
from transformer_jax.commands import (
  SEARCH_FLAGS,
  check_writable,
  define_search_flags,
  parse_flags,
  required,
  run_command,
  search_changes,
  write_lines,
)
from transformer_jax.config import default_config
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import UserError
from transformer_jax.score import read_pair
from transformer_jax.scoring import METRICS, check_metrics, figures, score_translations


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  define_search_flags(values)
  flags.DEFINE_string("source", None, "file to translate", flag_values=values)
  flags.DEFINE_string("hypotheses", None, "file of translations, in place of --source", flag_values=values)
  flags.DEFINE_string("reference", None, "file of reference translations, line by line", flag_values=values)
  flags.DEFINE_string("output", None, "file to write the translations to", flag_values=values)
  flags.DEFINE_list("metrics", None, f"what to measure, of {', '.join(METRICS)}", flag_values=values)
  flags.DEFINE_string("tokenize", None, "sacreBLEU's tokenizer for BLEU", flag_values=values)
  flags.DEFINE_boolean("json", False, "print one JSON object with the names of results.json", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  changes = search_changes(values)
  if values.metrics is not None:
    changes["evaluation.metrics"] = tuple(values.metrics)
  if values.tokenize is not None:
    changes["evaluation.tokenize"] = values.tokenize
  translations, references, config = (given if values.hypotheses else translated)(values, changes)
  scores = score_translations(translations, references, config)
  if values.output:
    write_lines(values.output, translations)
  if values.json:
    write_lines(None, [json.dumps(scores)])
    return
  lines = [f"{figure}  {signature}".rstrip() for figure, signature in figures(scores)]
  write_lines(None, [*lines, f"sentences {scores['sentences']}"])


def translated(values: flags.FlagValues, changes: dict[str, object]) -> tuple[list[str], list[str], ConfigDict]:
  """Translations of --source by the run, their references, and the run's configuration."""
  workdir, source, reference = required(values, "workdir", "source", "reference")
  check_writable(values.output)
  sources, references = read_pair(source, reference)
  translator = Translator.load(workdir, changes)
  check_metrics(translator.config)
  return translator.translate(sources), references, translator.config


def given(values: flags.FlagValues, changes: dict[str, object]) -> tuple[list[str], list[str], ConfigDict]:
  """The lines of --hypotheses, their references, and the configuration of the run, or else the default one."""
  for name in ("source", "output", *SEARCH_FLAGS):
    if values[name].value is not None:
      raise UserError(f"--{name} is about translating, and --hypotheses is translated already: leave one out")
  (reference,) = required(values, "reference")
  config = load_saved_config(Path(values.workdir) / "config.json") if values.workdir else default_config()
  for name, value in changes.items():
    set_field(config, name, value)
  check(config)
  check_metrics(config)
  return *read_pair(values.hypotheses, reference), config


if __name__ == "__main__":
  run_command(main)
