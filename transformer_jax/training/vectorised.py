"""The program that several runs share: one update of all of them, vectorised over the runs by `jax.vmap`.

A run is a lane of it, entry i of every array. The lanes know nothing of each other: each has its own parameters, keys, step
and settings, and what goes wrong in one stays in it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, PyTree, UInt32
from ml_collections import ConfigDict

from transformer_jax.checks import fields
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.training import step as programs
from transformer_jax.training.feed import empty_batch
from transformer_jax.training.objective import Sums
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer
from transformer_jax.training.step import StepMetrics, TrainState

# The numbers that an update may get as arrays. The seed is not one of them: it is in the state, as a key.
SETTINGS = ("model.dropout", "model.ffn_dropout", "training.label_smoothing", "optimizer.learning_rate")


class Programs(NamedTuple):
  """What is compiled for runs that train together; `Programs.step` alone is for all lanes at once."""

  begin: Callable[[UInt32[Any, ""]], TrainState]  # seed → a run's state before its first update
  step: Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]  # all arrays [lanes, ...]; overwrites the state
  lane: Callable[[TrainState, int], TrainState]  # the state of all lanes, number → that of one run
  evaluate: Callable[[PyTree, Any, float], Sums]  # parameters of one run, batch, smoothing → loss without dropout
  abstract: TrainState  # shapes and types of one run's state
  shardings: TrainState  # where it lies


def settings_that_differ(configs: Sequence[ConfigDict]) -> dict[str, Float[np.ndarray, "lanes"]]:
  """The values of those `SETTINGS` that are not the same in all configurations.

  The others stay constants of the program, as in a run of its own: where no run has dropout, no random bits are drawn.
  """
  values = [dict(fields(config)) for config in configs]
  columns = {name: [value[name] for value in values] for name in SETTINGS}
  return {name: np.array(column, np.float32) for name, column in columns.items() if len(set(column)) > 1}


def make_update(
  config: ConfigDict, model: nn.Module, settings: Mapping[str, Float[Array, ""]]
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
  """Returns the function of one update of one run, with `settings` (of `SETTINGS`) in place of what `config` says."""
  values = {**{name: value for name, value in fields(config) if name in SETTINGS}, **settings}
  rates = {"dropout": values["model.dropout"], "ffn_dropout": values["model.ffn_dropout"]}
  model = model.clone(config=dataclasses.replace(model.config, **rates))  # type: ignore[attr-defined]
  peak = values["optimizer.learning_rate"]
  schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps, peak)
  optimizer = make_optimizer(config.optimizer, schedule)
  smoothing = values["training.label_smoothing"]
  return programs.make_train_step(model, optimizer, schedule, smoothing, config.training.accumulate)


def make_programs(configs: Sequence[ConfigDict], model: nn.Module, shape: Shape, mesh: Mesh) -> Programs:
  """Makes the programs; nothing is compiled before it is called.

  Args:
    configs: of the lanes, in their order; they differ in the seed and in `SETTINGS` only.
    model: of any of them.
    shape: of every lane's batches.
    mesh: of one device.
  """
  config, settings = configs[0], settings_that_differ(configs)
  schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps)
  optimizer = make_optimizer(config.optimizer, schedule)

  def begin(seed: UInt32[Array, ""]) -> TrainState:
    return programs.initial_state(model, optimizer, empty_batch(shape), seed)

  def update(own: dict[str, jax.Array], state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
    return make_update(config, model, own)(state, batch)

  def evaluate(params: PyTree, batch: Batch, smoothing: Float[Array, ""]) -> Sums:
    return programs.batch_loss(model, params, batch, None, smoothing)

  here = NamedSharding(mesh, P())
  abstract = jax.eval_shape(begin, np.uint32(0))
  shardings = programs.state_shardings(abstract, mesh, config.training.fsdp)
  step = jax.jit(jax.vmap(update), in_shardings=here, out_shardings=here, donate_argnums=1)
  return Programs(
    begin=jax.jit(begin, out_shardings=shardings),
    step=lambda state, batch: step(settings, state, batch),
    lane=jax.jit(lambda state, number: jax.tree.map(lambda array: array[number], state), out_shardings=shardings),
    evaluate=jax.jit(evaluate),
    abstract=abstract,
    shardings=shardings,
  )


def stacked_states(states: Sequence[TrainState]) -> TrainState:
  """The states of several runs as that of all lanes, [lanes, ...]."""
  return jax.tree.map(lambda *arrays: jnp.stack(arrays), *states)


def stacked_batches(batches: Sequence[Batch], mesh: Mesh) -> Batch:
  """Puts one batch of each lane on the device, [lanes, rows, length]."""
  together = Batch(*(np.stack(arrays) for arrays in zip(*batches, strict=True)))
  return jax.device_put(together, NamedSharding(mesh, P()))
