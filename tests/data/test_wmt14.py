"""TFDS's own `wmt14_translate` builder, prepared and read without TensorFlow."""

import sys

import pytest
from helpers.wmt14_archives import write_wmt14_archives

from transformer_jax.config import default_config
from transformer_jax.data.corpora import open_corpus
from transformer_jax.errors import UserError

WMT14 = "tfds:wmt14_translate/de-en"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """A cache with the archives, and their pairs by split."""
  cache = tmp_path_factory.mktemp("cache")
  return cache, write_wmt14_archives(cache / "tfds")


@pytest.fixture
def data(prepared, monkeypatch):
  monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
  fields = default_config().data
  fields.cache = str(prepared[0])
  return fields


def test_the_real_builder_prepares_small_archives(prepared, data, capfd):
  """Every split holds its pairs, English to German and the other way round, and nothing is printed."""
  _, splits = prepared
  for role, pairs in splits.items():
    corpus = open_corpus(WMT14, role, data)
    assert len(corpus) == len(pairs)
    assert sorted(corpus) == sorted(pairs)
    assert list(corpus) == list(corpus)
  data.source_language, data.target_language = "de", "en"
  turned = sorted((target, source) for source, target in splits["test"])
  assert sorted(open_corpus(WMT14, "test", data)) == turned
  assert capfd.readouterr().out == ""
  assert "tensorflow" not in sys.modules


def test_a_split_can_be_named(prepared, data):
  _, splits = prepared
  train = open_corpus(WMT14, "train", data)
  assert sorted(open_corpus(f"{WMT14}@validation", "train", data)) == sorted(splits["validation"])
  assert list(open_corpus(f"{WMT14}@train[:10]", "test", data)) == list(train)[:10]
  fingerprints = {
    open_corpus(f"{WMT14}{part}", "train", data).fingerprint for part in ("", "@validation", "@train[:10]")
  }
  assert len(fingerprints) == 3


def test_the_environment_may_name_the_data_folder(prepared, data, monkeypatch, tmp_path):
  cache, splits = prepared
  open_corpus(WMT14, "test", data)
  monkeypatch.setenv("TFDS_DATA_DIR", str(cache / "tfds"))
  data.cache = str(tmp_path)
  assert len(open_corpus(WMT14, "test", data)) == len(splits["test"])
  assert list(tmp_path.iterdir()) == []


def test_sets_too_large_for_memory_are_sorted_on_disk(prepared, data, monkeypatch, tmp_path):
  """TFDS sorts what is over 1 GB in files, which the real WMT 2014 needs: the same pairs in the same order."""
  from tensorflow_datasets.core import shuffle

  expected = list(open_corpus(WMT14, "train", data))
  monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 1_000)
  write_wmt14_archives(tmp_path / "tfds")
  data.cache = str(tmp_path)
  assert list(open_corpus(WMT14, "train", data)) == expected


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("tfds:wmt14_translat/de-en", "TFDS has no set 'wmt14_translat/de-en'.*nearest are .*wmt14_translate"),
    ("tfds:wmt14_translate/en-de", "has no configuration 'en-de'; it has cs-en, de-en, fr-en"),
    (f"{WMT14}@dev", "has no split 'dev'; it has test, train, validation|has no split 'dev'; it has train"),
    ("tfds:no such", "cannot be opened"),
  ],
)
def test_mistakes_are_named_in_one_line(data, spec, message):
  with pytest.raises(UserError, match=message) as caught:
    open_corpus(spec, "train", data)
  assert "\n" not in str(caught.value)


def test_a_language_that_the_set_lacks(data):
  data.target_language = "fr"
  with pytest.raises(UserError, match=r"data\.target_language = 'fr' is not in .*, which has 'de', 'en'"):
    open_corpus(WMT14, "test", data)


def test_a_set_that_needs_tensorflow_says_so(data, tmp_path):
  """A builder that touches TensorFlow while it is prepared, as `tatoeba` does."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow

  class NeedsTensorFlow(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(languages=("de", "en")))

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples()}

    def _generate_examples(self):
      tensorflow.io.gfile.exists("/")
      yield 0, {"de": "a", "en": "b"}

  if "tensorflow" in sys.modules:
    pytest.skip("TensorFlow is installed")
  data.cache = str(tmp_path)
  with pytest.raises(UserError, match=r"'needs_tensor_flow' cannot be prepared .*pip install tensorflow") as caught:
    open_corpus("tfds:needs_tensor_flow", "train", data)
  assert "\n" not in str(caught.value)
