"""One run in several processes: who they are, what process 0 does for all, and how they end together.

Every process runs the same `train` on the same configuration, and all see the same files. The devices of all make up one
mesh, so the compiled programs need no word about processes. Whatever writes a file or takes a decision is done by process 0
alone, and the others wait for it and take over what came out (`from_first`); they do so through JAX's coordination service,
which can wait for hours, not through a program on the devices, which cannot. A process that fails makes all the others end
with its exit status, wherever they are. In a run of one process each of these functions does nothing.
"""

import contextlib
import itertools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree
from ml_collections import ConfigDict

from transformer_jax.cluster import process_settings
from transformer_jax.errors import Stopped, UserError, ending
from transformer_jax.training.step import data_mesh

_FOREVER = 2**31 - 1  # milliseconds, 24 days
_SECONDS_BETWEEN_LOOKS = 0.5
# How long process 0 has to come to the same error as another, and the others to take note of one.
_GRACE_SECONDS = 10.0

_PREFIX = "transformer_jax"
_numbers = itertools.count()  # of the values that process 0 gave; all processes count alike

T = TypeVar("T")


def is_first() -> bool:
  """Whether this is process 0, the one that writes; true for a process alone."""
  return jax.process_index() == 0


def from_first(make: Callable[..., T], *arguments: Any) -> T:
  """Returns `make(*arguments)`, called by process 0 alone; the others wait for it and get a copy of the value.

  All processes must call it, in the same order. `make` may take hours, and must not compute on devices of other processes.
  """
  if jax.process_count() == 1:
    return make(*arguments)
  name = f"{_PREFIX}/value/{next(_numbers)}"
  if is_first():
    value = make(*arguments)
    _client().key_value_set_bytes(name, pickle.dumps(value))
    return value
  return pickle.loads(_client().blocking_key_value_get_bytes(name, _FOREVER))


def wait_for_first() -> None:
  """Lets process 0 pass, and the others once it has."""
  from_first(lambda: None)


def on_own_devices(tree: PyTree) -> PyTree:
  """Brings arrays that are spread over all processes to where process 0 can use them alone: a copy on each of its devices.

  All processes must call it; those other than 0 get NumPy arrays. A process alone gets back what it gave.
  """
  if jax.process_count() == 1:
    return tree
  whole = multihost_utils.process_allgather(tree, tiled=True)
  return jax.device_put(whole, NamedSharding(data_mesh(jax.local_devices()), P())) if is_first() else whole


@contextlib.contextmanager
def joined_processes(config: ConfigDict) -> Iterator[None]:
  """Joins the other processes of the run, if the environment names any, and ends together with them.

  Must come before the first use of a device. An error inside the block is said by one process and ends all with the same
  exit status; where it is raised by a process other than 0, process 0 has some seconds to say it first.

  Raises:
    UserError: the environment is contradictory, or the other processes are not found.
    Stopped: by process 0, as raised inside the block by all; the others end without a word.
  """
  settings = process_settings(os.environ)
  if settings is None:
    yield
    return
  _join(settings)
  watch = FailureWatch()
  try:
    _require_same(config)
    yield
  except Stopped as stopped:  # all raise it, but process 0 seals the checkpoint after the others have written it
    watch.end_in_order()
    if is_first():
      raise
    sys.exit(ending(stopped)[0])
  except BaseException as error:
    watch.end_all(error)
  else:
    watch.end_in_order()


def _join(settings: dict[str, Any]) -> None:
  """Calls `jax.distributed.initialize`."""
  # With it, JAX takes SIGTERM for itself, and outside of the training loop (training/preemption.py) nothing would end on it.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(**settings)
  except (RuntimeError, ValueError) as error:
    text = " ".join(str(error).split())
    raise UserError(f"the processes of this run did not find each other: {text[:300]}") from None
  if not is_first():
    logging.set_verbosity(logging.ERROR)  # process 0 has said it


def _require_same(config: ConfigDict) -> None:
  """Raises UserError, in process 0, if another process was started with another configuration: programs would not fit."""
  name = f"{_PREFIX}/config"
  text = config.to_json_best_effort(sort_keys=True)
  _client().key_value_set(f"{name}/{jax.process_index()}", text)
  for process in range(jax.process_count()) if is_first() else ():
    if _client().blocking_key_value_get(f"{name}/{process}", _FOREVER) != text:
      raise UserError(
        f"process {process} was started with another configuration than process 0: start all with the same"
      )


class FailureWatch:
  """Ends this process when another one has failed, and the others when this one fails.

  A thread looks for a failure now and then, since the process may be waiting on a device or for a file meanwhile.
  """

  def __init__(self) -> None:
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._look, name="failure-watch", daemon=True)
    self._thread.start()

  def _look(self) -> None:
    while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
      if (status := self._failure()) is not None:
        self._leave(status)

  def _failure(self) -> int | None:
    """The exit status that a process has ended the run with."""
    try:
      return int(_client().key_value_try_get(f"{_PREFIX}/failure"))
    except RuntimeError:  # there is none
      return None

  def _stop(self) -> None:
    self._over.set()
    self._thread.join()

  def end_in_order(self) -> None:
    """Waits for all processes and leaves the others."""
    _client().wait_at_barrier(f"{_PREFIX}/end", _FOREVER)
    self._stop()
    jax.distributed.shutdown()

  def end_all(self, error: BaseException) -> NoReturn:
    """Says what went wrong, unless another process was first, and ends this process and through their watch the others."""
    if not is_first():
      time.sleep(_GRACE_SECONDS)
    self._stop()
    status, text = ending(error)
    try:
      _client().key_value_set(f"{_PREFIX}/failure", str(status))
    except RuntimeError:
      if (other := self._failure()) is not None:  # another was first
        self._leave(other)
    if text:
      print(text, file=sys.stderr)
    self._leave(status)

  def _leave(self, status: int) -> NoReturn:
    """Ends the process without waiting for its threads or devices; process 0, which the others hear it from, last."""
    with contextlib.suppress(Exception):  # whatever the state of the service: this process ends
      _client().key_value_set(f"{_PREFIX}/left/{jax.process_index()}", "")
      give_up = time.monotonic() + _GRACE_SECONDS
      while is_first() and time.monotonic() < give_up:
        if len(_client().key_value_dir_get(f"{_PREFIX}/left/")) == jax.process_count():
          break
        time.sleep(0.05)
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    os._exit(status)


def _client() -> Any:
  """What speaks to JAX's coordination service; JAX has no public name for it."""
  from jax._src import distributed

  return distributed.global_state.client
