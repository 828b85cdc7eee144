"""From the fields of a configuration to a model."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict

from transformer_jax.data.batches import Batch
from transformer_jax.model.config import ModelConfig, model_config
from transformer_jax.model.encoder_only import Classifier, MaskedLanguageModel
from transformer_jax.model.language_model import LanguageModel
from transformer_jax.model.recurrent import Recurrent
from transformer_jax.model.transformer import Transformer


def build_model(config: ConfigDict, source_vocabulary: int, target_vocabulary: int) -> nn.Module:
  """Returns the model of a task that `config.model` describes, for vocabularies of these sizes."""
  sizes = model_config(config.model, source_vocabulary, target_vocabulary, config.task)
  if sizes.kind != "transformer":
    return Recurrent(sizes if sizes.recurrent_size else with_equal_budget(sizes))
  of_task = {"translate": Transformer, "lm": LanguageModel, "classify": Classifier, "mlm": MaskedLanguageModel}
  return of_task[config.task](sizes)


def parameter_shapes(model: nn.Module) -> PyTree:
  """Shapes and types of the model's parameters, without allocating them."""
  batch = Batch(*(jax.ShapeDtypeStruct((1, 1), jnp.int32) for _ in Batch._fields))
  return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]


def count(tree: PyTree) -> int:
  """The number of elements of all arrays."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def with_equal_budget(config: ModelConfig) -> ModelConfig:
  """The configuration with the (even) `recurrent_size` that comes nearest to the Transformer's number of parameters."""
  budget = count(parameter_shapes(Transformer(config)))
  # The number is a polynomial of the second degree in the size, so three sizes say what it is.
  sizes = (2, 4, 6)
  counts = [count(parameter_shapes(Recurrent(dataclasses.replace(config, recurrent_size=size)))) for size in sizes]
  size = np.roots(np.polyfit(sizes, counts, 2) - np.array([0, 0, budget])).real.max()
  return dataclasses.replace(config, recurrent_size=max(2, 2 * round(size / 2)))
