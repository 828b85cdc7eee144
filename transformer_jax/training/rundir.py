"""The run directory: one process at a time in it, and files that are either whole or absent."""

import errno
import fcntl
import json
import math
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from transformer_jax.errors import UserError

LOCK_FILE = ".lock"


class RunLock:
  """Holds a run directory for this process until `release`, the end of a `with` block, or the end of the process.

  The operating system keeps the lock, not the file's existence: a killed process leaves none behind. Where several
  processes train together (`jax.distributed`), process 0 takes it.

  Attributes:
    path: the lock file, `<workdir>/.lock`, with the holder's pid, host and starting time as JSON.
  """

  def __init__(self, workdir: str | os.PathLike):
    """Creates the directory where it is missing and locks it.

    Raises:
      UserError: another process holds the directory, or it cannot be created or written.
    """
    self.path = Path(workdir) / LOCK_FILE
    self._file: int | None = None
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
      raise UserError(
        f"--workdir={workdir}: cannot be written ({error.strerror}); name a folder of your own"
      ) from error
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
        holder = _holder(file)
        os.close(file)
        raise UserError(f"--workdir={workdir} is in use by {holder}; wait for it or name another folder") from error
      logging.warning("%s cannot be locked (%s): start only one process on it", workdir, error.strerror)
    self._file = file
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": datetime.now(UTC).isoformat("T", "seconds")}
    os.ftruncate(file, 0)
    os.pwrite(file, (json.dumps(owner) + "\n").encode(), 0)
    # A forked child shares the lock, which would then outlive this process; closing the child's copy does not unlock.
    os.register_at_fork(after_in_child=self._close)

  def release(self) -> None:
    """Gives the directory free; harmless when repeated. The file stays: removing it would let two processes in."""
    if self._file is not None:
      fcntl.flock(self._file, fcntl.LOCK_UN)
    self._close()

  def _close(self) -> None:
    if self._file is not None:
      os.close(self._file)
      self._file = None

  def __enter__(self) -> "RunLock":
    return self

  def __exit__(self, *_) -> None:
    self.release()


def _holder(file: int) -> str:
  """Says who wrote the lock file: "process 4711 on node17 since …"."""
  try:
    owner = json.loads(os.pread(file, 4096, 0))
    return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
  except (ValueError, KeyError, TypeError):  # it was caught between locking and writing
    return "another process"


def write_text_atomically(path: str | os.PathLike, text: str) -> None:
  """Writes a UTF-8 file that appears at once and whole, also when the machine stops in between.

  Args:
    path: the file; its folder must exist. An existing file is replaced.
    text: its content, written as it is (line ends are not translated).

  Raises:
    OSError: the folder cannot be written; an existing file is then as it was.
  """
  write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: str | os.PathLike, content: bytes) -> None:
  """`write_text_atomically` for bytes."""
  path = Path(path)
  temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
  try:
    with open(temporary, "wb") as stream:
      stream.write(content)
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(temporary, path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
  sync_folder(path.parent)


def write_json_atomically(path: str | os.PathLike, value: Any) -> None:
  """Writes JSON that people read too: keys in their order, two spaces, non-ASCII text as it is.

  Args:
    path: the file; its folder must exist. An existing file is replaced.
    value: dictionaries, lists, strings, numbers (NumPy's and JAX's scalars too), booleans and None. NaN and infinities,
      which JSON does not have, become null.
  """
  write_text_atomically(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
  """Returns `value` with nothing but what JSON has: see `write_json_atomically`."""
  if isinstance(value, dict):
    return {str(key): plain(entry) for key, entry in value.items()}
  if isinstance(value, list | tuple):
    return [plain(entry) for entry in value]
  if isinstance(value, str | bool | int) or value is None:
    return value
  kind = np.asarray(value).dtype.kind
  if kind in "bui":
    return bool(value) if kind == "b" else int(value)
  value = float(value)
  return value if math.isfinite(value) else None


def sync_folder(folder: str | os.PathLike) -> None:
  """Makes the renames in a folder survive a power failure."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:  # some network file systems cannot, and need not
    if error.errno not in (errno.EINVAL, errno.ENOTSUP):
      raise
  finally:
    os.close(descriptor)
