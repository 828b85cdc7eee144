"""How far translations are from their references: the metrics that `config.evaluation.metrics` names.

A metric is one function of translations, references and configuration, and one line of `METRICS`, at the end of this file.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics import BLEU, CHRF

from transformer_jax.data.pieces import join_subwords, split
from transformer_jax.errors import UserError


class Score(NamedTuple):
  """A metric's figure, 0 to 100 (error rates can be higher), and how it was computed, where that is not one way only."""

  value: float
  signature: str = ""


class Metric(NamedTuple):
  """A line of `METRICS`; label and unit are for the screen."""

  function: Callable[[list[str], list[str], ConfigDict], Score]
  label: str
  unit: str = ""

  def shown(self, value: float) -> str:
    """Returns, for example, `PER 2.75 %`."""
    return f"{self.label} {value:.2f}{self.unit}"


def score_translations(translations: Sequence[str], references: Sequence[str], config: ConfigDict) -> dict[str, Any]:
  """Compares translations with one reference each, as text, with the metrics, tokenizer and case of `config.evaluation`.

  Where the target's vocabulary is one of "subwords", the corpus itself is split text, and the `@@ ` joins of its references are
  undone first, as they are in translations. Nothing else is done to references.

  Returns: each metric of `evaluation.metrics` under its name, in their order, 0 to 100, and its signature, where it has one,
    under "NAME_signature" (BLEU's: "signature"). sentences: how many were compared, which is all of them, blank ones too.
    exact_match: percentage of the translations that equal their reference, asked for or not.

  Raises:
    UserError: not as many translations as references, none at all, or a tokenizer that is not installed.
  """
  if len(translations) != len(references):
    raise UserError(f"{len(translations)} translations but {len(references)} references")
  if not references:
    raise UserError("there is no sentence to evaluate")
  translations, references = list(translations), list(references)
  if (config.vocabulary.target_kind or config.vocabulary.kind) == "subwords":
    references = [join_subwords(reference) for reference in references]
  scores = {name: METRICS[name].function(translations, references, config) for name in config.evaluation.metrics}
  return {
    **{name: score.value for name, score in scores.items()},
    **{signature_key(name): score.signature for name, score in scores.items() if score.signature},
    "sentences": len(references),
    "exact_match": exact_match(translations, references, config).value,
  }


def signature_key(name: str) -> str:
  """Where the signature of a metric stands in `score_translations`'s result."""
  return "signature" if name == "bleu" else f"{name}_signature"


def check_metrics(config: ConfigDict) -> None:
  """Raises UserError where a metric of `config.evaluation` cannot be computed here, which is better known before training."""
  score_translations(["text"], ["text"], config)


def figures(scores: dict[str, Any]) -> Iterator[tuple[str, str]]:
  """For the screen: each metric of `score_translations`'s result with its label, and its signature, which may be empty."""
  for name, value in scores.items():
    if name in METRICS:
      yield METRICS[name].shown(value), scores.get(signature_key(name), "")


def bleu(translations: list[str], references: list[str], config: ConfigDict) -> Score:
  """BLEU (Papineni et al. 2002) by sacreBLEU (Post 2018, arXiv:1804.08771), on text.

  With `evaluation.tokenize` "none" and `evaluation.lowercase` it is BLEU-4 on lower-cased tokens, as reported for Multi30k: where
  every order has a match, as in any real test set, sacreBLEU's smoothing changes nothing, and it is what multi-bleu prints.
  """
  evaluation = config.evaluation
  tokenized = evaluation.tokenize == "none"  # so sacreBLEU need not warn of text that is
  try:
    metric = BLEU(tokenize=evaluation.tokenize, lowercase=evaluation.lowercase, force=tokenized)
  except (ImportError, RuntimeError) as error:
    reason = str(error).strip().splitlines()[0]
    raise UserError(f'evaluation.tokenize {evaluation.tokenize}: {reason} (pip install "sacrebleu[ja]")') from None
  value = metric.corpus_score(translations, [references]).score
  return Score(value, str(metric.get_signature()))


def chrf(translations: list[str], references: list[str], config: ConfigDict) -> Score:
  """chrF (Popović 2015), character n-grams up to 6, by sacreBLEU."""
  metric = CHRF(lowercase=config.evaluation.lowercase)
  value = metric.corpus_score(translations, [references]).score
  return Score(value, str(metric.get_signature()))


