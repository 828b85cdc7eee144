"""Corpora as ids on disk: what is kept, what is left out and counted, when a store is used again."""

import collections
import itertools
import json
import threading

import numpy as np
import pytest

from transformer_jax.data.corpora import Corpus, Pair
from transformer_jax.data.encoded import encode_corpora
from transformer_jax.data.vocabulary import EOS, PieceList, Vocabularies
from transformer_jax.errors import UserError


class ListCorpus(Corpus):
  """Pairs from a list, which counts how often it is gone through."""

  def __init__(self, pairs, name="list"):
    self.name, self.pairs, self.passes = name, [Pair(*pair) for pair in pairs], 0

  @property
  def fingerprint(self):
    return json.dumps(self.pairs)

  def __len__(self):
    return len(self.pairs)

  def __iter__(self):
    self.passes += 1
    yield from self.pairs


def letters(size: int = 26) -> Vocabularies:
  vocabulary = PieceList("characters", map(chr, range(ord("a"), ord("a") + size)))
  return Vocabularies(vocabulary, vocabulary)


PAIRS = [("abc", "de"), ("", "x"), ("x", ""), ("x", " \t"), ("abcdef", "abc"), ("a", "bcd"), ("abcd", "abcd")]


@pytest.mark.parametrize("with_cache", [True, False])
def test_pairs_are_filtered_and_counted(tmp_path, with_cache):
  """Users hit 15: empty sides are dropped from training and counted, as are long pairs and those of an odd ratio."""
  vocabularies = letters()
  cache = tmp_path if with_cache else None
  encoded = encode_corpora([ListCorpus(PAIRS)], vocabularies, max_length=5, max_ratio=2.0, cache=cache)
  assert encoded.removed == {"empty": 3, "long": 1, "ratio": 1}
  assert len(encoded) == 2
  for row, (source, target) in enumerate([PAIRS[0], PAIRS[6]]):
    assert encoded.sources[row].tolist() == [*vocabularies.source.encode([source])[0], EOS]
    assert encoded.targets[row].tolist() == [*vocabularies.target.encode([target])[0], EOS]
    assert encoded.sources[row].dtype == np.int32
  assert encoded.source_lengths.tolist() == [4, 5]
  assert encoded.target_lengths.tolist() == [3, 5]
  assert encoded.source_lengths.dtype == encoded.target_lengths.dtype == np.int32


def test_evaluation_leaves_out_empty_sides_only():
  """Users hit 24: long sides are cut and keep their end of sentence, so that every pair with text is evaluated."""
  encoded = encode_corpora([ListCorpus(PAIRS)], letters(), max_length=4, max_ratio=1.5, cut_long=True)
  assert encoded.removed == {"empty": 3, "long": 0, "ratio": 0}
  assert encoded.source_lengths.tolist() == [4, 4, 2, 4]
  assert all(encoded.sources[row][-1] == EOS for row in range(4))
  assert letters().source.decode([encoded.sources[1]]) == ["abc"]


def test_a_store_is_used_again_until_something_changes(tmp_path):
  corpus = ListCorpus(PAIRS)
  first = encode_corpora([corpus], letters(), max_length=5, cache=tmp_path)
  again = encode_corpora([corpus], letters(), max_length=5, cache=tmp_path, weights=[0.5])
  assert corpus.passes == 1
  assert again.sources.ids.tolist() == first.sources.ids.tolist()
  assert again.removed == first.removed
  assert (first.weights, again.weights) == ((1.0,), (0.5,))
  encode_corpora([corpus], letters(), max_length=6, cache=tmp_path)
  encode_corpora([corpus], letters(), max_length=5, max_ratio=3.0, cache=tmp_path)
  encode_corpora([corpus], letters(), max_length=5, cut_long=True, cache=tmp_path)
  encode_corpora([corpus], letters(25), max_length=5, cache=tmp_path)
  assert corpus.passes == 5
  changed = ListCorpus([*PAIRS, ("new", "neu")])
  assert len(encode_corpora([changed], letters(), max_length=5, cache=tmp_path)) == len(first) + 1
  assert len(list((tmp_path / "encoded").iterdir())) == 6


