"""Vocabularies: every text survives, ids are the package's own, files come back the same."""

import io
import random

import pytest
import sentencepiece

from transformer_jax.config import default_config
from transformer_jax.data.corpora import Pair
from transformer_jax.data.vocabulary import (
  EOS,
  PAD,
  UNK,
  SentencePieceVocabulary,
  build_vocabularies,
  load_vocabularies,
  load_vocabulary,
  save_vocabularies,
)
from transformer_jax.errors import UserError

PLACES = ["kitchen", "garden", "bedroom", "garage", "cellar", "attic", "office", "hallway", "bathroom", "terrace"]
STATES = ["open", "closed", "unknown", "unavailable", "running", "stopped", "heating", "cooling", "charging", "empty"]
PAIRS = [
  Pair(f"The {thing} in the {place} is {state}.", f"Das Gerät {thing} ({place}) ist {state}, größer als <s> {number}.")
  for number, place in enumerate(PLACES)
  for thing in ("lamp", "switch", "sensor", "<unk>", "a\u2581b")
  for state in (*STATES, "not <0x41> known")
]
AWKWARD = [
  "",
  " ",
  " leading",
  "trailing ",
  "  two   three    four ",
  "tab\tand\u00a0no-break\u3000ideographic\u2003em",
  "\u2581",
  "a\u2581b \u2581 \u2581\u2581c\u2581",
  "\ufdd0 stands in \u2581 for \ufdd0",
  "\0 NUL \0",
  "\u0301 lone mark e\u0301",
  "👩‍👩‍👧 🇩🇪 \U0010ffff",
  "<s> </s> <pad> <unk> <0x41> <0xE2><0x96><0x81>",
  "\r \u2028 \x85 \v \f \n",
  "\ufeff BOM",
  "größer 日本語 עברית ไทย",
  "@@ a@@ b",
]


def fields(**changes):
  vocabulary = default_config().vocabulary
  vocabulary.update({"size": 340, **changes})
  return vocabulary


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request):
  return build_vocabularies(fields(kind=request.param), [PAIRS]).source


def random_texts(number: int, seed: int = 0) -> list[str]:
  generator = random.Random(seed)
  ranges = [(0, 0x7F), (0x80, 0x7FF), (0x2000, 0x206F), (0x2580, 0x2582), (0x3000, 0x30FF), (0xFDD0, 0xFFFF)]
  ranges += [(0xE000, 0xF8FF), (0x10000, 0x10FFFF), (0x20, 0x21)]

  def text() -> str:
    return "".join(chr(generator.randint(*generator.choice(ranges))) for _ in range(generator.randrange(40)))

  return [text() for _ in range(number)]


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_survives_sentencepiece(trained, text):
  """Users hit 16, 18: spaces of every kind, U+2581, NUL, marks and names of special pieces come back as they were."""
  (ids,) = trained.encode([text])
  assert trained.decode([ids]) == [text]
  assert not {PAD, 1, EOS, UNK} & set(ids)


def test_random_unicode_survives_sentencepiece(trained):
  """Users hit 16: any Unicode text survives encode and decode, and no unknown piece is made."""
  texts = random_texts(3_000)
  rows = trained.encode(texts)
  assert trained.decode(rows) == texts
  assert min(min(row, default=4) for row in rows) >= 4


def test_special_ids_are_left_out_of_text(trained):
  (ids,) = trained.encode(["The lamp"])
  assert trained.decode([[1, *ids, EOS, PAD, PAD], [UNK]]) == ["The lamp", ""]


def test_bytes_that_are_no_utf8_become_replacement_characters(trained):
  (ids,) = trained.encode(["\u3000"])
  space = trained.encode(["\u3000"])[0]
  assert space == ids
  assert "\ufffd" in trained.decode([ids[:-1]])[0]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_twice_gives_the_same_bytes(kind):
  first, second = (build_vocabularies(fields(kind=kind), [PAIRS]).source for _ in range(2))
  assert first.to_bytes() == second.to_bytes()
  assert first.fingerprint == second.fingerprint


