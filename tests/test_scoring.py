"""sacreBLEU's figures: against the sacreBLEU command's own arithmetic and by hand."""

import pytest
import sacrebleu

from transformer_jax.config import default_config
from transformer_jax.errors import UserError
from transformer_jax.scoring import score_translations

TRANSLATIONS = ["Das Haus ist klein .", "", "ein Test", "Ein kleiner Hund"]
REFERENCES = ["Das Haus ist klein .", "Ein Haus", "Ein Test", ""]


def evaluation(**fields):
  config = default_config().evaluation
  config.update(fields)
  return config


def test_scores_carry_signature_and_number_of_sentences():
  """Users hit 17: BLEU carries its sacreBLEU signature and the number of sentences; no sentence is dropped."""
  scores = score_translations(TRANSLATIONS, REFERENCES, evaluation())
  assert scores["bleu"] == sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score > 0
  assert scores["chrf"] == sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score > 0
  assert scores["signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
  assert "nc:6|nw:0" in scores["chrf_signature"]
  assert scores["sentences"] == 4
  assert scores["exact_match"] == 25.0
  # The blank translation and the blank reference count: without them the score is another.
  without = score_translations(TRANSLATIONS[::2], REFERENCES[::2], evaluation())
  assert without["bleu"] > scores["bleu"] and without["sentences"] == 2


def test_tokenizer_and_case_are_those_of_the_configuration():
  scores = score_translations(["EIN Test."], ["ein test."], evaluation(tokenize="char", lowercase=True))
  assert scores["bleu"] == pytest.approx(100.0) and scores["chrf"] == pytest.approx(100.0)
  assert "case:lc|eff:no|tok:char" in scores["signature"] and "case:lc" in scores["chrf_signature"]


def test_what_cannot_be_scored_is_refused():
  with pytest.raises(UserError, match="2 translations but 3 references"):
    score_translations(["a", "b"], ["a", "b", "c"], evaluation())
  with pytest.raises(UserError, match="no sentence"):
    score_translations([], [], evaluation())
