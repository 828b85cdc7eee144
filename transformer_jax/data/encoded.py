"""Corpora as ids on disk: encoded once, then memory-mapped.

A store is a folder `<cache>/encoded/<key>`; the key is the SHA-256 of everything its content depends on, so a changed
corpus, vocabulary or filter gets a store of its own. It is written under another name and renamed when complete: two
processes that encode the same corpus do not disturb each other, and an interrupted one leaves nothing that would be
taken for a store.
"""

import dataclasses
import hashlib
import io
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Int32, Integer

from transformer_jax.data.vocabulary import EOS, Vocabularies
from transformer_jax.errors import UserError

FORMAT = 1  # a change of the files' form or of the filters' meaning needs a new number
REASONS = ("empty", "long", "ratio")  # why a pair is left out; the first that holds is counted
_CHUNK = 20_000  # pairs encoded at a time


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Rows of different lengths behind each other: row i is `ids[offsets[i]:offsets[i + 1]]`."""

  ids: Integer[np.ndarray, " total"]
  offsets: Integer[np.ndarray, " rows_plus_one"]  # int64

  def __len__(self) -> int:
    return len(self.offsets) - 1

  def __getitem__(self, row: int) -> Int32[np.ndarray, " length"]:
    row = range(len(self))[row]
    return np.asarray(self.ids[self.offsets[row] : self.offsets[row + 1]], dtype=np.int32)


@dataclasses.dataclass(frozen=True)
class Encoded:
  """The pairs of one or several corpora, one after the other, as ids. Every source and target ends in EOS.

  Attributes:
    sources, targets: the ids, EOS included.
    source_lengths, target_lengths: their numbers, EOS included, int32 [pairs].
    removed: how many pairs were left out, by reason ("empty", "long", "ratio").
    corpus_offsets: corpus c holds the pairs from corpus_offsets[c] to corpus_offsets[c + 1].
    weights: how often each corpus is passed over in an epoch.
  """

  sources: Ragged
  targets: Ragged
  source_lengths: Int32[np.ndarray, " pairs"]
  target_lengths: Int32[np.ndarray, " pairs"]
  removed: dict[str, int]
  corpus_offsets: tuple[int, ...]
  weights: tuple[float, ...]

  def __len__(self) -> int:
    return len(self.source_lengths)


def encode_corpora(
  corpora: Sequence[Iterable],
  vocabularies: Vocabularies,
  max_length: int,
  max_ratio: float = 0.0,
  cache: str | Path | None = None,
  weights: Sequence[float] = (),
  cut_long: bool = False,
  progress: Callable[[int], None] | None = None,
) -> Encoded:
  """Encodes corpora, or opens what an earlier call left in the cache.

  Left out, and counted: pairs with an empty side (nothing but white space, or no piece at all), pairs with a side of
  over `max_length` pieces (EOS included), and pairs whose longer side has over `max_ratio` times the pieces of the
  shorter.

  Args:
    corpora: each has `name` and `fingerprint` and yields pairs (source, target).
    max_ratio: 0: pairs of any ratio stay.
    cache: where stores are kept; None: in a file that vanishes with the process.
    weights: one for each corpus; (): 1.0 each.
    cut_long: for evaluation, where no sentence may be missing: long sides are cut to `max_length` pieces (EOS is kept).
    progress: called now and then with the number of pairs read.

  Raises:
    UserError: where a corpus has no pair left, or the weights do not fit the corpora.
  """
  weights = tuple(float(weight) for weight in weights) or (1.0,) * len(corpora)
  if len(weights) != len(corpora):
    raise UserError(f"data.weights has {len(weights)} numbers for {len(corpora)} corpora; give one for each")
  filters = Filters(max_length, 0.0 if cut_long else max_ratio, cut_long)
  if cache is None:
    # The files are unlinked at once; the memory maps keep their content.
    with tempfile.TemporaryDirectory() as folder:
      write_store(Path(folder), corpora, vocabularies, filters, progress)
      return _checked(open_store(Path(folder), weights), corpora)
  stores = Path(cache).expanduser() / "encoded"
  store = stores / _key(corpora, vocabularies, filters)
  if not (store / "meta.json").exists():
    stores.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{store.name}.partial.", dir=stores))
    try:
      write_store(partial, corpora, vocabularies, filters, progress)
      os.chmod(partial, 0o755)  # mkdtemp's is 0o700
      partial.rename(store)
    except OSError:
      # The other process that encoded the same corpus was faster. Anything else is a real error.
      if not (store / "meta.json").exists():
        raise
    finally:
      shutil.rmtree(partial, ignore_errors=True)
  return _checked(open_store(store, weights), corpora)


@dataclasses.dataclass(frozen=True)
class Filters:
  """What is left out, see `encode_corpora`."""

  max_length: int
  max_ratio: float
  cut_long: bool

  def reason(self, source: str, target: str, source_ids: list[int], target_ids: list[int]) -> str | None:
    """Why the pair is left out (ids without EOS), or None."""
    shorter, longer = sorted((len(source_ids), len(target_ids)))
    if not shorter or not source.strip() or not target.strip():
      return "empty"
    if longer + 1 > self.max_length and not self.cut_long:
      return "long"
    if self.max_ratio and longer > self.max_ratio * shorter:
      return "ratio"
    return None


def _key(corpora: Sequence, vocabularies: Vocabularies, filters: Filters) -> str:
  parts = {
    "format": FORMAT,
    "corpora": [corpus.fingerprint for corpus in corpora],
    "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
    "filters": dataclasses.astuple(filters),
  }
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _checked(encoded: Encoded, corpora: Sequence) -> Encoded:
  """Raises a `UserError` where a corpus has no pair left."""
  for corpus, (start, end) in zip(corpora, itertools.pairwise(encoded.corpus_offsets), strict=True):
    if start == end:
      counts = ", ".join(f"{count} {reason}" for reason, count in encoded.removed.items() if count)
      raise UserError(f"the corpus {corpus.name} has no pair that can be used (left out: {counts or 'it is empty'})")
  return encoded


def write_store(
  folder: Path,
  corpora: Sequence,
  vocabularies: Vocabularies,
  filters: Filters,
  progress: Callable[[int], None] | None = None,
) -> None:
  """Encodes the corpora into files in an existing folder; `meta.json` is written last."""
  removed = dict.fromkeys(REASONS, 0)
  corpus_offsets, pairs = [0], 0
  dtypes = [np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.int32) for vocabulary in vocabularies]
  with open(folder / "sources.bin", "wb") as sources, open(folder / "targets.bin", "wb") as targets:
    writers = (_Writer(sources, dtypes[0], filters.max_length), _Writer(targets, dtypes[1], filters.max_length))
    for corpus in corpora:
      for chunk in _chunks(corpus, _CHUNK):
        _encode_chunk(chunk, vocabularies, filters, writers, removed)
        pairs += len(chunk)
        if progress is not None:
          progress(pairs)
      corpus_offsets.append(writers[0].rows)
  for name, writer in zip(("source", "target"), writers, strict=True):
    np.save(folder / f"{name}_lengths.npy", writer.lengths())
  meta = {
    "format": FORMAT,
    "corpora": [corpus.name for corpus in corpora],
    "corpus_offsets": corpus_offsets,
    "removed": removed,
    "dtypes": [dtype.name for dtype in dtypes],
    **dataclasses.asdict(filters),
  }
  (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _chunks(corpus: Iterable, size: int) -> Iterator[list]:
  pairs = iter(corpus)
  while chunk := list(itertools.islice(pairs, size)):
    yield chunk


def _encode_chunk(chunk: list, vocabularies: Vocabularies, filters: Filters, writers: tuple, removed: dict) -> None:
  texts = [list(side) for side in zip(*chunk, strict=True)]
  rows = [vocabulary.encode(side) for vocabulary, side in zip(vocabularies, texts, strict=True)]
  kept: tuple[list, list] = ([], [])
  for source, target, source_ids, target_ids in zip(*texts, *rows, strict=True):
    if reason := filters.reason(source, target, source_ids, target_ids):
      removed[reason] += 1
    else:
      kept[0].append(source_ids)
      kept[1].append(target_ids)
  for writer, side in zip(writers, kept, strict=True):
    writer.write(side)


class _Writer:
  """Appends rows of ids, with EOS, to a file and keeps their lengths."""

  def __init__(self, file: io.BufferedIOBase, dtype: np.dtype, max_length: int):
    self._file, self._dtype, self._max_length = file, dtype, max_length
    self._lengths: list[np.ndarray] = []
    self.rows = 0

  def write(self, rows: list[list[int]]) -> None:
    cut = [[*row[: self._max_length - 1], EOS] for row in rows]
    lengths = np.fromiter(map(len, cut), np.int32, count=len(cut))
    flat = np.fromiter(itertools.chain.from_iterable(cut), self._dtype, count=int(lengths.sum()))
    self._file.write(flat.tobytes())
    self._lengths.append(lengths)
    self.rows += len(cut)

  def lengths(self) -> np.ndarray:
    return np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int32)


def open_store(folder: Path, weights: tuple[float, ...]) -> Encoded:
  """Memory-maps a store that `write_store` completed."""
  meta = json.loads((folder / "meta.json").read_text())
  sides, lengths = [], []
  for name, dtype in zip(("source", "target"), meta["dtypes"], strict=True):
    counts = np.load(folder / f"{name}_lengths.npy")
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    path = folder / f"{name}s.bin"
    if path.stat().st_size != offsets[-1] * np.dtype(dtype).itemsize:
      raise UserError(f"{folder} is damaged: delete it, and the corpus is encoded again")
    ids = np.memmap(path, dtype, mode="r") if offsets[-1] else np.zeros(0, dtype)  # an empty file cannot be mapped
    sides.append(Ragged(ids, offsets))
    lengths.append(counts)
  if any(meta["removed"].values()):
    logging.info("%s: left out %s", ", ".join(meta["corpora"]), meta["removed"])
  corpus_offsets = tuple(meta["corpus_offsets"])
  return Encoded(sides[0], sides[1], lengths[0], lengths[1], meta["removed"], corpus_offsets, weights)
