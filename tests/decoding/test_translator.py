"""Text in, text out, with a small model that was never trained: whatever it says, it must say it everywhere alike."""

import logging

import jax
import numpy as np
import pytest
from helpers.batches_of import packed_batch
from helpers.runs import random_model, small_config
from helpers.words import Numbers

from transformer_jax.data.vocabulary import Vocabularies
from transformer_jax.decoding.batching import padded
from transformer_jax.decoding.search import SearchConfig
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import UserError

SIZE = 40


def make_translator(optimized=False, **decoding):
  """`optimized`: compiled as users have it; otherwise, as everywhere in the tests, with little optimization."""
  config = small_config()
  config.decoding.update(decoding)
  model, params = random_model(config, SIZE, SIZE)
  translator = Translator(model, params, Vocabularies(Numbers(SIZE), Numbers(SIZE)), config)
  if optimized:
    options = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    translator._search = jax.jit(translator._search_batch, static_argnames=("n", "steps"), compiler_options=options)
    translator._score = jax.jit(translator._score_batch, compiler_options=options)
  return translator


@pytest.fixture(scope="module")
def translator():
  return make_translator(optimized=True)


def random_lines(count, longest=30, seed=0):
  random = np.random.default_rng(seed)
  return [" ".join(map(str, random.integers(4, SIZE, random.integers(1, longest)))) for _ in range(count)]


def assert_same_tokens(translator, lines, one, other, ties=0):
  """The same ids line by line; at most `ties` lines may differ, by hypotheses that are equally likely within 1e-4."""
  different = [i for i in range(len(lines)) if one[i][0].ids != other[i][0].ids]
  assert len(different) <= ties
  sources = translator.encode_sources([lines[i] for i in different])
  scores = [translator.score_ids(sources, [list(found[i][0].ids) for i in different]) for found in (one, other)]
  np.testing.assert_allclose(*scores, atol=1e-4)


def test_same_sentence_gives_the_same_tokens_alone_in_any_batch_and_order(translator):
  """Users hit 8: alone, beside others, and in another order."""
  lines = random_lines(60, longest=15)
  together = translator.translate_n_best(lines, 1)
  order = np.random.default_rng(1).permutation(60)
  shuffled = translator.translate_n_best([lines[i] for i in order], 1)
  back = [shuffled[place] for place in np.argsort(order)]
  assert_same_tokens(translator, lines, together, back, ties=1)
  chosen = list(range(0, 60, 6))
  alone = [translator.translate_n_best([lines[i]], 1)[0] for i in chosen]
  assert_same_tokens(translator, [lines[i] for i in chosen], [together[i] for i in chosen], alone, ties=1)
  assert len({t[0].ids for t in together}) > 30


def test_same_sentence_gives_the_same_tokens_with_extra_padding(translator):
  """Users hit 8: with padding behind the source, and with more empty rows."""
  lines = random_lines(16, longest=15)
  sources = translator.encode_sources(lines)
  expected = translator.translate_n_best(lines, 1)
  for rows, length in ((16, 32), (48, 16)):
    limits = np.zeros(rows, np.int32)
    limits[:16] = [len(source) + 6 for source in sources]
    numbers = np.arange(rows, dtype=np.int32)
    found, done = translator._search(translator.params, padded(sources, rows, length), limits, numbers, 1, 16 + 6)
    assert bool(done.all())
    for row in range(16):
      assert tuple(found.tokens[row, 0, : found.lengths[row, 0]].tolist()) == expected[row][0].ids


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_printed_score_is_that_of_forced_decoding(method):
  """Users hit 10: for every hypothesis of an n-best list, log-probability and score."""
  translator = make_translator(method=method, length_penalty=0.9)
  lines = random_lines(20, longest=15)
  found = translator.translate_n_best(lines, 1 if method == "greedy" else 4)
  sources = [
    source for source, hypotheses in zip(translator.encode_sources(lines), found, strict=True) for _ in hypotheses
  ]
  hypotheses = [hypothesis for hypotheses in found for hypothesis in hypotheses]
  assert len(hypotheses) == 20 * (1 if method == "greedy" else 4)
  forced = translator.score_ids(sources, [list(hypothesis.ids) for hypothesis in hypotheses])
  np.testing.assert_allclose([h.log_probability for h in hypotheses], forced, atol=1e-4)
  scores = [log_p / ((5 + len(h.ids)) / 6) ** 0.9 for log_p, h in zip(forced, hypotheses, strict=True)]
  np.testing.assert_allclose([h.score for h in hypotheses], scores, atol=1e-4)
  if method == "beam":
    for hypotheses in found:
      assert len({h.ids for h in hypotheses}) == 4
      assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_score_is_the_sum_over_the_targets_pieces(translator):
  """Against the model's own logits for all pairs packed into one row."""
  sources, targets = random_lines(12, seed=3), random_lines(12, seed=4)
  targets[5] = ""
  pairs = [[[*map(int, line.split()), 2] for line in pair] for pair in zip(sources, targets, strict=True)]
  batch = packed_batch([pairs], *(sum(len(pair[side]) for pair in pairs) for side in (0, 1)))
  logits = jax.jit(translator.model.apply)({"params": translator.params}, batch)
  log_probabilities = jax.nn.log_softmax(logits)[0]
  chosen = log_probabilities[np.arange(len(batch.target_outputs[0])), batch.target_outputs[0]]
  expected = [chosen[batch.target_segments[0] == segment].sum() for segment in range(1, 13)]
  np.testing.assert_allclose(translator.score(sources, targets), expected, atol=1e-4)


