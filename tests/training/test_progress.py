"""`metrics.jsonl` across a kill, and the screen with and without a terminal."""

import json
import os
import pty
import re
import select
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from transformer_jax.training.progress import Metrics, duration, read_metrics


def run(workdir, first, last, resume_step, clock):
  """Writes what a training run writes: a line every 10 steps, a validation every 50."""
  metrics = Metrics(workdir, resume_step)
  for step in range(first, last + 1, 10):
    metrics.write(step, "train", {"loss": np.float32(7.1) / step, "learning_rate": 1e-3}, {"seconds": clock * step})
    if step % 50 == 0:
      metrics.write(step, "valid", {"nll": jnp.float32(3.3) / step, "best": step == 50})
  metrics.close()


def without_time(workdir):
  return [{**line, "time": None} for line in read_metrics(workdir / "metrics.jsonl")]


def test_a_killed_and_resumed_run_has_the_lines_of_an_undisturbed_one(tmp_path):
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  whole.mkdir()
  killed.mkdir()
  run(whole, 10, 200, None, 1.0)
  run(killed, 10, 130, None, 2.0)
  early = (killed / "metrics.jsonl").read_bytes().split(b"\n")[:12]  # 10 lines of training, 2 validations
  with (killed / "metrics.jsonl").open("ab") as file:
    file.write(b'{"step": 90, "split": "trai')  # killed while it wrote
  run(killed, 110, 200, 100, 3.0)
  assert without_time(killed) == without_time(whole) and len(without_time(whole)) == 24
  assert (killed / "metrics.jsonl").read_bytes().split(b"\n")[:12] == early
  assert sorted(os.listdir(killed)) == ["metrics.jsonl", "tensorboard"]


def test_a_run_from_the_beginning_drops_every_earlier_line(tmp_path):
  run(tmp_path, 1, 31, None, 1.0)
  run(tmp_path, 1, 21, None, 1.0)
  assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl") if line["split"] == "train"] == [1, 11, 21]


def test_a_line_is_in_the_file_at_once_and_is_plain_json(tmp_path):
  metrics = Metrics(tmp_path)
  value = np.float32(0.1)
  metrics.write(1, "train", {"loss": float("nan"), "norm": jnp.inf, "nll": value, "note": "a\u2028b"}, {"seconds": 2})
  line = json.loads(
    (tmp_path / "metrics.jsonl").read_text("utf-8").removesuffix("\n"), parse_constant=lambda name: pytest.fail(name)
  )
  assert line["loss"] is None and line["norm"] is None and line["note"] == "a\u2028b" and line["time"] == {"seconds": 2}
  assert np.float32(line["nll"]) == value
  assert list(line) == ["step", "split", "loss", "norm", "nll", "note", "time"]
  metrics.close()


def events(folder):
  """All TensorBoard events of a folder, file by file: length, CRC, event, CRC."""
  for path in sorted(folder.iterdir()):
    content, start = path.read_bytes(), 0
    while start < len(content):
      length = int.from_bytes(content[start : start + 8], "little")
      yield Event.FromString(content[start + 12 : start + 12 + length])
      start += 16 + length


def test_tensorboard_gets_the_numbers_and_is_told_where_a_run_went_on(tmp_path):
  run(tmp_path, 10, 60, None, 1.0)
  run(tmp_path, 60, 70, 50, 1.0)
  found = list(events(tmp_path / "tensorboard"))
  scalars = {(event.step, value.tag): value.simple_value for event in found for value in event.summary.value}
  assert scalars[70, "train/loss"] == pytest.approx(7.1 / 70)
  assert scalars[50, "valid/nll"] == pytest.approx(3.3 / 50)
  assert scalars[70, "train_time/seconds"] == 70
  assert [event.step for event in found if event.session_log.status == SessionLog.START] == [0, 51]


SHOWS_PROGRESS = """
import sys, time
from absl import logging
from transformer_jax.training.progress import Progress, facts_table, new_console, samples_table
console = new_console()
console.print(facts_table({"device": "[bold]2 CPU cores[/bold] :smile:"}))
with Progress(console, total=6000, start=1000, seconds_between_lines=0.0) as progress:
  for step in (1010, 1020, 6000):
    progress.update(step, loss=1.25, perplexity=4.75, tokens_per_second=8123.4)
    time.sleep(0.6 if console.is_terminal else 0.1)
  logging.warning("something is odd")
  progress.print("plain [bold]text[/bold] :smile: [1]")
  progress.print(samples_table([("Turn [on] $x", "Ein\\x1b[31m", "\\u2028漢")]))
"""


def on_terminal(columns):
  """What a terminal receives from SHOWS_PROGRESS."""
  main, other = pty.openpty()
  environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "30"}
  process = subprocess.Popen([sys.executable, "-c", SHOWS_PROGRESS], stdout=other, stderr=other, env=environment)
  os.close(other)
  received = b""
  while select.select([main], [], [], 60)[0]:
    try:
      received += os.read(main, 65536)
    except OSError:  # Linux: the other side is closed
      break
  os.close(main)
  assert process.wait() == 0
  return received.decode()


def test_the_bar_on_a_terminal():
  received = on_terminal(80)
  assert "━" in received and "\x1b[" in received
  last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received.replace("\r", "\n"))
  assert re.search(r"━ 1,020/6,000  loss 1\.250  perplexity 4\.75  8,123 tokens/s  \d+:\d\d(:\d\d)? left", last)
  assert all(len(line) <= 80 for line in last.split("\n"))
  assert "\nWARNING:absl:something is odd" in last  # on a line of its own, above the bar
  assert received.count("\x1b[?25h") >= 1 and received.rindex("\x1b[?25h") > received.rindex("\x1b[?25l")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_lines_without_escapes_where_there_is_no_terminal(encoding):
  environment = {**os.environ, "PYTHONIOENCODING": encoding}
  result = subprocess.run([sys.executable, "-c", SHOWS_PROGRESS], capture_output=True, env=environment, check=True)
  output = result.stdout.decode(encoding)
  assert "\x1b" not in output and "━" not in output
  assert "[bold]2 CPU cores[/bold] :smile:" in output
  assert "1,010/6,000  loss 1.250  perplexity 4.75  8,123 tokens/s" in output
  assert re.search(r"1,020/6,000 .* elapsed, \d+:\d\d(:\d\d)? left\n", output)
  assert re.search(r"6,000/6,000 .* elapsed\n", output)
  assert "plain [bold]text[/bold] :smile: [1]\n" in output
  assert "Turn [on] $x" in output and "Ein\\x1b[31m" in output and "\\u2028" in output
  assert "something is odd" in result.stderr.decode(encoding) and "something is odd" not in output


def test_durations_are_readable():
  assert [duration(s) for s in (0.4, 59.6, 723, 11045, 270245)] == ["0:00", "1:00", "12:03", "3:04:05", "3 d 3:04:05"]
