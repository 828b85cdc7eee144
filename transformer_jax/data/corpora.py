"""Corpora by name: one string names text pairs, wherever they are (grammar: `transformer_jax.config.data_fields`)."""

import abc
import difflib
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from transformer_jax.data.order import PARTS, permutation
from transformer_jax.data.text_files import count_lines, read_lines
from transformer_jax.errors import UserError

FILE_KINDS = ("text", "tsv", "labelled", "lines")
KINDS = ("tfds:", "text:", "tsv:", "labelled:", "lines:", "stream:", "reverse", "copy")
ROLES = ("train", "validation", "test")


class Pair(NamedTuple):
  """A sentence and its translation. Either can be empty."""

  source: str
  target: str


class Corpus(abc.ABC):
  """Pairs that can be gone through again and again, always in the same order.

  Attributes:
    name: the string it was opened by.
  """

  name: str

  @property
  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Another string where the pairs may be others."""

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of pairs."""

  @abc.abstractmethod
  def __iter__(self) -> Iterator[Pair]: ...


def open_corpus(spec: str, role: str, data: ConfigDict, seed: int = 0) -> Corpus:
  """Opens a corpus; a TFDS set is downloaded and prepared here, where it is not yet.

  Args:
    spec: as in `config.data`.
    role: "train", "validation" or "test": the split of a TFDS set, and which of the synthetic strings.
    data: config.data, for its folder, languages and cache.
    seed: of the synthetic strings.

  Raises:
    UserError: where there is no such corpus, or it is not what the spec says.
  """
  if role not in ROLES:
    raise ValueError(f"role {role!r} is none of {ROLES}")
  kind, colon, rest = spec.partition(":")
  whole, part = split_part(spec)
  if whole != spec and kind in FILE_KINDS:
    return PartCorpus(spec, open_corpus(whole, role, data, seed), part)
  if kind == "text" and colon:
    paths = rest.split(",")
    if len(paths) != 2 or not all(paths):
      raise UserError(f"the corpus {spec!r} must name two files: text:SOURCE,TARGET")
    return TextCorpus(spec, *(data_file(path, data.folder) for path in paths))
  if kind == "tsv" and colon:
    return TsvCorpus(spec, data_file(rest, data.folder))
  if kind == "labelled" and colon:
    return LabelledCorpus(spec, data_file(rest, data.folder))
  if kind == "lines" and colon:
    return LinesCorpus(spec, data_file(rest, data.folder))
  if kind == "stream":
    raise UserError(f'{spec!r} is running text, which only task "lm" reads')
  if kind == "tfds" and colon:
    from transformer_jax.data.tfds_corpus import open_tfds  # TFDS takes a second to import

    return open_tfds(spec, role, data)
  if kind in ("reverse", "copy"):
    from transformer_jax.data.synthetic import open_synthetic

    return open_synthetic(spec, role, seed)
  near = difflib.get_close_matches(kind, [name.rstrip(":") for name in KINDS], n=1)
  hint = f"; did you mean {near[0]!r}?" if near else ""
  raise UserError(f"there is no kind of corpus like {spec!r}: it must begin with one of {', '.join(KINDS)}{hint}")


class Part(NamedTuple):
  """From which share of a corpus to which other; `shuffled`: of its pairs in an order that only their number decides."""

  first: float = 0.0
  last: float = 1.0
  shuffled: bool = False


def split_part(spec: str) -> tuple[str, Part]:
  """Splits "tsv:train.tsv@0:0.9" or "tsv:train.tsv@shuffled:0:0.9" into the corpus and the part of it.

  Raises:
    UserError: shares that do not rise from 0 to 1.
  """
  match = re.fullmatch(r"(?P<whole>.+?)@(?P<shuffled>shuffled:)?(?P<first>[\d.]+):(?P<last>[\d.]+)", spec)
  if match is None:
    return spec, Part()
  try:
    first, last = float(match["first"]), float(match["last"])
  except ValueError:  # 0.1.2
    first = last = 0.0
  if not 0 <= first < last <= 1:
    raise UserError(f"{spec!r}: the shares of a part must rise from 0 to 1")
  return match["whole"], Part(first, last, bool(match["shuffled"]))


def named_corpora(specs: Sequence[str]) -> list[tuple[str, str]]:
  """Splits "newstest2014=tfds:…" into name and corpus; without a name it is "test".

  Raises:
    UserError: where two test sets share a name, or a name cannot be that of a file.
  """
  named: dict[str, str] = {}
  for entry in specs:
    name, equals, spec = entry.partition("=")
    # An "=" may also belong to the corpus: reverse:symbols=20, or a file's name.
    if not equals or ":" in name or name in ("reverse", "copy"):
      name, spec = "test", entry
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
      raise UserError(f"data.test: the name {name!r} in {entry!r} must be made of letters, digits, '-', '_' and '.'")
    if name in named:
      raise UserError(
        f'data.test: two test sets are called {name!r}; give each a name of its own: "newstest2014={spec}"'
      )
    named[name] = spec
  return list(named.items())


