"""Ends of a command that are not defects of the program: a user's mistake, and being asked to stop."""

import signal
import traceback


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


def ending(error: BaseException) -> tuple[int, str]:
  """The exit status of a command that ends with an error, and what it says on stderr; "": nothing.

  2 after a user's mistake; 128 + the signal's number after a checkpoint that a signal asked for; 130 after Ctrl-C; 141 where
  nobody reads the output any more; 1 and a traceback after a defect of the program.
  """
  if isinstance(error, UserError):
    return 2, f"error: {error}"
  if isinstance(error, Stopped):
    return 128 + error.signal, str(error)
  if isinstance(error, KeyboardInterrupt):
    return 130, ""
  if isinstance(error, BrokenPipeError):
    return 141, ""
  return 1, "".join(traceback.format_exception(error)).rstrip()
