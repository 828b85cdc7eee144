"""The quickstart's corpus: its definition on a made-up wheel, its content on the real one, and fetching it."""

import hashlib
import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from transformer_jax.config import default_config
from transformer_jax.data import home_assistant
from transformer_jax.data.corpora import Pair, open_corpus
from transformer_jax.errors import UserError

REAL_WHEEL = Path(default_config().data.cache).expanduser() / "tfds" / "downloads" / home_assistant.WHEEL


@pytest.fixture
def data(tmp_path, monkeypatch):
  monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
  fields = default_config().data
  fields.cache = str(tmp_path)
  (tmp_path / "tfds" / "downloads").mkdir(parents=True)
  return fields


def write_wheel(path, texts):
  """texts: {component: {language: nested strings}}"""
  with zipfile.ZipFile(path, "w") as archive:
    for component, languages in texts.items():
      for language, strings in languages.items():
        archive.writestr(f"homeassistant/components/{component}/translations/{language}.json", json.dumps(strings))


def test_which_strings_are_pairs(tmp_path):
  english = {
    "a": {"deep": "  Two words ", "same": "OK", "list": ["no", "leaf"], "none": "only English", "empty": " "},
    "b": "line\u2028break",
    "c": "first",
    "d": "w " * 41,
    "e": "x " * 40,
    "f": "fine",
    "g": "tab\tinside",
  }
  german = {
    "a": {"deep": "Zwei Wörter\n", "same": "OK", "list": ["kein", "Blatt"], "empty": "leer"},
    "b": "Zeilenumbruch",
    "c": "zuerst",
    "d": "zu lang",
    "e": "gerade noch",
    "f": "Umbruch\x0bdarin",
    "g": "Tabulator",
  }
  texts = {
    "zz": {"en": {"q": "first", "r": "second"}, "de": {"q": "anders", "r": "zweitens"}},
    "mm": {"en": english, "de": german},
    "aa": {"en": {"q": "no German"}},
  }
  wheel = tmp_path / "a.whl"
  write_wheel(wheel, texts)
  with zipfile.ZipFile(wheel, "a") as archive:
    archive.writestr("homeassistant/components/mm/other/en.json", json.dumps({"a": "elsewhere"}))
    archive.writestr("homeassistant/components/mm/other/de.json", json.dumps({"a": "anderswo"}))
  assert home_assistant.extract_pairs(wheel, "de") == [
    ("Two words", "Zwei Wörter"),
    ("first", "zuerst"),
    (("x " * 40).strip(), "gerade noch"),
    ("tab\tinside", "Tabulator"),
    ("second", "zweitens"),
  ]


def test_splits_do_not_touch(monkeypatch):
  monkeypatch.setattr(home_assistant, "TEST_PAIRS", 2)
  monkeypatch.setattr(home_assistant, "VALIDATION_PAIRS", 1)
  pairs = [(f"Turn on lamp {letter}", f"Lampe {letter} an") for letter in "abcdefgh"]
  held_out = sorted(pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).hexdigest())[:3]
  twins = [(held_out[0][0].upper() + " {count}!", "anders"), ("other", f"{held_out[2][1]} ({{x}})…")]
  splits = home_assistant.split([*twins, *pairs])
  everything = splits["test"] + splits["validation"] + splits["train"]
  ordered = sorted([*twins, *pairs], key=lambda pair: hashlib.sha256(pair[0].encode()).hexdigest())
  assert splits["test"] == ordered[:2]
  assert splits["validation"] == ordered[2:3]
  assert [pair for pair in ordered if pair in everything] == everything
  assert not set(splits["train"]) & set(ordered[:3])
  for twin in twins:
    partner = held_out[0] if twin is twins[0] else held_out[2]
    assert not (partner in ordered[:3] and twin in splits["train"])


