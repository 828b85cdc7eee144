"""Searches over small tables of logits, held against brute force, plain Python and exact probabilities."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from transformer_jax.decoding.search import SearchConfig, beam_search, beams_needed, search

BOS, EOS, FIRST = 1, 2, 4
ALPHAS = (-0.7, 0.0, 0.6, 1.5)


class HashedModel:
  """A "model" whose next logits depend on all that its beam has read, by way of the cache.

  The cache holds a code of each beam's history; the code picks a row of a random table [sentences, rows, vocabulary]. A
  beam whose cache did not move with it reads another beam's row. Long histories may share a row.
  """

  def __init__(self, sentences, vocabulary, rows=997, scale=1.5, seed=0):
    self.vocabulary = vocabulary
    self.table = np.random.default_rng(seed).normal(0, scale, (sentences, rows, vocabulary)).astype(np.float32)

  @staticmethod
  def step(tokens, cache):
    table, codes = cache
    codes = (codes * 31 + tokens) % table.shape[1]
    return jax.vmap(lambda table, codes: table[codes])(table, codes), (table, codes)

  @staticmethod
  def reorder(cache, beams):
    return cache[0], jnp.take_along_axis(cache[1], beams, axis=1)

  @staticmethod
  def reorder_nothing(cache, beams):
    return cache

  def log_probabilities(self, sentence, prefix):
    """Of the next piece, in float64."""
    code = 0
    for piece in (BOS, *prefix):
      code = (code * 31 + piece) % self.table.shape[1]
    logits = self.table[sentence, code].astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()

  def log_probability(self, sentence, pieces):
    return sum(self.log_probabilities(sentence, pieces[:i])[piece] for i, piece in enumerate(pieces))

  def sentences(self, chosen):
    """The same model with only some of its sentences, in another order."""
    other = HashedModel(1, self.vocabulary)
    other.table = self.table[chosen]
    return other


def penalty(length, alpha):
  return ((5 + length) / 6) ** alpha


def listed(hypotheses, sentence):
  """[(pieces, log-probability, score)] of one sentence."""
  fields = (np.asarray(field)[sentence] for field in hypotheses)
  return [
    (tuple(tokens[:length].tolist()), log_probability, score)
    for tokens, length, log_probability, score in zip(*fields, strict=True)
    if length
  ]


@functools.partial(
  jax.jit,
  static_argnames=("config", "max_length", "n", "steps", "early_stopping", "reorder"),
  compiler_options={"xla_backend_optimization_level": 0},  # compiling is what these tests spend their time on
)
def compiled(table, limits, keys, config, max_length, n, steps, early_stopping, reorder):
  beams = config.beam_size if config.method == "beam" else n
  cache = (table, jnp.zeros((len(table), beams), jnp.int32))
  if config.method == "beam":
    return beam_search(HashedModel.step, reorder, cache, limits, config, max_length, n, steps, early_stopping)
  return search(HashedModel.step, reorder, cache, limits, config, max_length, n, keys, steps)


def run(model, limits, config, n=1, steps=None, early_stopping=True, reorder=HashedModel.reorder, keys=None):
  """Searches for every sentence of a model; (hypotheses, done) as NumPy arrays."""
  limits = np.asarray(limits, np.int32)
  keys = jax.random.split(jax.random.key(0), len(limits)) if keys is None else keys
  longest = int(limits.max())
  found = compiled(model.table, limits, keys, config, longest, n, steps or longest, early_stopping, reorder)
  return jax.device_get(found)


def reference_beam_search(model, sentence, limit, beams, alpha):
  """Beam search in plain Python, always up to the limit; all finished hypotheses, best first."""
  live, finished = [(0.0, ())], []
  for length in range(1, limit + 1):
    extensions = []
    for total, prefix in live:
      log_probabilities = model.log_probabilities(sentence, prefix)
      pieces = [EOS] if length == limit else [EOS, *range(FIRST, model.vocabulary)]
      extensions += [(total + log_probabilities[piece], (*prefix, piece)) for piece in pieces]
    extensions.sort(key=lambda extension: -extension[0])
    finished += [extension for extension in extensions[:beams] if extension[1][-1] == EOS]
    live = [extension for extension in extensions if extension[1][-1] != EOS][:beams]
  scored = [(pieces, total, total / penalty(len(pieces), alpha)) for total, pieces in finished]
  return sorted(scored, key=lambda hypothesis: -hypothesis[2])


def assert_same(found, expected):
  assert [hypothesis[0] for hypothesis in found] == [hypothesis[0] for hypothesis in expected]
  np.testing.assert_allclose([h[1] for h in found], [h[1] for h in expected], atol=2e-5)
  np.testing.assert_allclose([h[2] for h in found], [h[2] for h in expected], atol=2e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_full_beam_equals_brute_force(alpha):
  """Users hit 9: with 4 pieces (EOS and 3 more) and length 5 a full beam finds the best of all sequences."""
  model = HashedModel(sentences=6, vocabulary=7, rows=9973)
  sequences = [(*prefix, EOS) for length in range(5) for prefix in itertools.product(range(FIRST, 7), repeat=length)]
  assert len(sequences) == 121
  found, done = run(model, [5] * 6, SearchConfig(beam_size=4 * 3**3, length_penalty=alpha), n=10)
  assert done.all()
  for sentence in range(6):
    scored = []
    for pieces in sequences:
      total = model.log_probability(sentence, pieces)
      scored.append((pieces, total, total / penalty(len(pieces), alpha)))
    scored.sort(key=lambda hypothesis: -hypothesis[2])
    assert_same(listed(found, sentence), scored[:10])


@pytest.mark.parametrize(("beams", "n", "alpha"), [(1, 1, 0.6), (3, 3, -0.7), (3, 1, 1.5), (4, 1, 0.6), (4, 4, 0.6)])
def test_equals_plain_python_that_never_stops_early(beams, n, alpha):
  """Users hit 9: stopping early changes no result: plain Python runs every sentence to its limit and finds the same."""
  model = HashedModel(sentences=40, vocabulary=11, seed=beams)
  limits = [3 + sentence % 8 for sentence in range(40)]
  found, _ = run(model, limits, SearchConfig(beam_size=beams, length_penalty=alpha), n)
  for sentence, limit in enumerate(limits):
    assert_same(listed(found, sentence), reference_beam_search(model, sentence, limit, beams, alpha)[:n])


@pytest.mark.parametrize("alpha", [-0.7, 0.6, 1.5])
def test_stopping_early_stops_and_changes_nothing(alpha):
  """Users hit 9: with and without early stopping the bits are the same, and sentences do stop long before the limit."""
  model = HashedModel(sentences=64, vocabulary=9, scale=2.0)
  config = SearchConfig(beam_size=4, length_penalty=alpha)
  early, _ = run(model, [40] * 64, config, n=2)
  late, _ = run(model, [40] * 64, config, n=2, early_stopping=False)
  for field in range(4):
    np.testing.assert_array_equal(early[field], late[field])
  if alpha < 1:  # with a large alpha the limit is so kind to long hypotheses that few can be ruled out
    _, done = run(model, [40] * 64, config, n=2, steps=20)
    assert done.sum() > 32


def test_fewer_steps_give_the_same_or_no_result():
  model = HashedModel(sentences=64, vocabulary=9, scale=2.0)
  whole, all_done = run(model, [40] * 64, SearchConfig(), n=2)
  part, done = run(model, [40] * 64, SearchConfig(), n=2, steps=20)
  assert all_done.all() and 0 < done.sum() < 64
  for sentence in np.flatnonzero(done):
    assert listed(part, sentence) == listed(whole, sentence)


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_hypothesis_that_never_ends_is_returned_whole(method):
  """Users hit 9: EOS is forced at each sentence's limit and counted in the score."""
  model = HashedModel(sentences=3, vocabulary=8)
  model.table[:, :, EOS] = -30.0
  limits = [4, 9, 1]
  found, done = run(model, limits, SearchConfig(method=method, beam_size=2))
  assert done.all()
  for sentence, limit in enumerate(limits):
    ((pieces, log_probability, score),) = listed(found, sentence)
    assert len(pieces) == limit and pieces[-1] == EOS and EOS not in pieces[:-1]
    np.testing.assert_allclose(log_probability, model.log_probability(sentence, pieces), rtol=1e-5)
    np.testing.assert_allclose(score, log_probability / penalty(limit, 0.6), rtol=1e-5)


