"""The lock of the run directory and its atomic files."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.training import rundir
from transformer_jax.training.rundir import RunLock, write_json_atomically, write_text_atomically

HOLDS_THE_LOCK = """
import os, sys, time
from transformer_jax.training.rundir import RunLock
lock = RunLock(sys.argv[1])
if sys.argv[2] == "fork":
  ready, say_ready = os.pipe()
  if os.fork() == 0:
    os.write(say_ready, b"!")
    time.sleep(60)
  os.read(ready, 1)  # the child runs, and has closed its copy of the lock
print("locked", flush=True)
time.sleep(60)
"""


def other_process(workdir, how):
  process = subprocess.Popen(
    [sys.executable, "-c", HOLDS_THE_LOCK, str(workdir), how], stdout=subprocess.PIPE, text=True, start_new_session=True
  )
  assert process.stdout.readline() == "locked\n"
  return process


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_second_process_is_told_and_a_killed_one_leaves_no_lock(tmp_path, how):
  workdir = tmp_path / "runs" / "new"
  holder = other_process(workdir, how)
  try:
    before = (workdir / ".lock").read_bytes()
    with pytest.raises(UserError, match=f"process {holder.pid} on {re.escape(socket.gethostname())}") as refused:
      RunLock(workdir)
    assert "\n" not in str(refused.value) and "--workdir" in str(refused.value)
    assert (workdir / ".lock").read_bytes() == before and os.listdir(workdir) == [".lock"]
    holder.kill()  # with "fork", its child lives on
    holder.wait()
    with RunLock(workdir) as lock:
      assert json.loads(lock.path.read_text())["pid"] == os.getpid()
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(holder.pid, signal.SIGKILL)  # its own session: itself and its child
    holder.stdout.close()


def test_a_lock_is_free_after_release_and_taken_until_then(tmp_path):
  first = RunLock(tmp_path)
  with pytest.raises(UserError, match="in use"):
    RunLock(tmp_path)
  first.release()
  first.release()
  RunLock(tmp_path).release()


def test_a_workdir_that_cannot_be_made_is_the_users_mistake(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="--workdir="):
    RunLock(tmp_path / "file")
  with pytest.raises(UserError, match="--workdir="):
    RunLock(tmp_path / "file" / "below")


def test_json_is_readable_and_has_no_nan(tmp_path):
  value = {"b": np.float32(0.5), "a": [float("nan"), jnp.float32(2), np.int64(3), True, None, "Ä"], "c": {"d": jnp.inf}}
  write_json_atomically(tmp_path / "x.json", value)
  text = (tmp_path / "x.json").read_text()
  assert json.loads(text) == {"b": 0.5, "a": [None, 2.0, 3, True, None, "Ä"], "c": {"d": None}}
  assert text.index('"b"') < text.index('"a"') and "Ä" in text and text.endswith("}\n")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
  write_text_atomically(tmp_path / "x", "old\r\n")
  monkeypatch.setattr(rundir.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
  with pytest.raises(OSError, match="disk full"):
    write_text_atomically(tmp_path / "x", "new")
  assert (tmp_path / "x").read_bytes() == b"old\r\n" and os.listdir(tmp_path) == ["x"]