def data_file(name: str, folder: str) -> Path:
  """The file of that name, below `data.folder` unless it is absolute; raises UserError where there is none."""
  path = Path(folder).expanduser() / Path(name).expanduser()
  if not path.is_file():
    where = f" (data.folder = {folder!r})" if folder else ""
    raise UserError(f"there is no file {path}{where}")
  return path


def _file_fingerprint(kind: str, *paths: Path) -> str:
  """Of the files' places, sizes and times of change."""
  stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
  return hashlib.sha256(json.dumps([kind, stats]).encode()).hexdigest()


class PartCorpus(Corpus):
  """Some pairs of another corpus, in its order. Parts that meet have no pair in common.

  Args:
    part: neighbours in the corpus or, `shuffled`, neighbours after a shuffle: for a file that is sorted.
  """

  def __init__(self, name: str, whole: Corpus, part: Part):
    self.name, self._whole, self._part = name, whole, part

  def _bounds(self) -> tuple[int, int]:
    length = len(self._whole)
    return int(self._part.first * length), int(self._part.last * length)

  @property
  def fingerprint(self) -> str:
    return f"{self._whole.fingerprint} {tuple(self._part)}"

  def __len__(self) -> int:
    first, last = self._bounds()
    return last - first

  def __iter__(self) -> Iterator[Pair]:
    bounds = self._bounds()
    if not self._part.shuffled:
      return itertools.islice(self._whole, *bounds)
    places = permutation(len(self._whole), PARTS)  # of each pair in the shuffled corpus
    return itertools.compress(self._whole, (places >= bounds[0]) & (places < bounds[1]))


class TextCorpus(Corpus):
  """Two line-aligned files."""

  def __init__(self, name: str, source: Path, target: Path):
    self.name, self._source, self._target = name, source, target

  @property
  def fingerprint(self) -> str:
    return _file_fingerprint("text", self._source, self._target)

  def __len__(self) -> int:
    counts = count_lines(self._source), count_lines(self._target)
    if counts[0] != counts[1]:
      raise UserError(
        f"{self._source} has {counts[0]} lines, but {self._target} has {counts[1]}: "
        "line-aligned files have the same number"
      )
    return counts[0]

  def __iter__(self) -> Iterator[Pair]:
    sources, targets = read_lines(self._source), read_lines(self._target)
    for source in sources:
      target = next(targets, None)
      if target is None:
        break
      yield Pair(source, target)
    else:
      if next(targets, None) is None:
        return
    len(self)  # says which file has how many lines


class TsvCorpus(Corpus):
  """One pair a line, source TAB target."""

  def __init__(self, name: str, path: Path):
    self.name, self._path = name, path

  @property
  def fingerprint(self) -> str:
    return _file_fingerprint("tsv", self._path)

  def __len__(self) -> int:
    return count_lines(self._path)

  def __iter__(self) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(self._path), start=1):
      columns = line.split("\t")
      if len(columns) != 2:
        raise UserError(
          f"{self._path}, line {number}: {len(columns)} {'column' if len(columns) == 1 else 'columns'}, "
          "but there must be two, source TAB target"
        )
      yield Pair(*columns)


class LabelledCorpus(Corpus):
  """One text a line behind its label and a tab, or a space: the label is the target, one word."""

  def __init__(self, name: str, path: Path):
    self.name, self._path = name, path

  @property
  def fingerprint(self) -> str:
    return _file_fingerprint("labelled", self._path)

  def __len__(self) -> int:
    return count_lines(self._path)

  def __iter__(self) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(self._path), start=1):
      label, separator, text = line.partition("\t" if "\t" in line else " ")
      if not separator or not label or " " in label:
        raise UserError(f"{self._path}, line {number}: there must be a label of one word, a tab or a space, and a text")
      yield Pair(text, label)


class LinesCorpus(Corpus):
  """One text a line, source and target alike."""

  def __init__(self, name: str, path: Path):
    self.name, self._path = name, path

  @property
  def fingerprint(self) -> str:
    return _file_fingerprint("lines", self._path)

  def __len__(self) -> int:
    return count_lines(self._path)

  def __iter__(self) -> Iterator[Pair]:
    return (Pair(line, line) for line in read_lines(self._path))
