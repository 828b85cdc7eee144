"""The metrics: sacreBLEU's against the sacreBLEU command's own arithmetic, the others by hand and by brute force."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.config import default_config
from transformer_jax.errors import UserError
from transformer_jax.scoring import METRICS, check_metrics, figures, score_translations

TRANSLATIONS = ["Das Haus ist klein .", "", "ein Test", "Ein kleiner Hund"]
REFERENCES = ["Das Haus ist klein .", "Ein Haus", "Ein Test", ""]


def evaluation(**fields):
  config = default_config()
  config.evaluation.update(fields)
  return config


def scored(metric, translations, references, **fields):
  return score_translations(translations, references, evaluation(metrics=(metric,), **fields))[metric]


def test_scores_carry_signature_and_number_of_sentences():
  """Users hit 17: BLEU carries its sacreBLEU signature and the number of sentences; no sentence is dropped."""
  scores = score_translations(TRANSLATIONS, REFERENCES, evaluation())
  assert list(scores) == ["bleu", "chrf", "signature", "chrf_signature", "sentences", "exact_match"]
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


def test_only_what_is_asked_for_is_computed_and_in_that_order(monkeypatch):
  monkeypatch.setitem(METRICS, "bleu", METRICS["bleu"]._replace(function=None))
  scores = score_translations(["a b", "c"], ["a c", "c"], evaluation(metrics=("per", "exact_match", "wer")))
  assert list(scores) == ["per", "exact_match", "wer", "sentences"]
  assert list(figures(scores)) == [("PER 33.33 %", ""), ("exact match 50.00 %", ""), ("WER 50.00 %", "")]
  check_metrics(evaluation(metrics=tuple(name for name in METRICS if name != "bleu")))
  with pytest.raises(TypeError):
    check_metrics(evaluation())


def test_a_scoring_tokenizer_that_is_missing_is_named(monkeypatch):
  def missing(**_):
    raise RuntimeError("Please install it\nas follows")

  monkeypatch.setattr("transformer_jax.scoring.BLEU", missing)
  with pytest.raises(
    UserError, match=r"^evaluation.tokenize 13a: Please install it \(pip install .sacrebleu\[ja\].\)$"
  ):
    check_metrics(evaluation())


@pytest.mark.parametrize(
  ("translations", "references", "wer", "per"),
  [
    # A word that is nearly right: as wrong as any other in WER, 1 of 4 symbols in PER.
    (["ɑ ɑ χ ə"], ["ɑ ɑ χ ɛ"], 100, 25),
    (["a b", "k"], ["a b", "k"], 0, 0),
    (["a b", "k", "a"], ["a b", "g", "a b"], Fraction(200, 3), 40),  # one substitution, one deletion, 5 symbols
    (["tʃ a"], ["t ʃ a"], 100, Fraction(200, 3)),  # symbols, not characters: a substitution and a deletion
    (["a b c"], ["c"], 100, 200),
    (["c d"], ["a b c d"], 100, 50),  # the task's own table would count the missing beginning once
    ([""], ["a b"], 100, 100),
    (["a  b "], ["a b"], 0, 0),  # spaces part symbols, however many
    (["a", "b"], ["", "b"], 50, 100),
    (["a", ""], ["", ""], 50, 100),  # no symbol in any reference
    (["a\u00a0b"], ["a b"], 100, 100),  # only the space parts
  ],
)
def test_error_rates_by_hand(translations, references, wer, per):
  scores = score_translations(translations, references, evaluation(metrics=("wer", "per")))
  assert scores["wer"] == pytest.approx(float(wer)) and scores["per"] == pytest.approx(float(per))


def fewest_edits(one, other):
  """By brute force: everything but a longest common subsequence, kept in place, is replaced, inserted or deleted.

  Tries every choice of positions that are kept and counts what lies between: where m symbols become n, it takes max(m, n).
  """
  best = max(len(one), len(other))
  for kept in range(1, min(len(one), len(other)) + 1):
    for left in itertools.combinations(range(len(one)), kept):
      for right in itertools.combinations(range(len(other)), kept):
        if all(one[i] == other[j] for i, j in zip(left, right, strict=True)):
          edges = [(-1, -1), *zip(left, right, strict=True), (len(one), len(other))]
          gaps = itertools.pairwise(edges)
          best = min(best, sum(max(c - a, d - b) - 1 for (a, b), (c, d) in gaps))
  return best


WORDS = st.lists(st.sampled_from(["a", "tʃ", "aː", "b"]), max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_error_rates_by_brute_force(pairs):
  translations, references = ([" ".join(word) for word in side] for side in zip(*pairs, strict=True))
  edits, symbols = sum(fewest_edits(*pair) for pair in pairs), sum(len(reference) for _, reference in pairs)
  assert scored("per", translations, references) == pytest.approx(100 * edits / max(symbols, 1))
  wrong = sum(one != other for one, other in pairs)
  assert scored("wer", translations, references) == pytest.approx(100 * wrong / len(pairs))


def multi_bleu(translations, references):
  """BLEU-4 of lists of tokens as Papineni et al. write it, without smoothing; also the matches and n-grams of each order."""

  def grams(tokens, n):
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))

  counts = []
  for n in range(1, 5):
    pairs = [(grams(one, n), grams(other, n)) for one, other in zip(translations, references, strict=True)]
    counts.append((sum((one & other).total() for one, other in pairs), sum(one.total() for one, _ in pairs)))
  lengths = (sum(map(len, side)) for side in (translations, references))
  if not all(matches for matches, _ in counts):
    return 0.0, counts
  length, reference_length = lengths
  brevity = min(1.0, math.exp(1 - reference_length / length))
  return 100 * brevity * math.exp(sum(math.log(matches / total) for matches, total in counts) / 4), counts


@pytest.mark.parametrize(
  ("translation", "reference", "tokens", "reference_tokens", "counts"),
  [
    (
      # German prefixes keep their period, quotes become plain, numbers keep their comma.
      "Dr. Müller sagte: “Das E-Mail-System kostet z.B. 3,5 Euro.”",
      'Dr. Müller sagte: "Das E-Mail-Programm kostet z.B. 3,5 Euro."',
      'Dr. Müller sagte : " Das E ##AT##-##AT## Mail ##AT##-##AT## System kostet z.B. 3,5 Euro . "',
      'Dr. Müller sagte : " Das E ##AT##-##AT## Mail ##AT##-##AT## Programm kostet z.B. 3,5 Euro . "',
      [(16, 17), (14, 16), (12, 15), (10, 14)],
    ),
    (
      # Without the split no word of the compound would match; a hyphen between spaces is none.
      "der US-Präsident - heute in Berlin-Mitte",
      "der US-Senator - heute in Berlin-Mitte",
      "der US ##AT##-##AT## Präsident - heute in Berlin ##AT##-##AT## Mitte",
      "der US ##AT##-##AT## Senator - heute in Berlin ##AT##-##AT## Mitte",
      [(9, 10), (7, 9), (5, 8), (3, 7)],
    ),
    # Of a chain of single letters every second hyphen, since a match uses up both of its neighbours; case counts.
    ("a-b-c d e", "A-b-c d e", "a ##AT##-##AT## b-c d e", "A ##AT##-##AT## b-c d e", [(4, 5), (3, 4), (2, 3), (1, 2)]),
    ("kein Wort davon stimmt", "nicht eines ist richtig", None, None, None),
  ],
)
def test_paper_bleu_is_multi_bleu_of_tokens_with_split_compounds(
  translation, reference, tokens, reference_tokens, counts
):
  """Tokens by hand after Moses' rules, n-grams counted by hand, and BLEU by its definition."""
  expected = 0.0
  if tokens is not None:
    expected, counted = multi_bleu([tokens.split(" ")], [reference_tokens.split(" ")])
    assert counted == counts
    # Both sides have as many tokens: no brevity penalty.
    assert expected == pytest.approx(100 * math.prod(matches / total for matches, total in counts) ** 0.25)
  assert scored("paper_bleu", [translation], [reference]) == pytest.approx(expected)