def test_the_builder_reads_a_wheel_that_lies_there(data, tmp_path, monkeypatch):
  """Through `open_corpus`, in the order of the hashes, with a letter or a digit that makes every string another."""
  monkeypatch.setattr(home_assistant, "TEST_PAIRS", 5)
  monkeypatch.setattr(home_assistant, "VALIDATION_PAIRS", 3)
  letters = "abcdefghijklmnopqrstuvwxyz"
  texts = {"x": {"en": {a: f"Lamp {a}" for a in letters}, "fr": {a: f"Lampe {a}" for a in letters}}}
  wheel = tmp_path / "tfds" / "downloads" / home_assistant.WHEEL
  write_wheel(wheel, texts)
  monkeypatch.setattr(home_assistant, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
  data.target_language = "fr"
  ordered = sorted(letters, key=lambda letter: hashlib.sha256(f"Lamp {letter}".encode()).hexdigest())
  pairs = [Pair(f"Lamp {letter}", f"Lampe {letter}") for letter in ordered]
  for role, part in (("test", pairs[:5]), ("validation", pairs[5:8]), ("train", pairs[8:])):
    assert list(open_corpus("tfds:home_assistant/en-fr", role, data)) == part


def test_the_real_wheel_has_the_pairs_of_the_definition(data, tmp_path):
  if not REAL_WHEEL.exists():
    pytest.skip(f"{REAL_WHEEL} is not there; the quickstart puts it there")
  (tmp_path / "tfds" / "downloads" / home_assistant.WHEEL).symlink_to(REAL_WHEEL)
  for role, count, digest in (
    ("train", 21_575, "520b28bc"),
    ("validation", 500, "7a5587b9"),
    ("test", 1_000, "bfb22d93"),
  ):
    pairs = list(open_corpus("tfds:home_assistant/en-de", role, data))
    assert len(pairs) == count
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    assert hashlib.sha256(lines.encode()).hexdigest().startswith(digest)


@pytest.mark.slow
def test_the_real_wheel_in_chinese(data, tmp_path):
  if not REAL_WHEEL.exists():
    pytest.skip(f"{REAL_WHEEL} is not there; the quickstart puts it there")
  (tmp_path / "tfds" / "downloads" / home_assistant.WHEEL).symlink_to(REAL_WHEEL)
  data.target_language = "zh-Hans"
  counts = [len(open_corpus("tfds:home_assistant/en-zh-Hans", role, data)) for role in ("train", "validation", "test")]
  assert counts == [21_954, 500, 1_000]


def python_that(tmp_path, monkeypatch, script):
  """Puts a shell script in the place of this Python."""
  fake = tmp_path / "python"
  fake.write_text(f"#!/bin/sh\n{script}\n")
  fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
  monkeypatch.setattr(sys, "executable", str(fake))


def test_pip_is_asked_for_the_wheel(tmp_path, monkeypatch):
  content = b"a wheel"
  monkeypatch.setattr(home_assistant, "SHA256", hashlib.sha256(content).hexdigest())
  folder = tmp_path / "downloads"
  script = f'echo "$@" > {tmp_path}/arguments; printf "a wheel" > {folder}/{home_assistant.WHEEL}'
  python_that(tmp_path, monkeypatch, script)
  assert home_assistant.fetch_wheel(folder).read_bytes() == content
  arguments = (tmp_path / "arguments").read_text()
  for part in ("-m pip download", "--no-deps", "--only-binary=:all:", "--python-version 3.14", f"-d {folder}"):
    assert part in arguments
  assert "homeassistant==2026.2.3" in arguments
  os.remove(tmp_path / "arguments")
  home_assistant.fetch_wheel(folder)
  assert not (tmp_path / "arguments").exists(), "the second time it is there"


@pytest.mark.parametrize(
  ("script", "message"),
  [
    ('echo "python: No module named pip" >&2; exit 1', "has no pip"),
    ('echo "WARNING: x" >&2; echo "ERROR: no network" >&2; exit 1', r"could not download .*\(ERROR: no network\)"),
    ("exit 0", "could not download"),
  ],
)
def test_without_pip_or_network_it_says_what_to_do(data, tmp_path, monkeypatch, script, message):
  python_that(tmp_path, monkeypatch, script)
  with pytest.raises(UserError, match=message) as caught:
    open_corpus("tfds:home_assistant/en-de", "train", data)
  assert f"put {home_assistant.WHEEL} in {tmp_path}/tfds/downloads" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_another_file_is_refused(data, tmp_path):
  write_wheel(tmp_path / "tfds" / "downloads" / home_assistant.WHEEL, {})
  with pytest.raises(UserError, match=r"is not the file it should be \(SHA-256"):
    open_corpus("tfds:home_assistant/en-de", "train", data)