# What stands between two characters that are no spaces, both of which the match uses up: in "a-b-c" only the first hyphen is
# split, in "ab-cd-ef" both. So does the script that the paper's figures come from.
COMPOUND = re.compile(r"(\S)-(\S)")


def paper_bleu(translations: list[str], references: list[str], config: ConfigDict) -> Score:
  """BLEU as the paper and its followers report it on WMT14: on tokens, with case, hyphenated compounds taken apart.

  Both sides go through Moses' tokenizer for `data.target_language`, with typographic quotes and full-width punctuation made plain
  first; `rich-text` becomes the three tokens `rich ##AT##-##AT## text`; then multi-bleu counts: BLEU-4 without smoothing, 0 where
  an order has no match. `evaluation.tokenize` and `evaluation.lowercase` do not matter.

  It is no more than comparable with other papers' figures of the kind: about 0.7 above sacreBLEU on the same translations
  (a big model on newstest2014 en-de: 29.3, sacreBLEU 28.6). The split alone adds 0.7 to 1.0, since a compound's parts and the two
  marks can match where the whole word does not. Report it beside sacreBLEU's, never in its place. The papers' reference was a
  file tokenised once, elsewhere, and sacreMoses is a translation of Moses' Perl, so the last digits can differ from theirs.

  Source: Tensor2Tensor's script for English to German, described in https://nlp.stanford.edu/projects/nmt ("for historical
  reasons, we split compound words").
  """
  from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes most of a second

  language = config.data.target_language
  plain, moses = MosesPunctNormalizer(language).replace_unicode_punct, MosesTokenizer(language)

  def tokens(text: str) -> str:
    # Moses also writes `"` as `&quot;` and so on, which as long as both sides do or do not changes no match.
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(plain(text), return_str=True, escape=False))

  metric = BLEU(tokenize="none", smooth_method="none", force=True)  # force: tokens are meant to be tokens
  value = metric.corpus_score([tokens(text) for text in translations], [[tokens(text) for text in references]]).score
  return Score(value, f"moses:{language}-{version('sacremoses')}|compounds:split|{metric.get_signature()}")


def word_error_rate(translations: list[str], references: list[str], config: ConfigDict) -> Score:
  """Percentage of the lines whose symbols are not exactly the reference's, as in SIGMORPHON 2020, task 1 (Gorman et al. 2020).

  In grapheme-to-phoneme conversion every line is one word, written as phonemes parted by spaces, and a word is right or wrong as
  a whole. (In speech recognition "word error rate" is an edit distance over the words of a sentence: that is
  `phoneme_error_rate`, where the words take the place of the phonemes.)
  """
  wrong = sum(split(one, "words") != split(other, "words") for one, other in zip(translations, references, strict=True))
  return Score(100.0 * wrong / len(references))


def phoneme_error_rate(translations: list[str], references: list[str], config: ConfigDict) -> Score:
  """Edits (Levenshtein 1966) from references to translations per 100 symbols of the references, as in SIGMORPHON 2020, task 1.

  Symbols are what spaces part, and an insertion, a deletion and a substitution count 1 each, summed over all lines. It can exceed
  100. References without any symbol count as one symbol altogether.

  The task's script starts its table with 1 along both edges, so that it counts symbols missing or added at the beginning of a
  word as one edit however many they are; this is the true distance, which is never smaller. (Words that are right or nearly
  right have the same figure either way.)
  """
  pairs = [(split(one, "words"), split(other, "words")) for one, other in zip(translations, references, strict=True)]
  edits = sum(Levenshtein.distance(reference, translation) for translation, reference in pairs)
  return Score(100.0 * edits / max(1, sum(len(reference) for _, reference in pairs)))


def exact_match(translations: list[str], references: list[str], config: ConfigDict) -> Score:
  """Percentage of the translations that equal their reference to the letter."""
  return Score(100.0 * sum(map(str.__eq__, translations, references)) / len(references))


METRICS = {
  "bleu": Metric(bleu, "BLEU"),
  "chrf": Metric(chrf, "chrF"),
  "paper_bleu": Metric(paper_bleu, "tokenised BLEU"),
  "wer": Metric(word_error_rate, "WER", " %"),
  "per": Metric(phoneme_error_rate, "PER", " %"),
  "exact_match": Metric(exact_match, "exact match", " %"),
}
