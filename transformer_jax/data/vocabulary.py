"""Vocabularies: made from the training side of the corpus or read from a file, and kept in the run directory.

Text is not normalised: what a vocabulary of kind "bpe" or "unigram" encodes, it decodes to the same characters. (An
existing SentencePiece model brings the normalisation it was trained with.)
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.pieces import (
  BOS,
  EOS,
  LIST_KINDS,
  PAD,
  SPECIALS,
  UNK,
  PieceList,
  Vocabulary,
  count_pieces,
  read_piece_list,
)
from transformer_jax.data.sentencepiece_model import KINDS, SentencePieceVocabulary, train_sentencepiece
from transformer_jax.errors import UserError

__all__ = [
  "BOS",
  "EOS",
  "PAD",
  "SPECIALS",
  "UNK",
  "PieceList",
  "SentencePieceVocabulary",
  "Vocabularies",
  "Vocabulary",
  "build_vocabularies",
  "load_vocabularies",
  "load_vocabulary",
  "save_vocabularies",
]


class Vocabularies(NamedTuple):
  """The vocabularies of the two sides; one and the same object where they share one."""

  source: Vocabulary
  target: Vocabulary

  @property
  def shared(self) -> bool:
    return self.source is self.target


def save_vocabularies(vocabularies: Vocabularies, directory: str | Path) -> None:
  """Writes `vocabulary.model`, or `vocabulary.source.model` and `vocabulary.target.model` (piece lists: `.txt`)."""
  names = ("vocabulary",) if vocabularies.shared else ("vocabulary.source", "vocabulary.target")
  for name, vocabulary in zip(names, vocabularies, strict=False):
    vocabulary.save(Path(directory) / (name + vocabulary.suffix))


def build_vocabularies(fields: ConfigDict, corpora: Sequence, folder: str = "", seed: int = 0) -> Vocabularies:
  """Trains, counts or reads the vocabularies that `config.vocabulary` describes.

  Args:
    fields: config.vocabulary.
    corpora: the training corpora: each has a length and can be gone through again and again, in pairs (source, target).
    folder: where relative names of vocabulary files start; empty: the current directory.
    seed: of the draw, where the corpora have more than `training_pairs` pairs.

  Raises:
    UserError: naming the field that does not fit the corpus or the file.
  """
  target_kind, target_size = fields.target_kind or fields.kind, fields.target_size or fields.size
  for field, kind in (("vocabulary.kind", fields.kind), ("vocabulary.target_kind", target_kind)):
    if kind not in KINDS + LIST_KINDS:
      raise UserError(f"{field} = {kind!r} must be one of {', '.join(KINDS + LIST_KINDS)}")
  if fields.shared and target_kind != fields.kind:
    raise UserError(
      f"vocabulary.target_kind = {target_kind!r} differs from vocabulary.kind = {fields.kind!r}, "
      "which needs vocabulary.shared = False"
    )

  def beside(file: str) -> Path:
    return Path(folder).expanduser() / Path(file).expanduser()

  def build(kind: str, size: int, size_field: str, sides: tuple[int, ...]) -> Vocabulary:
    if kind in LIST_KINDS:
      return count_pieces(_texts(corpora, sides), kind, size)
    texts = _texts(corpora, sides, fields.training_pairs, seed)
    return train_sentencepiece(texts, kind, size, fields.character_coverage, size_field)

  def source(sides: tuple[int, ...]) -> Vocabulary:
    if fields.file:
      return load_vocabulary(beside(fields.file), fields.kind, "vocabulary.file")
    return build(fields.kind, fields.size, "vocabulary.size", sides)

  if fields.shared:
    both = source((0, 1))
    return Vocabularies(both, both)
  if fields.target_file:
    target = load_vocabulary(beside(fields.target_file), target_kind, "vocabulary.target_file")
    return Vocabularies(source((0,)), target)
  target_field = "vocabulary.target_size" if fields.target_size else "vocabulary.size"
  return Vocabularies(source((0,)), build(target_kind, target_size, target_field, (1,)))


def _texts(corpora: Sequence, sides: tuple[int, ...], at_most: int | None = None, seed: int = 0) -> Iterator[str]:
  """The chosen sides (0: source, 1: target) of all pairs, or of `at_most` pairs spread evenly over them."""
  total = sum(len(corpus) for corpus in corpora)
  wanted = total if at_most is None else min(at_most, total)
  # One pair out of each of `wanted` stretches of the same length, up to rounding.
  bounds = np.arange(wanted + 1) * total // max(wanted, 1)
  draws = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(wanted) % np.diff(bounds).astype(np.uint64)
  chosen = iter((bounds[:-1] + draws.astype(np.int64)).tolist())
  following = next(chosen, None)
  for number, pair in enumerate(itertools.chain.from_iterable(corpora)):
    if number == following:
      following = next(chosen, None)
      for side in sides:
        yield pair[side]


def load_vocabulary(path: str | Path, kind: str = "", field: str = "vocabulary.file") -> Vocabulary:
  """Reads a vocabulary from a file.

  Args:
    kind: as config.vocabulary.kind; empty: a file named `*.txt` is a piece list, any other a SentencePiece model.
    field: what to name in a `UserError`.
  """
  path = Path(path)
  if not path.is_file():
    raise UserError(f"{field}: there is no file {path}")
  if kind in LIST_KINDS or (not kind and path.suffix == PieceList.suffix):
    return read_piece_list(path, kind, field)
  return SentencePieceVocabulary(path.read_bytes(), f"{field}: {path}")


def load_vocabularies(directory: str | Path) -> Vocabularies:
  """Reads what `save_vocabularies` wrote into a run directory."""
  directory = Path(directory)
  if shared := _saved(directory, ["vocabulary"]):
    both = load_vocabulary(shared[0], field="vocabulary")
    return Vocabularies(both, both)
  sides = _saved(directory, ["vocabulary.source", "vocabulary.target"])
  if len(sides) != 2:
    raise UserError(f"there is no vocabulary in {directory}: it should hold vocabulary.model")
  return Vocabularies(*(load_vocabulary(path, field="vocabulary") for path in sides))


def _saved(directory: Path, names: Iterable[str]) -> list[Path]:
  """The files with these names, whichever kind of vocabulary they hold."""
  suffixes = (SentencePieceVocabulary.suffix, PieceList.suffix)
  paths = [directory / (name + suffix) for name in names for suffix in suffixes]
  return [path for path in paths if path.is_file()]
