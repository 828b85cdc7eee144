"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) of translations, by sacreBLEU (Post 2018, arXiv:1804.08771)."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from sacrebleu.metrics import BLEU, CHRF

from transformer_jax.errors import UserError


def score_translations(
  translations: Sequence[str], references: Sequence[str], evaluation: ConfigDict
) -> dict[str, Any]:
  """Compares translations with one reference each, as text, with the tokenizer and case of `config.evaluation`.

  Returns: bleu, chrf: 0 to 100. signature, chrf_signature: sacreBLEU's. sentences: how many were compared, which is all
    of them, blank ones too. exact_match: percentage of the translations that equal their reference.

  Raises:
    UserError: not as many translations as references, none at all, or a tokenizer that is not installed.
  """
  if len(translations) != len(references):
    raise UserError(f"{len(translations)} translations but {len(references)} references")
  if not references:
    raise UserError("there is no sentence to evaluate")
  bleu = bleu_metric(evaluation)
  chrf = CHRF(lowercase=evaluation.lowercase)
  return {
    "bleu": bleu.corpus_score(list(translations), [list(references)]).score,
    "chrf": chrf.corpus_score(list(translations), [list(references)]).score,
    "signature": str(bleu.get_signature()),
    "chrf_signature": str(chrf.get_signature()),
    "sentences": len(references),
    "exact_match": 100.0 * sum(map(str.__eq__, translations, references)) / len(references),
  }


def bleu_metric(evaluation: ConfigDict) -> BLEU:
  """sacreBLEU's BLEU with the tokenizer and case of `config.evaluation`; UserError if the tokenizer is not installed."""
  try:
    return BLEU(tokenize=evaluation.tokenize, lowercase=evaluation.lowercase)
  except (ImportError, RuntimeError) as error:
    reason = str(error).strip().splitlines()[0]
    raise UserError(f'evaluation.tokenize {evaluation.tokenize}: {reason} (pip install "sacrebleu[ja]")') from None
