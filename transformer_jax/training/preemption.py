"""Being asked to stop: a scheduler's warning before it takes the machine away."""

import signal
import threading
from types import FrameType

import jax
import numpy as np
from jax.experimental import multihost_utils

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# Processes that train together have to stop at the same step. Asking each other costs a little, so they do it now and then.
STEPS_BETWEEN_QUESTIONS = 10


class Preemption:
  """In a `with` block, takes note of SIGTERM and SIGUSR1 instead of ending the process."""

  def __init__(self) -> None:
    self._signal = 0  # the number of the one that came
    self._before: dict[signal.Signals, object] = {}

  def __enter__(self) -> "Preemption":
    if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody listen
      self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)  # type: ignore[arg-type]

  def _note(self, number: int, frame: FrameType | None) -> None:
    self._signal = number

  def asked(self, step: int) -> int:
    """The number of the signal that came, 0 for none; of several processes all get the same answer at the same step."""
    if jax.process_count() == 1:
      return self._signal
    if step % STEPS_BETWEEN_QUESTIONS:
      return 0
    return int(multihost_utils.process_allgather(np.int32(self._signal)).max())