def test_score_refuses_lists_of_different_length(translator):
  """Users hit 15: both counts are named."""
  with pytest.raises(UserError, match="2 sources but 3 targets"):
    translator.score(["4", "5"], ["4", "5", "6"])


def test_blank_lines_stay_blank_at_their_place(translator):
  """Users hit 14: nothing is decoded for them, not even where all lines are blank."""
  lines = ["", "4 5", "   ", "\t\u3000", "6", ""]
  translations = translator.translate(lines)
  assert [bool(text) for text in translations] == [False, True, False, False, True, False]
  assert [translations[1]] == translator.translate(["4 5"])
  assert translator.translate_n_best(["", " "], 3) == [[("", 0.0, 0.0, ())]] * 2
  assert translator.translate([]) == []
  np.testing.assert_array_equal(translator.score(["", "4 5"], ["", ""])[0], 0.0)


def test_long_line_is_cut_with_a_warning_that_names_it(translator, caplog):
  """Users hit 14: a line of 5,000 pieces is translated as its first 31 and the end of sentence."""
  pieces = ["7", "8", "9"] * 1667
  with caplog.at_level(logging.WARNING, logger="absl"):
    cut, short = translator.translate([" ".join(pieces), " ".join(pieces[:31])])
  assert cut == short
  assert [record.getMessage() for record in caplog.records] == [
    "source line 1 has 5001 pieces and is cut to the first 31"
  ]


def test_no_translation_holds_a_line_break(translator, monkeypatch):
  """Users hit 14: only "\\n" ends a line, so it is the only character that is replaced."""
  monkeypatch.setattr(Numbers, "decode", lambda self, ids: ["a\nb\r\u2028\x85\x0b\x0c" for _ in ids])
  assert translator.translate(["4", "5"]) == ["a b\r\u2028\x85\x0b\x0c"] * 2


def test_number_of_programs_is_bounded_by_the_number_of_shapes():
  """Users hit 26: 300 lines of all lengths, in calls of many sizes, with other parameters: a few programs, counted."""
  translator = make_translator(beam_size=2)
  lines = random_lines(300)
  for count in (300, 1, 5, 17, 40, 120):
    translator.translate(lines[:count])
  # Two source lengths (16, 32), at most three numbers of rows each, with the usual and the longest cache.
  assert len(translator.compiled) <= 2 * 3 * 2
  assert len(set(translator.compiled)) == len(translator.compiled) == translator._search._cache_size()
  before = list(translator.compiled)
  other = translator.with_params(jax.tree.map(lambda x: x * 1.1, translator.params))
  assert other.translate(lines) != translator.translate(lines)
  translator.translate(random_lines(300, seed=9))
  assert translator.compiled == before


def test_long_translations_do_not_need_a_long_cache_for_all():
  """The short and the long search find the same; both are used."""
  translator = make_translator(max_extra=40)
  lines = random_lines(30, longest=12)
  usual_first = translator.translate_n_best(lines, 2)
  assert {text.split()[-1] for text in translator.compiled} == {"24", "56"}
  translator._usual_steps = translator._most_steps
  assert translator.translate_n_best(lines, 2) == usual_first


def test_a_short_cache_that_is_no_half_shorter_is_not_used():
  """It would cost a program more for each length and save little."""
  translator = make_translator(max_extra=20)
  translator.translate(random_lines(30, longest=12))
  assert {text.split()[-1] for text in translator.compiled} == {"36"}


def test_draws_depend_on_seed_and_place():
  translator = make_translator(method="sample")
  first = translator.translate(["4 5 6"] * 3)
  assert first == translator.translate(["4 5 6", "4 5 6", "4 5 6", "7"])[:3]
  assert len(set(first)) == 3
  other = make_translator(method="sample")
  other.config.seed = 1
  assert other.translate(["4 5 6"] * 3) != first


def test_more_hypotheses_than_beams_are_refused(translator):
  with pytest.raises(UserError, match="beam_size"):
    translator.translate_n_best(["4"], 5)
  with pytest.raises(UserError, match="at least 1"):
    translator.translate_n_best(["4"], 0)
  with pytest.raises(UserError, match="greedy search has 1"):
    make_translator(method="greedy").translate_n_best(["4"], 2)


def test_search_config_takes_its_fields_from_the_configuration():
  config = small_config()
  config.decoding.beam_size = 7
  assert SearchConfig.of(config.decoding) == SearchConfig(beam_size=7, max_extra=6)
  assert SearchConfig() == SearchConfig.of(type(config)(config.decoding.to_dict() | {"beam_size": 4, "max_extra": 50}))