def test_cache_moves_with_its_beam():
  """Users hit 12: the cache of a cut, repeated or reordered beam goes with it; left in place, others come out."""
  model = HashedModel(sentences=32, vocabulary=11)
  found, _ = run(model, [9] * 32, SearchConfig(), n=4)
  for sentence in range(32):
    for pieces, log_probability, _ in listed(found, sentence):
      np.testing.assert_allclose(log_probability, model.log_probability(sentence, pieces), atol=2e-5)
  broken, _ = run(model, [9] * 32, SearchConfig(), n=4, reorder=HashedModel.reorder_nothing)
  assert not np.array_equal(found.tokens, broken.tokens)


def test_sentence_is_the_same_alone_and_beside_others():
  """Users hit 8: what a search finds for a sentence does not depend on others that go on longer, or on empty rows."""
  model = HashedModel(sentences=6, vocabulary=9)
  limits = np.array([3, 30, 0, 12, 1, 7])
  together, done = run(model, limits, SearchConfig(beam_size=3), n=3)
  assert done.all() and listed(together, 2) == []
  reverse = np.arange(6)[::-1]
  reversed_, _ = run(model.sentences(reverse), limits[reverse], SearchConfig(beam_size=3), n=3)
  for sentence in range(6):
    assert listed(reversed_, 5 - sentence) == listed(together, sentence)
  for sentence in (0, 3):
    alone, _ = run(model.sentences([sentence]), [limits[sentence]], SearchConfig(beam_size=3), n=3)
    assert listed(alone, 0) == listed(together, sentence)


