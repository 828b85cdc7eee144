"""One finished tiny run that many tests look at, and the warnings of a test."""

import fcntl
import json
import logging as std_logging
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
from absl import logging
from helpers.tiny_run import devices, tiny_config, write_corpus

from transformer_jax import results
from transformer_jax.tasks import translation
from transformer_jax.train import train
from transformer_jax.training import step as programs


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
  """A folder that all processes of the test session share; whoever makes something in it holds its lock meanwhile."""
  base = tmp_path_factory.getbasetemp()
  folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny"
  folder.mkdir(exist_ok=True)
  return folder


@pytest.fixture(scope="session")
def corpus(shared):
  """A folder with a made-up corpus, and the cache of all runs on it."""
  with open(shared / "corpus.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    return shared / "corpus" if (shared / "corpus").exists() else write_corpus(shared / "corpus")


@pytest.fixture(scope="session")
def finished(shared, corpus):
  """A run on one device that nothing disturbed: .workdir (only to be read), .config, .results (of results.json)."""
  config, workdir = tiny_config(corpus, evaluation__attention_figure=True), shared / "finished"
  with open(shared / "finished.lock", "w") as lock, devices(1):
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not workdir.exists():
      train(config, workdir)
  return SimpleNamespace(config=config, workdir=workdir, results=json.loads((workdir / "results.json").read_text()))


@pytest.fixture
def copy(finished, tmp_path):
  """A copy of the finished run, to be spoiled."""
  return shutil.copytree(finished.workdir, tmp_path / "run")


@pytest.fixture
def one_device():
  with devices(1):
    yield


@pytest.fixture
def no_figures(monkeypatch):
  """Saves the seconds that drawing takes, for tests that look at something else."""
  monkeypatch.setattr(results, "training_figure", lambda *arguments: None)
  monkeypatch.setattr(translation, "draw_attention", lambda *arguments: None)


@pytest.fixture
def warnings():
  """The warnings that the user sees, one string each."""
  seen = []
  handler = std_logging.Handler(std_logging.WARNING)
  handler.emit = lambda record: seen.append(record.getMessage())
  logging.get_absl_logger().addHandler(handler)
  yield seen
  logging.get_absl_logger().removeHandler(handler)


@pytest.fixture
def train_steps(monkeypatch):
  """The compiled training step of every run that a test makes."""
  made, compile_train_step = [], programs.compile_train_step

  def compile_and_keep(*arguments):
    made.append(compile_train_step(*arguments))
    return made[-1]

  monkeypatch.setattr(programs, "compile_train_step", compile_and_keep)
  return made


@pytest.fixture
def batches_seen(monkeypatch):
  """The shapes of all batches that a run puts on its devices, in their order."""
  seen = []
  put_batch = programs.put_batch

  def put_and_note(batch, mesh):
    seen.append((*batch.source.shape, batch.target_inputs.shape[1]))
    return put_batch(batch, mesh)

  for module in ("step", "feed", "validation"):
    monkeypatch.setattr(sys.modules[f"transformer_jax.training.{module}"], "put_batch", put_and_note)
  return seen
