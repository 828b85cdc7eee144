"""The interface texts of Home Assistant in English and more than 60 other languages, as a TFDS builder.

`home_assistant/en-de` and its siblings hold the strings that Home Assistant 2026.2.3 (Apache-2.0) shows its users,
read from the wheel that PyPI serves. The wheel is fetched with pip, checked, opened as a zip archive and never
installed or run.

Pairs are the strings under the same key in `homeassistant/components/*/translations/en.json` and `<language>.json`,
stripped; a pair is left out if a side is empty, both are identical, a side holds a line break of any kind, or the
English one has over 40 words; the first translation of an English string is kept. Sorted by the hexadecimal SHA-256 of
the English string, the first 1,000 are the test split, the next 500 the validation split. The rest is the training
split, without the pairs of which a side also occurs in a held-out pair once placeholders, case and all but the letters
are taken off.
"""

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds

from transformer_jax.errors import UserError

RELEASE = "2026.2.3"
WHEEL = f"homeassistant-{RELEASE}-py3-none-any.whl"
SHA256 = "8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c"
TEST_PAIRS, VALIDATION_PAIRS = 1_000, 500
_MAX_WORDS = 40
_LANGUAGES = (  # noqa: SIM905 (as a literal it is a column of 65 lines)
  "af ar bg bn bs ca cs cy da de el en-GB eo es es-419 et eu fa fi fr fy ga gl gsw he hi hr hu hy id is it ja ka ko "
  "lb lt lv mk ml nb ne nl nn pl pt pt-BR ro ru sk sl sq sr sr-Latn sv ta te th tr uk ur vi zh-Hans zh-Hant"
).split()

StringPairs = list[tuple[str, str]]


class HomeAssistant(tfds.core.GeneratorBasedBuilder):
  """The builder; its configurations are `en-de`, `en-zh-Hans` and so on."""

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES = {"1.0.0": f"Home Assistant {RELEASE}."}  # noqa: RUF012 (a TFDS name)
  BUILDER_CONFIGS = [  # noqa: RUF012
    tfds.core.BuilderConfig(name=f"en-{language}", description=f"English and {language}") for language in _LANGUAGES
  ]

  @property
  def _language(self) -> str:
    return self.builder_config.name.removeprefix("en-")

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="Interface texts of Home Assistant, English and translated.",
      features=tfds.features.Translation(languages=("en", self._language)),
      supervised_keys=("en", self._language),
      homepage="https://www.home-assistant.io",
      license="Apache-2.0",
      disable_shuffling=True,  # the order by SHA-256 is part of the corpus's definition
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
    del dl_manager  # it fetches addresses; the wheel comes through pip, which knows its mirrors and proxies
    wheel = fetch_wheel(Path(self._data_dir_root) / "downloads")
    splits = split(extract_pairs(wheel, self._language))
    if not splits["train"]:
      raise UserError(
        f"{WHEEL} has too few pairs for {self.builder_config.name}: "
        f"none is left for training after {TEST_PAIRS} test and {VALIDATION_PAIRS} validation pairs"
      )
    return {name: self._generate_examples(pairs) for name, pairs in splits.items()}

  def _generate_examples(self, pairs: StringPairs) -> Iterator[tuple[int, dict[str, str]]]:
    for number, (english, translation) in enumerate(pairs):
      yield number, {"en": english, self._language: translation}


def fetch_wheel(folder: Path) -> Path:
  """The checked wheel in a folder, where pip puts it first if it is not there.

  Raises:
    UserError: saying what to do by hand, where pip is missing or fails or the file is another one.
  """
  wheel = folder / WHEEL
  if not wheel.exists():
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.14", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), f"homeassistant=={RELEASE}"]
    try:
      result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
      raise UserError(f"pip could not be started ({error.strerror}); {_by_hand(folder)}") from None
    if "No module named pip" in result.stderr:
      raise UserError(f"the Python at {sys.executable} has no pip; {_by_hand(folder)}")
    if result.returncode or not wheel.exists():
      last = result.stderr.strip().splitlines()[-1:] or ["no message"]
      raise UserError(f"pip could not download homeassistant=={RELEASE} ({last[0]}); {_by_hand(folder)}")
  with wheel.open("rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  if digest != SHA256:
    raise UserError(f"{wheel} is not the file it should be (SHA-256 {digest}, not {SHA256}); delete it and try again")
  return wheel


def _by_hand(folder: Path) -> str:
  return (
    "get the wheel with another pip ('pip download --no-deps --only-binary=:all: --python-version 3.14 "
    f"homeassistant=={RELEASE}') or from https://pypi.org/project/homeassistant/{RELEASE}/#files and put {WHEEL} "
    f"in {folder}"
  )


def extract_pairs(wheel: Path, language: str) -> StringPairs:
  """The wheel's pairs (English, translation), each English string once, in the order of the files and their keys."""
  pairs: dict[str, str] = {}
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    for name in sorted(names):
      translated = name.removesuffix("en.json") + f"{language}.json"
      if re.fullmatch(r"homeassistant/components/[^/]+/translations/en\.json", name) and translated in names:
        translations = dict(_leaves(json.loads(archive.read(translated))))
        for key, english in _leaves(json.loads(archive.read(name))):
          english, translation = english.strip(), translations.get(key, "").strip()
          if _usable(english, translation):
            pairs.setdefault(english, translation)
  return list(pairs.items())


def _leaves(tree: dict, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
  """The string leaves of nested dictionaries, with their keys from the root on."""
  for name, value in tree.items():
    if isinstance(value, dict):
      yield from _leaves(value, (*key, name))
    elif isinstance(value, str):
      yield (*key, name), value


def _usable(english: str, translation: str) -> bool:
  if not english or not translation or english == translation:
    return False
  one_line = len(english.splitlines()) == 1 and len(translation.splitlines()) == 1
  return one_line and len(english.split()) <= _MAX_WORDS


def split(pairs: StringPairs) -> dict[str, StringPairs]:
  """Deals the pairs out to "train", "validation" and "test"."""
  ordered = sorted(pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).hexdigest())
  test, validation = ordered[:TEST_PAIRS], ordered[TEST_PAIRS : TEST_PAIRS + VALIDATION_PAIRS]
  sources, targets = ({_letters(side) for side in sides} for sides in zip(*(test + validation), strict=True))
  train = [
    (source, target)
    for source, target in ordered[TEST_PAIRS + VALIDATION_PAIRS :]
    if _letters(source) not in sources and _letters(target) not in targets
  ]
  return {"train": train, "validation": validation, "test": test}


def _letters(text: str) -> str:
  """The text without {placeholders}, lower-cased and reduced to its letters."""
  return "".join(filter(str.isalpha, re.sub(r"\{[^{}]*\}", "", text).lower()))
