"""Small archives in the form of WMT 2014's, put where TFDS's `wmt14_translate` finds them instead of downloading."""

import io
import json
import random
import tarfile
from pathlib import Path

from transformer_jax.data.corpora import Pair

WORDS = {
  "house": "Haus", "tree": "Baum", "river": "Fluss", "old": "alt", "green": "grün", "large": "groß", "sees": "sieht",
  "finds": "findet", "the": "das", "a": "ein", "and": "und", "never": "nie", "always": "immer", "today": "heute",
}  # fmt: skip
_MEMBERS = {
  "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en.{}",
  "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz": "commoncrawl.de-en.{}",
  "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz": "training/news-commentary-v9.de-en.{}",
}
_DEV = "http://data.statmt.org/wmt19/translation-task/dev.tgz"


def made_up_pairs(number: int, seed: int) -> list[Pair]:
  """English and German word for word, 3 to 12 words, with a number that makes every pair different."""
  generator = random.Random(seed)
  pairs = []
  for count in range(number):
    words = generator.choices(list(WORDS), k=generator.randint(3, 12))
    end = f" {seed}.{count}"
    pairs.append(Pair(" ".join(words) + end, " ".join(WORDS[word] for word in words) + end))
  return pairs


def write_wmt14_archives(data_dir: Path, train: int = 300, held_out: int = 20) -> dict[str, list[Pair]]:
  """Fills the download folder of a TFDS data folder; returns the (English, German) pairs of each split.

  TFDS takes a file from there as downloaded if its name holds the checksum that TFDS knows for the address.
  """
  splits = {
    "train": made_up_pairs(train, seed=1),
    "validation": made_up_pairs(held_out, seed=2),
    "test": made_up_pairs(held_out, seed=3),
  }
  third = -(-train // 3)
  for number, (address, member) in enumerate(_MEMBERS.items()):
    part = splits["train"][number * third : (number + 1) * third]
    if number == 0:
      part = [*part, Pair("no translation", "")]  # the real files have empty lines; TFDS leaves them out
    _write(data_dir, address, {member.format(code): _text(part, side) for side, code in enumerate(("en", "de"))})
  members = {f"dev/newstest2013.{code}": _text(splits["validation"], side) for side, code in enumerate(("en", "de"))}
  members["dev/newstest2014-deen-ref.en.sgm"] = _sgm(splits["test"], 0)
  members["dev/newstest2014-deen-src.de.sgm"] = _sgm(splits["test"], 1)
  _write(data_dir, _DEV, members)
  return splits


def _text(pairs: list[Pair], side: int) -> bytes:
  return "".join(f"{pair[side]}\n" for pair in pairs).encode()


def _sgm(pairs: list[Pair], side: int) -> bytes:
  segments = (f'<seg id="{number}">{pair[side]}</seg>\n' for number, pair in enumerate(pairs, start=1))
  return ('<refset setid="newstest2014">\n<doc docid="made-up">\n' + "".join(segments) + "</doc>\n</refset>\n").encode()


def _write(data_dir: Path, address: str, members: dict[str, bytes]) -> None:
  from tensorflow_datasets.core.download import checksums, resource

  known = checksums.get_all_url_infos()[address]
  path = data_dir / "downloads" / resource.get_dl_fname(address, known.checksum)
  path.parent.mkdir(parents=True, exist_ok=True)
  with tarfile.open(path, "w:gz") as archive:
    for name, content in members.items():
      entry = tarfile.TarInfo(name)
      entry.size = len(content)
      archive.addfile(entry, io.BytesIO(content))
  info = {"urls": [address], "original_fname": address.rpartition("/")[2], "dataset_names": ["wmt14_translate"]}
  path.with_name(path.name + ".INFO").write_text(json.dumps(info))
