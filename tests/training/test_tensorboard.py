"""TensorBoard's files are written without PyTorch."""

import sys

import pytest
from helpers.tiny_run import run_python

PROGRAM = """
import sys
import transformer_jax.train
assert "tensorboardX" in sys.modules and "torch" not in sys.modules
"""


def test_a_training_run_does_not_load_pytorch():
  pytest.importorskip("torch")
  assert run_python("-c", PROGRAM) == (0, "", "")


def test_pytorch_stays_as_it_was_loaded_before():
  torch = pytest.importorskip("torch")
  import transformer_jax.training.tensorboard  # noqa: F401

  assert sys.modules["torch"] is torch
