"""What Slurm's queue knows of our jobs. Accounting (sacct) is switched off on many clusters, so only squeue is asked.

A job that has ended is not in the queue, whichever way it ended: the run directory says what came of it.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from transformer_jax.errors import UserError
from transformer_jax.training.rundir import write_json_atomically

JOBS_FILE = "slurm.json"
UNKNOWN_JOB = "Invalid job id specified"  # what squeue says of a single job that ended a while ago


class Queued(NamedTuple):
  """A job in the queue.

  Attributes:
    state: RUNNING, PENDING, COMPLETING, ….
    reason: why it is pending, "Resources" for example; "None" for one that is not.
  """

  state: str
  reason: str

  def __str__(self) -> str:
    """As the table shows it."""
    return f"pending ({self.reason})" if self.state == "PENDING" else self.state.lower()


def queued(jobs: Iterable[str]) -> dict[str, Queued]:
  """Those of some jobs ("17" or, of an array, "17_3") that wait, run or are just ending.

  Raises:
    UserError: the queue cannot be asked.
  """
  wanted = set(jobs)
  if not wanted:
    return {}
  numbers = sorted({job.split("_")[0] for job in wanted}, key=int)
  command = ["squeue", "--noheader", "--array", "--format=%i|%T|%r", f"--jobs={','.join(numbers)}"]
  try:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
  except OSError:
    raise UserError("no squeue here: start launch.slurm on a machine of the cluster") from None
  if done.returncode and UNKNOWN_JOB in done.stderr:
    return {}
  if done.returncode:
    raise UserError(f"squeue cannot tell which runs are queued: {' '.join(done.stderr.split())}")
  found = {}
  for line in done.stdout.splitlines():
    job, state, reason = line.strip().split("|", 2)
    if job in wanted:
      found[job] = Queued(state, reason)
  return found


def state_of_this_job() -> str:
  """The state of the job that this process runs in; "" where it cannot be found out."""
  job = os.environ.get("SLURM_JOB_ID", "")
  if "SLURM_ARRAY_JOB_ID" in os.environ:  # the last task of an array has the array's own number as its SLURM_JOB_ID
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
  try:
    done = subprocess.run(
      ["squeue", "--noheader", "--format=%T", f"--jobs={job}"], capture_output=True, text=True, check=False, timeout=60
    )
  except (OSError, subprocess.TimeoutExpired):
    return ""
  return done.stdout.strip() if done.returncode == 0 else ""


def read_jobs(folder: Path) -> dict[str, str]:
  """Name of a run → the job that it was last submitted as; raises UserError where the file is damaged."""
  try:
    return dict(json.loads((folder / JOBS_FILE).read_text())["jobs"])
  except FileNotFoundError:
    return {}
  except (ValueError, KeyError, TypeError):
    raise UserError(
      f"{folder / JOBS_FILE} is damaged: remove it when no job of the sweep is queued any more (squeue --me)"
    ) from None


def write_jobs(folder: Path, jobs: dict[str, str]) -> None:
  """Notes down which job each run was submitted as."""
  write_json_atomically(folder / JOBS_FILE, {"jobs": jobs})