def test_paper_bleu_of_a_corpus_is_short_where_the_translation_is():
  """The brevity penalty counts tokens after the split; the signature says how the tokens were made."""
  translations, references = ["ein U-Boot taucht auf .", "Ja ."], ["ein U-Boot taucht langsam auf .", "Ja ."]
  config = evaluation(metrics=("paper_bleu", "bleu"), tokenize="char", lowercase=True)
  scores = score_translations(translations, references, config)
  # 9 of 9, 6 of 7, 3 of 5 and 2 of 4 n-grams; 9 tokens for 10.
  expected = 100 * math.exp(1 - 10 / 9) * (9 / 9 * 6 / 7 * 3 / 5 * 2 / 4) ** 0.25
  assert scores["paper_bleu"] == pytest.approx(expected)
  tokens, _, rest = scores["paper_bleu_signature"].partition("|compounds:split|")
  assert tokens.startswith("moses:de-") and rest.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:")
  assert "tok:char" in scores["signature"]


def test_splitting_compounds_alone_raises_bleu():
  """As the paper's figures are higher than sacreBLEU's on the same text."""
  translations = ["die Berliner CDU-Fraktion im Bundestag", "eine Drei-Zimmer-Wohnung in der Stadt Bonn"]
  references = ["die Berliner SPD-Fraktion im Bundestag", "eine Zwei-Zimmer-Wohnung in der Stadt Bonn"]
  scores = score_translations(translations, references, evaluation(metrics=("paper_bleu", "bleu")))
  assert scores["paper_bleu"] > scores["bleu"] > 0


def test_joins_of_a_corpus_of_subwords_are_undone_in_references():
  """Multi30k's way: BLEU-4 on lower-cased tokens. Translations come without joins; a reference is split text, as its corpus is."""
  references = ["ein h@@ und läuft über das gr@@ as .", "zwei kin@@ der sp@@ ie@@ len im par@@ k@@"]
  translations = ["ein hund läuft über die wiese .", "Zwei kinder spielen im park"]
  whole = ["ein hund läuft über das gras .", "zwei kinder spielen im park"]
  config = evaluation(metrics=("bleu", "wer"), tokenize="none", lowercase=True)
  config.vocabulary.kind = "subwords"
  scores = score_translations(translations, references, config)
  expected, _ = multi_bleu([line.lower().split(" ") for line in translations], [line.split(" ") for line in whole])
  assert scores["bleu"] == pytest.approx(expected) and scores["bleu"] > 50
  assert score_translations(whole, references, config)["exact_match"] == 100.0
  # For every other kind `@@` is text, also where the sources alone are subwords.
  config.vocabulary.target_kind = "words"
  assert score_translations(whole, references, config)["exact_match"] == 0.0
