"""Sweeps of seconds: files with an experiment over the made-up corpus, and the commands that work on them."""

import textwrap

from helpers.tiny_run import REPOSITORY, run_python, write_corpus

START = """
import sys
sys.path.insert(0, {tests!r})
from helpers.tiny_run import tiny_config
from experiments.experiment import Column, Experiment
from experiments.sweep import chain, one, over, seeds

COLUMNS = (Column("BLEU", "test.bleu"), Column("PPL", "valid.perplexity"))
BAD = {{"data.train": ("text:none.en,none.de",)}}  # files that are not there

def tiny(**changes):
  return tiny_config({data!r}, **changes)
"""


def write_experiment(path, get_experiment):
  """Writes an experiment file of which `get_experiment` is the last function, and its corpus in a folder beside it.

  The function has `tiny(**changes)`, `tiny_config` with that corpus, what sweeps are made of, COLUMNS and BAD.
  """
  start = START.format(tests=str(REPOSITORY / "tests"), data=str(write_corpus(path.parent / "data")))
  path.write_text(start + textwrap.dedent(get_experiment))
  return path


def run(module, *arguments, environment=()):
  """Runs a module to its end, on one device; returns exit status, output and errors."""
  return run_python("-m", module, *arguments, environment=environment)


def results_of(folder):
  """The bytes of results.csv and runs.csv, from a report made now."""
  status, _, errors = run("experiments.report", folder)
  assert status == 0, errors
  return (folder / "results.csv").read_bytes(), (folder / "runs.csv").read_bytes()
