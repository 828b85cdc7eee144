"""One update and one evaluation of a batch, compiled for a mesh of devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PyTree, UInt32

from transformer_jax.data.batches import Batch
from transformer_jax.training.objective import Sums, smoothed_cross_entropy


class TrainState(NamedTuple):
  """All that an update changes. The dropout key of a step is folded from `key` and the step: a replayed step draws the same."""

  step: Int[Array, ""]  # updates tried, skipped ones included: the number of the next batch
  params: PyTree
  optimizer: PyTree
  key: Array  # raw key data, so that any checkpoint format can hold it
  skipped: Int[Array, ""]  # non-finite updates so far
  skipped_in_a_row: Int[Array, ""]


class StepMetrics(NamedTuple):
  """What one update reports."""

  sums: Sums
  gradient_norm: Float[Array, ""]  # global, before clipping
  learning_rate: Float[Array, ""]
  skipped: Int[Array, ""]
  skipped_in_a_row: Int[Array, ""]


def data_mesh(devices: list | None = None) -> Mesh:
  """A mesh of all devices along one axis, `data`. Its axes are Auto ones: Flax's modules do not know explicit axes."""
  devices = jax.devices() if devices is None else devices
  return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def process_share(mesh: Mesh) -> tuple[int, int]:
  """Which of how many equal shares of a batch's rows this process puts on its devices: its number from 0, their number."""
  owners = sorted({device.process_index for device in mesh.devices.flat})
  return owners.index(jax.process_index()), len(owners)


def state_shardings(state: PyTree, mesh: Mesh, fsdp: bool) -> PyTree:
  """Where each array of the state lies: a copy on every device or, with fsdp, split along its largest divisible axis."""

  def place(array: jax.ShapeDtypeStruct) -> NamedSharding:
    devices = mesh.devices.size
    axes: list[str | None] = [None] * len(array.shape)
    divisible = [axis for axis, size in enumerate(array.shape) if size % devices == 0]
    if fsdp and array.ndim > 1 and divisible:
      axes[max(divisible, key=lambda axis: array.shape[axis])] = "data"
    return NamedSharding(mesh, P(*axes))

  return jax.tree.map(place, state)


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
  """Spreads a batch over the devices by rows; in a run of several processes each passes its own share of the rows."""
  sharding = NamedSharding(mesh, P("data"))
  if jax.process_count() == 1:
    return jax.device_put(batch, sharding)  # all arrays at once
  return Batch(*(jax.make_array_from_process_local_data(sharding, np.asarray(array)) for array in batch))


def initial_state(
  model: nn.Module, optimizer: optax.GradientTransformation, batch: Batch, seed: int | UInt32[Array, ""]
) -> TrainState:
  """Returns the state before the first update. Meant for `jax.jit` or `jax.eval_shape`; of the batch only the shapes count."""
  init_key, dropout_key = jax.random.split(jax.random.key(seed))
  params = model.init(init_key, batch)["params"]
  zero = jnp.zeros((), jnp.int32)
  return TrainState(zero, params, optimizer.init(params), jax.random.key_data(dropout_key), zero, zero)


def batch_loss(
  model: nn.Module,
  params: PyTree,
  batch: Batch,
  key: jax.Array | None,
  label_smoothing: float | Float[Array, ""],
) -> Sums:
  """Runs the model on a batch (with dropout if a key is given) and sums the loss over its target pieces."""
  rngs = {} if key is None else {"dropout": key}
  logits: Any = model.apply({"params": params}, batch, train=key is not None, rngs=rngs)
  return smoothed_cross_entropy(logits, batch.target_outputs, batch.target_segments > 0, label_smoothing)


def summed_gradients(
  model: nn.Module,
  params: PyTree,
  batch: Batch,
  key: jax.Array,
  label_smoothing: float | Float[Array, ""],
  accumulate: int,
) -> tuple[PyTree, Sums]:
  """Returns the gradient of the summed loss and the sums. With accumulate > 1 the rows are worked off in so many parts.

  Sums, unlike means, add up: the parts may hold different numbers of pieces.
  """

  def loss_of(params: PyTree, part: Batch, part_key: jax.Array) -> tuple[jax.Array, Sums]:
    sums = batch_loss(model, params, part, part_key, label_smoothing)
    return sums.loss, sums

  gradient_of = jax.grad(loss_of, has_aux=True)
  if accumulate == 1:
    return gradient_of(params, batch, key)

  def add_part(total: PyTree, numbered_part: tuple[jax.Array, Batch]) -> tuple[PyTree, None]:
    number, part = numbered_part
    return jax.tree.map(jnp.add, total, gradient_of(params, part, jax.random.fold_in(key, number))), None

  # Every accumulate-th row goes into the same part, so that each device keeps its rows.
  parts = jax.tree.map(lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), batch)  # [parts, rows, length]
  zeros = jax.tree.map(jnp.zeros_like, params), Sums(*(jnp.zeros(()) for _ in Sums._fields))
  return jax.lax.scan(add_part, zeros, (jnp.arange(accumulate), parts))[0]


def make_train_step(
  model: nn.Module,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  label_smoothing: float | Float[Array, ""],
  accumulate: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
  """Returns the function of one update. It is pure; `compile_step` turns it into a program."""

  def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    gradients, sums = summed_gradients(model, state.params, batch, key, label_smoothing, accumulate)
    # The batch is one logical array, so these sums run over all devices: the mean is over the global number of pieces.
    gradients = jax.tree.map(lambda gradient: gradient / jnp.maximum(sums.pieces, 1.0), gradients)
    norm = optax.tree.norm(gradients)
    updates, new_optimizer = optimizer.update(gradients, state.optimizer, state.params)
    new_params = optax.apply_updates(state.params, updates)
    finite = jnp.isfinite(norm) & jnp.isfinite(sums.loss)

    def if_finite(new: PyTree, old: PyTree) -> PyTree:
      return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    skipped = jnp.where(finite, 0, 1)
    new_state = TrainState(
      step=state.step + 1,
      params=if_finite(new_params, state.params),
      optimizer=if_finite(new_optimizer, state.optimizer),
      key=state.key,
      skipped=state.skipped + skipped,
      skipped_in_a_row=(state.skipped_in_a_row + 1) * skipped,
    )
    rate = jnp.asarray(schedule(state.step - state.skipped), jnp.float32)  # the optimizer counts what was not skipped
    return new_state, StepMetrics(sums, norm, rate, new_state.skipped, new_state.skipped_in_a_row)

  return train_step


def compile_train_step(train_step: Callable, shardings: TrainState, mesh: Mesh) -> Callable:
  """Jits a train step: the state stays where `shardings` puts it (and is overwritten), the batch is split by rows."""
  rows = NamedSharding(mesh, P("data"))
  everywhere = NamedSharding(mesh, P())
  return jax.jit(
    train_step,
    in_shardings=(shardings, Batch(*[rows] * len(Batch._fields))),
    out_shardings=(shardings, everywhere),
    donate_argnums=0,
  )


def compile_eval_step(model: nn.Module, label_smoothing: float, params_shardings: PyTree, mesh: Mesh) -> Callable:
  """Jits (params, batch) -> Sums without dropout."""
  rows = NamedSharding(mesh, P("data"))

  def eval_step(params: PyTree, batch: Batch) -> Sums:
    return batch_loss(model, params, batch, None, label_smoothing)

  return jax.jit(
    eval_step,
    in_shardings=(params_shardings, Batch(*[rows] * len(Batch._fields))),
    out_shardings=NamedSharding(mesh, P()),
  )