def test_corpora_lie_behind_each_other(tmp_path):
  corpora = [ListCorpus([("a", "b")] * 3), ListCorpus([("c", "d")] * 2 + [("", "")])]
  encoded = encode_corpora(corpora, letters(), max_length=9, cache=tmp_path, weights=(2.0, 1.0))
  assert encoded.corpus_offsets == (0, 3, 5)
  assert encoded.weights == (2.0, 1.0)
  with pytest.raises(UserError, match=r"data\.weights has 1 numbers for 2 corpora"):
    encode_corpora(corpora, letters(), max_length=9, weights=(1.0,))


def test_chunks_and_wide_ids(monkeypatch, tmp_path):
  """More pairs than one chunk, and a vocabulary whose ids need more than 16 bits."""
  monkeypatch.setattr("transformer_jax.data.encoded._CHUNK", 7)
  wide = PieceList("characters", map(chr, itertools.chain(range(0x3400, 0xD800), range(0xE000, 0x14000))))
  narrow = letters().target
  pairs = [(chr(0x13000 + number), "ab"[: 1 + number % 2]) for number in range(40)]
  seen = []
  encoded = encode_corpora(
    [ListCorpus(pairs)], Vocabularies(wide, narrow), max_length=9, cache=tmp_path, progress=seen.append
  )
  assert encoded.sources.ids.dtype == np.int32
  assert encoded.targets.ids.dtype == np.uint16
  assert wide.decode([encoded.sources[row] for row in range(40)]) == [source for source, _ in pairs]
  assert narrow.decode([encoded.targets[row] for row in range(40)]) == [target for _, target in pairs]
  assert seen == [7, 14, 21, 28, 35, 40]


def test_an_interrupted_encoding_leaves_no_store(tmp_path):
  class Failing(ListCorpus):
    def __iter__(self):
      yield from self.pairs
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    encode_corpora([Failing(PAIRS)], letters(), max_length=5, cache=tmp_path)
  assert list((tmp_path / "encoded").iterdir()) == []
  assert len(encode_corpora([ListCorpus(PAIRS)], letters(), max_length=5, cache=tmp_path)) == 3


def test_two_at_once_make_one_store(tmp_path):
  barrier = threading.Barrier(2)

  class Slow(ListCorpus):
    def __iter__(self):
      barrier.wait(timeout=10)  # both are writing
      yield from self.pairs

  lengths = []

  def work():
    lengths.append(len(encode_corpora([Slow(PAIRS)], letters(), max_length=5, cache=tmp_path)))

  threads = [threading.Thread(target=work) for _ in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert lengths == [3, 3]
  assert len(list((tmp_path / "encoded").iterdir())) == 1


def test_a_corpus_without_pairs_is_named():
  with pytest.raises(UserError, match=r"corpus void has no pair that can be used \(left out: 2 empty\)"):
    encode_corpora([ListCorpus([("a", ""), ("", "")], "void")], letters(), max_length=9)


def test_a_damaged_store_is_named(tmp_path):
  encode_corpora([ListCorpus(PAIRS)], letters(), max_length=5, cache=tmp_path)
  (file,) = tmp_path.glob("encoded/*/sources.bin")
  file.write_bytes(file.read_bytes()[:-2])
  with pytest.raises(UserError, match="is damaged: delete it"):
    encode_corpora([ListCorpus(PAIRS)], letters(), max_length=5, cache=tmp_path)


def test_a_row_behind_the_end_is_an_index_error():
  encoded = encode_corpora([ListCorpus(PAIRS)], letters(), max_length=5)
  assert encoded.sources[-1].tolist() == encoded.sources[len(encoded) - 1].tolist()
  with pytest.raises(IndexError):
    encoded.sources[len(encoded)]
  assert collections.Counter(map(len, encoded.sources)) == collections.Counter(encoded.source_lengths.tolist())
