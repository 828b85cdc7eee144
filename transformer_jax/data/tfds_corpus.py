"""Translation sets of TensorFlow Datasets, prepared and read without TensorFlow."""

import contextlib
import difflib
import fcntl
import logging as python_logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from transformer_jax.data.corpora import Corpus, Pair
from transformer_jax.data.without_tensorflow import local_files_for_tfds
from transformer_jax.errors import UserError

_AT_ONCE = 1_000  # examples read at a time


def open_tfds(spec: str, role: str, data: ConfigDict) -> Corpus:
  """Opens `tfds:name/config@split`; the set is downloaded and prepared where the data folder does not hold it yet.

  The data folder is `<data.cache>/tfds`, or the environment variable TFDS_DATA_DIR.

  Raises:
    UserError: where there is no such set, configuration, split or language, or it cannot be prepared here.
  """
  from tensorflow_datasets.core import decode

  name, _, split = spec.removeprefix("tfds:").partition("@")
  folder = os.environ.get("TFDS_DATA_DIR") or str(Path(data.cache).expanduser() / "tfds")
  with _quiet():
    builder = _builder(name, folder, spec)
    _prepare(builder, name, folder)
    languages = list(builder.info.features)
    for field, language in (("source", data.source_language), ("target", data.target_language)):
      if language not in languages:
        raise UserError(
          f"data.{field}_language = {language!r} is not in {spec!r}, which has {', '.join(map(repr, languages))}"
        )
    split = split or role
    try:
      source = builder.as_data_source(split=split, deserialize_method=decode.DeserializeMethod.RAW_BYTES)
    except ValueError as error:
      splits = ", ".join(builder.info.splits)
      raise UserError(f"{spec!r} has no split {split!r}; it has {splits} ({_line(error)})") from None
    except NotImplementedError:
      raise UserError(
        f"{builder.data_dir} holds {name} in a form that only TensorFlow reads; delete it, or prepare it again with "
        f"tfds.builder({name!r}).download_and_prepare(file_format='array_record')"
      ) from None
  return TfdsCorpus(spec, source, f"{builder.info.full_name} {split} {len(source)}", data)


class TfdsCorpus(Corpus):
  """One split of a prepared translation set."""

  def __init__(self, name: str, source: Any, fingerprint: str, data: ConfigDict):
    """`source` is a TFDS data source of serialized examples, which TFDS itself would parse five times slower."""
    self.name, self._source = name, source
    self._languages = data.source_language, data.target_language
    self._fingerprint = f"tfds {fingerprint} {self._languages}"

  @property
  def fingerprint(self) -> str:
    return self._fingerprint

  def __len__(self) -> int:
    return len(self._source)

  def __iter__(self) -> Iterator[Pair]:
    from tensorflow_datasets.proto import tf_example_pb2

    parse = tf_example_pb2.Example.FromString
    source, target = self._languages
    for start in range(0, len(self), _AT_ONCE):
      for record in self._source.__getitems__(range(start, min(start + _AT_ONCE, len(self)))):
        features = parse(record).features.feature
        yield Pair(*(features[language].bytes_list.value[0].decode() for language in (source, target)))


def _builder(name: str, folder: str, spec: str) -> Any:
  import tensorflow_datasets as tfds
  import tensorflow_datasets.translate  # registers wmt14_translate and its kind

  import transformer_jax.data.home_assistant  # noqa: F401 (registers home_assistant)

  try:
    return tfds.builder(name, data_dir=folder, file_format="array_record")
  except tfds.core.DatasetNotFoundError:
    names = tfds.list_builders(with_community_datasets=False)
    raise UserError(f"TFDS has no set {name!r}, so {spec!r} cannot be opened{_nearest(name, names)}") from None
  except ImportError as error:
    raise UserError(_needs(name, error, folder)) from None
  except ValueError as error:
    title, _, config = name.partition("/")
    try:
      configs = list(tfds.builder_cls(title).builder_configs)
    except (tfds.core.DatasetNotFoundError, ValueError):
      configs = []
    if not config or not configs or config in configs:
      raise UserError(f"the TFDS set {name!r} cannot be opened: {_line(error)}") from None
    known = f"; it has {', '.join(configs)}" if len(configs) < 20 else _nearest(config, configs)
    raise UserError(f"the TFDS set {title!r} has no configuration {config!r}{known}") from None


def _nearest(name: str, known: list[str]) -> str:
  near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
  return f"; the nearest are {', '.join(near)}" if near else ""


def _prepare(builder: Any, name: str, folder: str) -> None:
  """Prepares the set, or waits until another process has."""
  import tensorflow_datasets as tfds

  if builder.is_prepared():
    return
  logging.info("preparing the TFDS set %s in %s", name, folder)
  Path(folder).mkdir(parents=True, exist_ok=True)
  with open(Path(folder) / f".{name.replace('/', '.')}.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if builder.is_prepared():
      return
    settings = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
      with local_files_for_tfds(Path(folder)):
        builder.download_and_prepare(file_format="array_record", download_config=settings)
    except UserError:
      raise
    except Exception as error:  # whatever a set's own code raises: no network, a missing file, a full disk
      logging.debug("preparing %s", name, exc_info=True)
      if missing := _missing_package(error):
        raise UserError(_needs(name, missing, folder)) from None
      raise UserError(f"the TFDS set {name!r} could not be prepared: {_line(error)}") from None


def _missing_package(error: BaseException | None) -> ImportError | None:
  """The ImportError that an error is or was caused by."""
  while error is not None and not isinstance(error, ImportError):
    error = error.__cause__ or error.__context__
  return error


def _needs(name: str, error: ImportError, folder: str) -> str:
  package = "tensorflow" if "tensorflow" in str(error).lower() else (error.name or "").partition(".")[0]
  install = f"pip install {package.replace('_', '-')}" if package else _line(error)
  return (
    f"the TFDS set {name!r} cannot be prepared without another package: {install} (here, or in another environment "
    f"that prepares it once in {folder} with file_format='array_record'; reading it does not need the package)"
  )


def _line(error: Exception) -> str:
  """An error's message in one line, cut where it gets long."""
  text = f"{type(error).__name__}: {' '.join(str(error).split())}"
  return text if len(text) <= 300 else text[:300] + " …"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps what TFDS prints (progress bars, notices, logged warnings) off the screen."""
  import tensorflow_datasets as tfds

  verbosity, connections = logging.get_verbosity(), python_logging.getLogger("urllib3")
  level = connections.level
  tfds.disable_progress_bar()
  logging.set_verbosity(logging.ERROR)
  connections.setLevel(python_logging.ERROR)  # it warns of every new attempt
  try:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
      yield
  finally:
    logging.set_verbosity(verbosity)
    connections.setLevel(level)
    tfds.enable_progress_bar()
