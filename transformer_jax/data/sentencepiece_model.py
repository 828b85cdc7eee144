"""SentencePiece models as vocabularies: any Unicode text survives encoding and decoding.

The models trained here work on raw text: no normalisation, every space kept, and characters without a piece of their
own spelled in UTF-8 bytes (Kudo and Richardson, 2018, "SentencePiece"; BPE: Sennrich et al., 2016; unigram: Kudo,
2018).
"""

import io
import itertools
import re
from collections.abc import Iterable, Iterator

import sentencepiece
from absl import logging

from transformer_jax.data.pieces import BOS, EOS, PAD, SPECIALS, UNK, Ids, Vocabulary
from transformer_jax.errors import UserError

SPACE = "\u2581"  # SentencePiece's own mark for a space
KINDS = ("bpe", "unigram")
# The work is dealt out to so many threads on every machine, as unigram training adds up their results: same bytes
# anywhere.
_TRAINING_THREADS = 16
# Characters that stand in for a literal U+2581 while a text is encoded: "noncharacters", then private-use ones.
_STAND_INS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model behind this package's ids: PAD, BOS, EOS, UNK, then the model's other pieces in order."""

  suffix = ".model"

  def __init__(self, model: bytes, name: str = "the SentencePiece model"):
    """Loads a serialized model; `name` is what to call it in an error or a warning."""
    self._model = model
    try:
      self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
      raise UserError(f"{name} is not a SentencePiece model") from None
    own = {self._processor.pad_id(): PAD, self._processor.bos_id(): BOS, self._processor.eos_id(): EOS}
    own[self._processor.unk_id()] = UNK
    others = [number for number in range(self._processor.get_piece_size()) if number not in own]
    own.update({number: len(SPECIALS) + place for place, number in enumerate(others)})
    self._renumber = None if all(theirs == ours for theirs, ours in own.items() if theirs >= 0) else own
    self._names = [*SPECIALS, *(self._processor.id_to_piece(number) for number in others)]
    self._bytes = [b""] * len(SPECIALS) + [self._spelling(number) for number in others]
    self._of_byte = {
      self._bytes[i]: i for i, number in enumerate(others, start=len(SPECIALS)) if self._processor.is_byte(number)
    }
    if len(self._of_byte) < 256:
      logging.warning("%s has no byte fallback: characters it does not know become unknown pieces", name)
    probe = "".join(self._processor.encode("a", out_type=str))
    self._space_before, self._space_after = probe.startswith(SPACE), probe.endswith(SPACE)

  def _spelling(self, number: int) -> bytes:
    """The text that a piece (by the model's own number) stands for, in UTF-8."""
    if self._processor.is_control(number) or self._processor.is_unknown(number):
      return b""
    piece = self._processor.id_to_piece(number)
    return bytes([int(piece[3:5], 16)]) if self._processor.is_byte(number) else piece.replace(SPACE, " ").encode()

  @property
  def size(self) -> int:
    return len(self._names)

  def encode(self, texts: list[str]) -> list[list[int]]:
    marked = [number for number, text in enumerate(texts) if SPACE in text]
    stand_ins = {number: self._stand_in(texts[number]) for number in marked}
    if marked:
      texts = list(texts)
      for number, character in stand_ins.items():
        texts[number] = texts[number].replace(SPACE, character)
    rows = self._processor.encode(texts, num_threads=-1)
    if self._renumber is not None:
      renumber = self._renumber
      rows = [[renumber[i] for i in row] for row in rows]
    for number, character in stand_ins.items():
      rows[number] = _replace(rows[number], self._as_bytes(character), self._as_bytes(SPACE))
    return rows

  def _stand_in(self, text: str) -> str:
    """A character that is not in the text and is spelled in bytes; U+2581 itself where the model cannot spell it."""
    if len(self._of_byte) < 256:
      return SPACE
    for character in map(chr, itertools.chain(*_STAND_INS)):
      if character not in text:
        row = self._processor.encode(character)
        row = [self._renumber[i] for i in row] if self._renumber is not None else row
        if _replace(row, self._as_bytes(character), []) != row:
          return character
    return SPACE

  def _as_bytes(self, character: str) -> list[int]:
    return [self._of_byte[bytes([byte])] for byte in character.encode()] if len(self._of_byte) == 256 else []

  def decode(self, ids: Iterable[Ids]) -> list[str]:
    return [self._decode_row(row) for row in ids]

  def _decode_row(self, ids: Ids) -> str:
    # Bytes that are no UTF-8 (a model can put any after each other) become U+FFFD.
    spellings = [self._bytes[i] for i in ids]
    text = b"".join(spellings).decode("utf-8", errors="replace")
    if self._space_before:
      return text.removeprefix(" ")
    return text.removesuffix(" ") if self._space_after else text

  def pieces(self, ids: Ids) -> list[str]:
    return [self._names[i] for i in ids]

  def to_bytes(self) -> bytes:
    return self._model


def _replace(row: list[int], old: list[int], new: list[int]) -> list[int]:
  """The row with every run `old` replaced by `new`; an empty `old` changes nothing."""
  if not old:
    return row
  result, place = [], 0
  while place < len(row):
    if row[place : place + len(old)] == old:
      result += new
      place += len(old)
    else:
      result.append(row[place])
      place += 1
  return result


def train_sentencepiece(
  texts: Iterable[str], kind: str, size: int, character_coverage: float, field: str = "vocabulary.size"
) -> SentencePieceVocabulary:
  """Trains a model of `size` pieces, the 256 bytes and the four special ones included.

  The same texts give the same bytes on every machine. A literal U+2581 counts as a space here (but not in `encode`).

  Raises:
    UserError: naming `field`, where the texts are too few for so many pieces, or `size` is too small for their
    characters.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_trainable(texts),
      model_writer=model,
      model_type=kind,
      vocab_size=size,
      character_coverage=character_coverage,
      byte_fallback=True,
      normalization_rule_name="identity",
      remove_extra_whitespaces=False,
      max_sentence_length=1 << 16,
      num_threads=_TRAINING_THREADS,
      pad_id=PAD,
      bos_id=BOS,
      eos_id=EOS,
      unk_id=UNK,
      minloglevel=2,
    )
  except RuntimeError as error:
    raise UserError(_reason(str(error), size, field)) from None
  return SentencePieceVocabulary(model.getvalue())


def _trainable(texts: Iterable[str]) -> Iterator[str]:
  """The texts without what SentencePiece's trainer does not take."""
  for text in texts:
    text = text.replace("\0", " ")
    if text and not text.isspace():
      yield text


def _reason(message: str, size: int, field: str) -> str:
  """SentencePiece's error in words that name the field."""
  if largest := re.search(r"too high \(\d+\).*<= (\d+)", message):
    return f"{field} = {size} is too large for this training text: {largest[1]} is the most it can fill"
  if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
    return (
      f"{field} = {size} is too small: the bytes, the special pieces and the characters of this training text "
      f"need {smallest[1]} (fewer with a lower vocabulary.character_coverage)"
    )
  if "!sentences_.empty()" in message or "empty" in message.lower():
    return f"{field}: the training text is empty, so no vocabulary can be made from it"
  return f"{field} = {size}: SentencePiece cannot train a vocabulary on this text ({' '.join(message.split())})"
