"""TensorBoard's files are written without PyTorch."""

import importlib
import sys

import pytest
from helpers.tiny_run import run_python

from transformer_jax.training import tensorboard

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
  importlib.reload(tensorboard)  # whoever came first may have loaded it before PyTorch
  assert sys.modules["torch"] is torch
