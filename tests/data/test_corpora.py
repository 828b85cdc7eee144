"""Corpora by name: files, synthetic tasks, test sets, and the errors a user can make."""

import gzip
import lzma

import pytest

from transformer_jax.config import default_config
from transformer_jax.data.corpora import Pair, named_corpora, open_corpus
from transformer_jax.errors import UserError

SOURCES = ["one", "", "car\rriage", "sep\u2028par\x85ator", "\v\f", "last \ufeff"]
TARGETS = ["eins", "zwei", "", "\u2029", " ", "sechs"]


@pytest.fixture
def data(tmp_path):
  fields = default_config().data
  fields.folder = str(tmp_path)
  return fields


def write(path, lines, end="\n"):
  content = ("\n".join(lines) + end).encode() if isinstance(lines[0], str) else b"\n".join(lines) + end.encode()
  opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
  with opener(path, "wb") as file:
    file.write(content)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_only_a_line_feed_ends_a_line(tmp_path, data, suffix, end):
  """Users hit 14: U+2028, U+0085, carriage returns, form feeds and more are text; empty lines keep their place."""
  write(tmp_path / f"a.en{suffix}", SOURCES, end)
  write(tmp_path / f"a.de{suffix}", TARGETS, end)
  corpus = open_corpus(f"text:a.en{suffix},a.de{suffix}", "train", data)
  expected = [Pair(*sides) for sides in zip(SOURCES, TARGETS, strict=True)]
  assert list(corpus) == expected == list(corpus)
  assert len(corpus) == len(expected)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_invalid_utf8_names_file_and_line(tmp_path, data, suffix):
  """Users hit 14: invalid UTF-8 gets a clear error with its line number."""
  write(tmp_path / f"a.en{suffix}", [b"fine", b"not \xff fine"])
  write(tmp_path / f"a.de{suffix}", ["gut", "gut"])
  with pytest.raises(UserError, match=rf"a\.en{suffix}, line 2: not valid UTF-8 \(byte 0xFF\)"):
    list(open_corpus(f"text:a.en{suffix},a.de{suffix}", "train", data))


@pytest.mark.parametrize("counts", [(3, 2), (2, 3), (1, 3)])
def test_files_of_different_length_are_refused(tmp_path, data, counts):
  """Users hit 15: both counts are named."""
  for name, count in zip(("a.en", "a.de"), counts, strict=True):
    write(tmp_path / name, ["x"] * count)
  corpus = open_corpus("text:a.en,a.de", "train", data)
  # A list asks a corpus for its length first; its iterator alone has to notice, too.
  for use in (lambda corpus: list(iter(corpus)), list, len):
    with pytest.raises(UserError, match=rf"a\.en has {counts[0]} lines, but .*a\.de has {counts[1]}"):
      use(corpus)


def test_tsv_pairs(tmp_path, data):
  write(tmp_path / "a.tsv", ["one\teins", "\t", "a\rb\tc\u2028d"])
  corpus = open_corpus("tsv:a.tsv", "test", data)
  assert list(corpus) == [Pair("one", "eins"), Pair("", ""), Pair("a\rb", "c\u2028d")]
  assert len(corpus) == 3


def test_a_part_of_a_file(tmp_path, data):
  """By lines; parts that meet make the whole; of two files the same lines."""
  write(tmp_path / "a.tsv.xz", [f"{i}\tx{i}" for i in range(7)])
  write(tmp_path / "a.en", [str(i) for i in range(7)])
  write(tmp_path / "a.de", [f"x{i}" for i in range(7)])
  for name in ("tsv:a.tsv.xz", "text:a.en,a.de"):
    whole = open_corpus(name, "train", data)
    assert list(open_corpus(f"{name}@0:0.5", "train", data)) == list(whole)[:3]
    parts = [open_corpus(f"{name}@{part}", role, data) for part, role in (("0:0.9", "train"), ("0.9:1", "validation"))]
    assert [pair for part in parts for pair in part] == list(whole) == list(open_corpus(f"{name}@0:1", "train", data))
    assert [len(part) for part in parts] == [6, 1] and list(parts[0]) == list(parts[0])
    assert len({whole.fingerprint, *(part.fingerprint for part in parts)}) == 3
    assert parts[0].name == f"{name}@0:0.9"


def test_a_shuffled_part_of_a_sorted_file(tmp_path, data):
  """Chosen from everywhere, the same on every pass, in the file's order; parts that meet make the whole, each pair once."""
  write(tmp_path / "a.tsv", [f"{i}\tx{i}" for i in range(1_000)])
  train, valid = (open_corpus(f"tsv:a.tsv@shuffled:{part}", "train", data) for part in ("0:0.9", "0.9:1"))
  chosen = [int(pair.source) for pair in valid]
  assert len(train) == len(list(train)) == 900 and len(valid) == len(chosen) == 100
  assert sorted([*train, *valid]) == sorted(open_corpus("tsv:a.tsv", "train", data))
  assert chosen == sorted(chosen) and list(valid) == list(valid)
  for tenth in range(10):  # hypergeometric: 10 ± 2.9 of each hundred lines
    assert 1 <= sum(tenth * 100 <= i < (tenth + 1) * 100 for i in chosen) <= 20
  neighbours = open_corpus("tsv:a.tsv@0.9:1", "train", data)
  assert valid.fingerprint != neighbours.fingerprint