def test_at_most_training_pairs_are_drawn_evenly():
  drawn = []

  class Watched(list):
    def __iter__(self):
      for pair in super().__iter__():
        yield Pair(Seen(pair.source), pair.target)

  class Seen(str):
    def replace(self, *arguments):
      drawn.append(int(self))
      return str(self)

  corpus = Watched(Pair(str(i), "x y z" * (1 + i % 5)) for i in range(1_000))
  build_vocabularies(fields(size=290, training_pairs=100), [corpus])
  assert len(drawn) == 100
  assert [number // 10 for number in drawn] == list(range(100))


@pytest.mark.parametrize(("size", "words"), [(50_000, "too large"), (100, "too small")])
def test_impossible_sizes_are_refused_in_one_line(size, words):
  with pytest.raises(UserError, match=rf"vocabulary\.size = {size} is {words}") as caught:
    build_vocabularies(fields(size=size), [PAIRS])
  assert "\n" not in str(caught.value)


def test_the_largest_size_named_in_the_error_works():
  with pytest.raises(UserError) as caught:
    build_vocabularies(fields(size=50_000), [PAIRS])
  largest = int(str(caught.value).split("text: ")[1].split()[0])
  assert build_vocabularies(fields(size=largest), [PAIRS]).source.size == largest


def test_an_empty_corpus_has_no_vocabulary():
  with pytest.raises(UserError, match="empty"):
    build_vocabularies(fields(), [[Pair("", "")]])


def foreign_model(**options) -> bytes:
  model = io.BytesIO()
  texts = [side for pair in PAIRS for side in pair]
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts), model_writer=model, minloglevel=2, model_type="bpe", **options
  )
  return model.getvalue()


@pytest.mark.parametrize("options", [{}, {"pad_id": 7, "eos_id": 0, "unk_id": 3, "bos_id": -1}])
def test_a_foreign_model_gets_our_ids(options):
  """A model whose special pieces have other ids or are missing: same pieces, ids 0 to 3 ours, the others in order."""
  bytes_ = foreign_model(byte_fallback=True, vocab_size=330, **options)
  theirs, ours = sentencepiece.SentencePieceProcessor(model_proto=bytes_), SentencePieceVocabulary(bytes_)
  text = "The lamp is größer ☃"
  (ids,) = ours.encode([text])
  assert ours.pieces(ids) == theirs.encode(text, out_type=str)
  assert ours.decode([ids]) == [text]
  assert min(ids) >= 4
  specials = sum(number >= 0 for number in (theirs.pad_id(), theirs.bos_id(), theirs.eos_id(), theirs.unk_id()))
  assert ours.size == len(theirs) - specials + 4
  assert ours.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
  others = [theirs.id_to_piece(i) for i in range(len(theirs)) if not (theirs.is_control(i) or theirs.is_unknown(i))]
  assert ours.pieces(range(4, ours.size)) == others


def test_a_foreign_model_without_bytes_gives_unknown_pieces_and_a_warning(caplog):
  model = SentencePieceVocabulary(foreign_model(vocab_size=80), "x.model")
  assert UNK in model.encode(["☃"])[0]
  assert any("byte fallback" in record.getMessage() for record in caplog.records)


def test_a_file_that_is_no_model_is_refused(tmp_path):
  path = tmp_path / "a.model"
  path.write_bytes(b"no model at all")
  with pytest.raises(UserError, match=r"vocabulary\.file: .*a\.model is not a SentencePiece model"):
    build_vocabularies(fields(file=str(path)), [PAIRS])
  with pytest.raises(UserError, match=r"there is no file .*b\.model"):
    load_vocabulary(tmp_path / "b.model")