def test_greedy_is_the_likeliest_piece_each_time_and_beam_search_with_one_beam():
  model = HashedModel(sentences=32, vocabulary=11)
  greedy, _ = run(model, [12] * 32, SearchConfig(method="greedy"))
  for sentence in range(32):
    pieces = ()
    while not pieces or pieces[-1] != EOS:
      log_probabilities = model.log_probabilities(sentence, pieces)
      log_probabilities[[0, 1, 3]] = -np.inf
      pieces = (*pieces, EOS if len(pieces) == 11 else int(log_probabilities.argmax()))
    ((found, log_probability, score),) = listed(greedy, sentence)
    assert found == pieces
    np.testing.assert_allclose(log_probability, model.log_probability(sentence, pieces), atol=2e-5)
    np.testing.assert_allclose(score, log_probability / penalty(len(pieces), 0.6), rtol=1e-5)
  # Without a length penalty a beam of one is greedy search by its own rules, and with any by the dispatch in `search`.
  beam, _ = run(model, [12] * 32, SearchConfig(beam_size=1, length_penalty=0.0))
  np.testing.assert_array_equal(beam.tokens, greedy.tokens)
  cache = (jnp.asarray(model.table), jnp.zeros((32, 1), jnp.int32))
  limits = jnp.full(32, 12, jnp.int32)
  one, _ = search(HashedModel.step, HashedModel.reorder, cache, limits, SearchConfig(beam_size=1), 12)
  np.testing.assert_array_equal(one.tokens, greedy.tokens)


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_padding_begin_and_unknown_are_never_produced(method):
  """Users hit 16: unknown-token pieces are never produced, however likely the model thinks them."""
  model = HashedModel(sentences=16, vocabulary=9)
  model.table[:, :, [0, 1, 3]] += 20.0
  found, _ = run(model, [10] * 16, SearchConfig(method=method), n=1 if method == "greedy" else 4)
  for sentence in range(16):
    for pieces, log_probability, _ in listed(found, sentence):
      assert not {0, 1, 3} & set(pieces)
      # The forbidden pieces keep their share of the probability, as in forced decoding.
      np.testing.assert_allclose(log_probability, model.log_probability(sentence, pieces), rtol=1e-5)


def test_ties_go_to_the_smaller_ids():
  model = HashedModel(sentences=1, vocabulary=9)
  model.table[:] = 0.0
  found, _ = run(model, [3], SearchConfig(beam_size=3, length_penalty=0.0), n=3)
  assert [pieces for pieces, _, _ in listed(found, 0)] == [(EOS,), (4, EOS), (4, 4, EOS)]


def test_sampling_draws_each_sequence_as_often_as_it_is_likely():
  model = HashedModel(sentences=1, vocabulary=7, scale=0.7).sentences([0] * 32)
  temperature = 0.8
  exact = {}
  for prefix in [(), *((a,) for a in range(FIRST, 7)), *itertools.product(range(FIRST, 7), repeat=2)]:
    probability = 1.0
    for i, piece in enumerate((*prefix, EOS)[:2]):  # the third piece is the forced EOS
      logits = model.log_probabilities(0, prefix[:i]) / temperature
      logits[[0, 1, 3]] = -np.inf
      probability *= np.exp(logits[piece]) / np.exp(logits).sum()
    exact[(*prefix, EOS)] = probability
  assert np.isclose(sum(exact.values()), 1.0)
  found, _ = run(model, [3] * 32, SearchConfig(method="sample", temperature=temperature), n=512)
  counts = dict.fromkeys(exact, 0)
  for sentence in range(32):
    for pieces, log_probability, _ in listed(found, sentence):
      counts[pieces] += 1
      if counts[pieces] == 1:
        np.testing.assert_allclose(log_probability, model.log_probability(0, pieces), atol=1e-5)
  total = 32 * 512
  assert stats.chisquare(list(counts.values()), [total * p for p in exact.values()]).pvalue > 1e-3
  assert 0.5 * sum(abs(counts[s] / total - exact[s]) for s in exact) < 0.02


def test_a_draw_depends_on_its_key_alone():
  """Users hit 8: the same sentence with the same key draws the same pieces beside other sentences."""
  model = HashedModel(sentences=6, vocabulary=9)
  config, keys = SearchConfig(method="sample"), jax.random.split(jax.random.key(0), 6)
  together, _ = run(model, [8] * 6, config, n=3, keys=keys)
  reverse = np.arange(6)[::-1]
  reversed_, _ = run(model.sentences(reverse), [8] * 6, config, n=3, keys=keys[reverse])
  alone, _ = run(model.sentences([4]), [8], config, n=3, keys=keys[4:5])
  for sentence in range(6):
    assert listed(together, sentence) == listed(reversed_, 5 - sentence)
  assert listed(alone, 0) == listed(together, 4)
  assert len({pieces for sentence in range(6) for pieces, _, _ in listed(together, sentence)}) > 6


def test_greedy_and_too_narrow_beams_have_no_n_best_list():
  for config in (SearchConfig(method="greedy"), SearchConfig(beam_size=2)):
    with pytest.raises(ValueError, match="3 hypotheses"):
      beams_needed(config, 3)