@pytest.mark.parametrize(("line", "columns"), [("alone", "1 column,"), ("a\tb\tc", "3 columns")])
def test_tsv_lines_have_two_columns(tmp_path, data, line, columns):
  write(tmp_path / "a.tsv", ["one\teins", line])
  with pytest.raises(UserError, match=rf"a\.tsv, line 2: {columns}"):
    list(open_corpus("tsv:a.tsv", "train", data))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("content", [b"not compressed\n", None])
def test_broken_compressed_files_are_named(tmp_path, data, suffix, content):
  path = tmp_path / f"a.tsv{suffix}"
  write(path, ["one\teins"] * 1_000)
  path.write_bytes(content or path.read_bytes()[:-20])
  corpus = open_corpus(f"tsv:a.tsv{suffix}", "train", data)
  for use in (list, len):
    with pytest.raises(UserError, match=rf"a\.tsv{suffix} is no complete"):
      use(corpus)


def test_a_changed_file_has_another_fingerprint(tmp_path, data):
  write(tmp_path / "a.tsv", ["one\teins"])
  before = open_corpus("tsv:a.tsv", "train", data).fingerprint
  assert open_corpus("tsv:a.tsv", "train", data).fingerprint == before
  write(tmp_path / "a.tsv", ["one\teins", "two\tzwei"])
  assert open_corpus("tsv:a.tsv", "train", data).fingerprint != before


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("text:a.en", "must name two files"),
    ("text:a,b,c", "must name two files"),
    ("tsv:none.tsv", r"there is no file .*none\.tsv \(data\.folder"),
    ("tsv:none.tsv@0:1", r"there is no file .*none\.tsv \("),
    ("tsv:none.tsv@0.5", r"there is no file .*none\.tsv@0\.5 \("),  # a name may hold an @
    ("tsv:none.tsv@shuffle:0:1", r"there is no file .*none\.tsv@shuffle:0:1 \("),
    ("tsv:a.tsv@shuffled:0.5:0.5", "the shares of a part must rise from 0 to 1"),
    ("tsv:a.tsv@0.5:0.5", "the shares of a part must rise from 0 to 1"),
    ("tsv:a.tsv@0:1.5", "the shares of a part must rise from 0 to 1"),
    ("lines:a.txt@0.1.2:1", "the shares of a part must rise from 0 to 1"),
    ("revers", "did you mean 'reverse'"),
    ("train.en,train.de", "it must begin with one of tfds:, text:"),
    ("reverse:symbol=3", "did you mean 'symbols'"),
    ("copy:pairs=none", "pairs must be a whole number"),
    ("copy:symbols=2,length=3", "too few to hold 500 out"),
  ],
)
def test_mistakes_in_a_name(data, spec, message):
  with pytest.raises(UserError, match=message):
    open_corpus(spec, "train", data)


@pytest.mark.parametrize("task", ["reverse", "copy"])
@pytest.mark.parametrize("sizes", ["", ":symbols=3,length=6,heldout=30,pairs=3000"])
def test_synthetic_strings(data, task, sizes):
  corpora = {role: list(open_corpus(task + sizes, role, data)) for role in ("train", "validation", "test")}
  for pairs in corpora.values():
    for source, target in pairs:
      assert target.split() == (source.split()[::-1] if task == "reverse" else source.split())
  strings = {role: {pair.source for pair in pairs} for role, pairs in corpora.items()}
  assert not strings["train"] & (strings["validation"] | strings["test"])
  assert not strings["validation"] & strings["test"]
  heldout = 30 if sizes else 500
  assert len(strings["validation"]) == len(strings["test"]) == heldout
  lengths = [len(pair.source.split()) for pair in corpora["train"]]
  assert set(lengths) == set(range(1, (6 if sizes else 10) + 1))
  assert len(corpora["train"]) == (3_000 if sizes else 10_000)


def test_synthetic_strings_depend_on_the_seed(data):
  first, again, other = (open_corpus("reverse:pairs=50", "train", data, seed) for seed in (1, 1, 2))
  assert list(first) == list(again) != list(other)
  assert first.fingerprint == again.fingerprint != other.fingerprint


def test_test_sets_have_names():
  specs = ("newstest2014=tfds:wmt14_translate/de-en", "reverse:symbols=20", "b=copy:pairs=3")
  assert named_corpora(specs) == [
    ("newstest2014", "tfds:wmt14_translate/de-en"),
    ("test", "reverse:symbols=20"),
    ("b", "copy:pairs=3"),
  ]
  assert named_corpora(["text:a=b,c"]) == [("test", "text:a=b,c")]
  with pytest.raises(UserError, match="two test sets are called 'test'"):
    named_corpora(["reverse", "copy"])
  with pytest.raises(UserError, match="must be made of letters"):
    named_corpora(["a/b=copy"])


def test_labels_and_lines(tmp_path, data):
  """A label ends at the first tab or, without one, at the first space; a text of `lines` is both sides."""
  write(tmp_path / "reviews", ["1 a fine film", "0\tdull , and\tlong", "1 one"])
  expected = [Pair("a fine film", "1"), Pair("dull , and\tlong", "0"), Pair("one", "1")]
  corpus = open_corpus("labelled:reviews", "train", data)
  assert list(corpus) == expected and len(corpus) == 3
  assert list(open_corpus("lines:reviews", "train", data))[2] == Pair("1 one", "1 one")
  write(tmp_path / "broken", ["1 fine", "nothing"])
  with pytest.raises(UserError, match="line 2: there must be a label"):
    list(open_corpus("labelled:broken", "train", data))
  with pytest.raises(UserError, match='task "lm"'):
    open_corpus("stream:reviews", "train", data)
