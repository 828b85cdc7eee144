"""The four special ids, the interface of every vocabulary, and vocabularies that are lists of pieces."""

import abc
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.errors import UserError

Ids = Sequence[int] | np.ndarray  # the ids of one text
PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # how `Vocabulary.pieces` shows ids 0 to 3
LIST_KINDS = ("subwords", "words", "characters")


class Vocabulary(abc.ABC):
  """Text to ids and back. Ids 0 to 3 are PAD, BOS, EOS and UNK, whatever the file behind it calls them."""

  suffix: str  # of the file it is saved in

  @property
  @abc.abstractmethod
  def size(self) -> int:
    """Number of ids, the special ones included."""

  @abc.abstractmethod
  def encode(self, texts: list[str]) -> list[list[int]]:
    """The ids of each text, without BOS and EOS."""

  @abc.abstractmethod
  def decode(self, ids: Iterable[Ids]) -> list[str]:
    """The text of each row of ids; special ids are left out."""

  @abc.abstractmethod
  def pieces(self, ids: Ids) -> list[str]:
    """What each id stands for, to be shown (special ids as in `SPECIALS`)."""

  @abc.abstractmethod
  def to_bytes(self) -> bytes:
    """The content of the file that `save` writes."""

  @property
  def fingerprint(self) -> str:
    """SHA-256 of the saved bytes."""
    return hashlib.sha256(self.to_bytes()).hexdigest()

  def save(self, path: str | Path) -> None:
    """Writes the vocabulary to a file, which is there whole or not at all."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(self.to_bytes())
    partial.replace(path)


class PieceList(Vocabulary):
  """A vocabulary that is a list of pieces, for text which is already split.

  "words": words are parted by spaces. "subwords": the same, and a piece that ends in `@@` joins the next one when ids
  become text. "characters": every character is a piece. Only the space parts words: tabs, non-breaking and ideographic
  spaces are part of them. Several spaces in a row count as one for "words" and "subwords". What is not in the list
  becomes UNK.
  """

  suffix = ".txt"

  def __init__(self, kind: str, pieces: Iterable[str]):
    if kind not in LIST_KINDS:
      raise ValueError(f"{kind!r} is none of {LIST_KINDS}")
    self.kind = kind
    self._pieces = list(pieces)
    self._ids = {piece: number for number, piece in enumerate(self._pieces, start=len(SPECIALS))}
    if len(self._ids) != len(self._pieces):
      twice = next(piece for piece, count in Counter(self._pieces).items() if count > 1)
      raise UserError(f"the piece {twice!r} stands twice in the vocabulary's list; each piece may stand there once")

  @property
  def size(self) -> int:
    return len(SPECIALS) + len(self._pieces)

  def encode(self, texts: list[str]) -> list[list[int]]:
    find = self._ids.get
    return [[find(piece, UNK) for piece in split(text, self.kind)] for text in texts]

  def decode(self, ids: Iterable[Ids]) -> list[str]:
    return [self._join([self._pieces[i - len(SPECIALS)] for i in row if i >= len(SPECIALS)]) for row in ids]

  def _join(self, pieces: list[str]) -> str:
    if self.kind == "characters":
      return "".join(pieces)
    if self.kind == "words":
      return " ".join(pieces)
    return join_subwords(" ".join(pieces))

  def pieces(self, ids: Ids) -> list[str]:
    return [SPECIALS[i] if i < len(SPECIALS) else self._pieces[i - len(SPECIALS)] for i in ids]

  def to_bytes(self) -> bytes:
    lines = [json.dumps({"kind": self.kind}), *(json.dumps(piece, ensure_ascii=False) for piece in self._pieces)]
    return ("\n".join(lines) + "\n").encode()


def join_subwords(text: str) -> str:
  """Undoes the joins of text that is split into subwords: "ha@@ us ist kl@@ ein" → "haus ist klein"."""
  return text.replace("@@ ", "").removesuffix("@@")


def split(text: str, kind: str) -> list[str]:
  """The pieces of a text for one of `LIST_KINDS`."""
  if kind == "characters":
    return list(text)
  return [piece for piece in text.split(" ") if piece]


def count_pieces(texts: Iterable[str], kind: str, size: int) -> PieceList:
  """The most frequent pieces of the texts (of equally frequent ones the first by code points): at most `size` ids."""
  counts: Counter[str] = Counter(itertools.chain.from_iterable(split(text, kind) for text in texts))
  by_frequency = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  return PieceList(kind, [piece for piece, _ in by_frequency[: max(0, size - len(SPECIALS))]])


def read_piece_list(path: str | Path, kind: str, field: str) -> PieceList:
  """Reads a saved `PieceList`, or a plain file with a piece on each line; only a line feed ends a line.

  Args:
    kind: which kind the list is of; empty: the one written in the file's first line.
    field: what to name in a `UserError`.
  """
  try:
    lines = Path(path).read_bytes().decode().removesuffix("\n").split("\n")
  except UnicodeDecodeError:
    raise UserError(f"{field}: {path} is not UTF-8 text, so it is no list of pieces") from None
  if not lines[0].startswith('{"kind": '):
    if not kind:
      raise UserError(f"{field}: {path} does not say of which kind its pieces are, so vocabulary.kind must")
    return PieceList(kind, [line for line in lines if line])
  try:
    saved, pieces = json.loads(lines[0])["kind"], [json.loads(line) for line in lines[1:]]
  except (ValueError, TypeError, KeyError):
    raise UserError(f"{field}: {path} is damaged: after its first line, every line must be a JSON string") from None
  if saved not in LIST_KINDS or (kind and saved != kind):
    raise UserError(f"{field}: {path} holds {saved!r} pieces, but vocabulary.kind is {kind!r}")
  return PieceList(saved, pieces)
