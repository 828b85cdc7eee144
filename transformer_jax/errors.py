"""Ends of a command that are not defects of the program: a user's mistake, and being asked to stop."""

import signal


class UserError(Exception):
  """One line that names the field, file or line at fault and what would be right. Commands print it and exit with 2."""


class Stopped(Exception):
  """A signal asked the run to stop; it has saved a checkpoint and goes on from it when the same command is given again.

  Attributes:
    signal: the number of the signal.
  """

  def __init__(self, number: int, step: int):
    super().__init__(f"stopped by {signal.Signals(number).name} at step {step:,}; the same command goes on from there")
    self.signal = number