@pytest.mark.parametrize("kinds", [("bpe", ""), ("bpe", "words"), ("characters", "subwords")])
@pytest.mark.parametrize("shared", [True, False])
def test_vocabularies_come_back_from_a_run_directory(tmp_path, kinds, shared):
  kind, target_kind = kinds if not shared else (kinds[0], "")
  built = build_vocabularies(fields(kind=kind, target_kind=target_kind, shared=shared), [PAIRS])
  save_vocabularies(built, tmp_path)
  loaded = load_vocabularies(tmp_path)
  assert loaded.shared == built.shared == shared
  text = "The lamp number 3 \u2028 is"
  for ours, theirs in zip(built, loaded, strict=True):
    assert ours.fingerprint == theirs.fingerprint
    assert ours.encode([text]) == theirs.encode([text])
    assert ours.size == theirs.size
  names = {path.name.partition(".")[2] for path in tmp_path.iterdir()}
  assert names <= {"model", "txt", "source.model", "target.model", "source.txt", "target.txt"}


def test_an_existing_model_is_used_from_the_data_folder(tmp_path):
  build_vocabularies(fields(), [PAIRS]).source.save(tmp_path / "mine.model")
  again = build_vocabularies(fields(file="mine.model", size=7), [[]], folder=str(tmp_path))
  assert again.shared
  assert again.source.size == 340


def test_no_vocabulary_in_a_directory(tmp_path):
  with pytest.raises(UserError, match="no vocabulary"):
    load_vocabularies(tmp_path)


def test_words_keep_everything_but_runs_of_spaces():
  corpus = [Pair("b a\u00a0x a\u00a0x", "tab\there <unk> \u2028")]
  words = build_vocabularies(fields(kind="words"), [corpus]).source
  assert words.pieces(range(words.size)) == [
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "a\u00a0x",
    *sorted(["b", "tab\there", "<unk>", "\u2028"]),
  ]
  (ids,) = words.encode(["a\u00a0x  new <unk> \u2028"])
  assert ids[1] == UNK
  assert words.decode([ids]) == ["a\u00a0x <unk> \u2028"]


def test_subwords_are_joined():
  corpus = [Pair("ein@@ gross@@ er Hund", "a@@ b @@ c")]
  subwords = build_vocabularies(fields(kind="subwords"), [corpus]).source
  rows = subwords.encode(["ein@@ gross@@ er Hund", "a@@ b", "b a@@"])
  assert subwords.decode(rows) == ["eingrosser Hund", "ab", "b a"]


def test_characters_of_any_kind_survive_their_file(tmp_path):
  texts = random_texts(200, seed=1)
  characters = build_vocabularies(fields(kind="characters", size=100_000), [[Pair(text, "") for text in texts]]).source
  characters.save(tmp_path / "vocabulary.txt")
  loaded = load_vocabulary(tmp_path / "vocabulary.txt")
  assert loaded.decode(loaded.encode(texts)) == texts


def test_lists_are_cut_to_the_most_frequent():
  corpus = [Pair("a a a b b c", "c c d")]
  words = build_vocabularies(fields(kind="words", size=6), [corpus]).source
  assert words.pieces([4, 5]) == ["a", "c"]
  assert words.size == 6


def test_a_plain_list_of_pieces_is_read(tmp_path):
  path = tmp_path / "pieces"
  path.write_text("x@@\ny\n")
  assert load_vocabulary(path, "subwords").encode(["x@@ y z"]) == [[4, 5, UNK]]
  path.write_text("x\nx\n")
  with pytest.raises(UserError, match="'x' stands twice"):
    load_vocabulary(path, "words")
  path.write_bytes(b"\xff")
  with pytest.raises(UserError, match="not UTF-8"):
    load_vocabulary(path, "words")


def test_a_shared_vocabulary_has_one_kind():
  with pytest.raises(UserError, match=r"vocabulary\.target_kind"):
    build_vocabularies(fields(kind="bpe", target_kind="words"), [PAIRS])
