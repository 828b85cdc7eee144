"""Runs an experiment on a cluster with Slurm: one job array, with a task for each run that is missing.

  python -m launch.slurm experiments/table3.py --scale=small --output=DIR --partition=gpu --gpus=1 --time_min=240

It submits and returns; DIR must lie on a file system that all machines share. The same line again submits what is missing and not
queued; with --status it submits nothing and shows how far the runs are, with --wait it stays until the last one has ended. A run
that reaches its time limit or is preempted saves a checkpoint, is queued again and goes on from it.
"""

import contextlib
import io
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from absl import flags
from submitit.core.utils import FailedJobError, FailedSubmissionError

from launch.arguments import Line, read_line
from launch.runs import Run, runs_of
from launch.slurm_job import TrainRun
from launch.slurm_queue import Queued, queued, read_jobs, write_jobs
from launch.table import Watch, live_table, new_table_console, runs_table
from transformer_jax.commands import run_command
from transformer_jax.errors import UserError

SUBMITIT_FOLDER = "slurm"
SECONDS_BETWEEN_LOOKS = (1.0, 15.0)  # with --wait: at first, and after some minutes


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of this launcher, beside those of all."""
  texts = {
    "partition": "partition; left out: the cluster's default",
    "account": "account to charge; left out: your default",
    "qos": "quality of service; left out: your default",
  }
  for name, text in texts.items():
    flags.DEFINE_string(name, None, text, flag_values=values)
  numbers = {
    "time_min": (240, 1, "time limit of a job in minutes; a run that needs longer is queued again, and goes on"),
    "warning_seconds": (120, 30, "how long before its time limit a run is told to save"),
    "max_timeouts": (20, 0, "how many time limits a run may use up before it counts as failed"),
    "nodes": (1, 1, "machines for each run"),
    "tasks_per_node": (1, 1, "processes on each machine; several train together"),
    "gpus": (0, 0, "GPUs on each machine"),
    "cpus": (0, 0, "CPU cores for each process; 0: as the experiment says"),
    "mem_gb": (0, 0, "memory on each machine in GB; 0: the cluster's default"),
    "array_parallelism": (0, 0, "runs at a time; 0: all"),
  }
  for name, (default, least, text) in numbers.items():
    flags.DEFINE_integer(name, default, text, lower_bound=least, flag_values=values)
  flags.DEFINE_multi_string("setup", [], "shell line for the start of a job; can be repeated", flag_values=values)
  flags.DEFINE_multi_string(
    "sbatch", [], "any other option of sbatch, constraint=h100 or exclusive; can be repeated", flag_values=values
  )
  flags.DEFINE_boolean("status", False, "submit nothing, show how far the runs are", flag_values=values)
  flags.DEFINE_boolean(
    "wait", False, "stay until the last run has ended, and show how far they are", flag_values=values
  )


def main(arguments: list[str]) -> None:
  """The command."""
  line = read_line(arguments, define_flags, __doc__, "launch.slurm")
  parameters = job_parameters(line.values, line.experiment.cores, Path(line.origin["experiment"]).stem)
  if line.values.status:
    runs = runs_of(line.folder)
  else:
    if not shutil.which("sbatch"):
      raise UserError("no sbatch here: start launch.slurm on a machine of the cluster; launch.local needs none")
    runs = line.prepare()
    submit_missing(line, runs, parameters)
  if line.values.wait:
    wait(runs, line.folder)
    failed = [run.name for run in runs if not run.finished()]
    print(f"report: python -m experiments.report {line.folder}")
    if failed:
      print(f"{len(failed)} of {len(runs)} runs are not done: {', '.join(failed)}; see {line.folder}/failed")
      sys.exit(1)
  elif line.values.status:
    watches = QueueWatch.of(runs, line.folder)
    new_table_console().print(runs_table(watches))


def job_parameters(values: flags.FlagValues, cores: int, name: str) -> dict[str, Any]:
  """What submitit is to ask Slurm for; raises UserError for what cannot be asked for."""
  if values.warning_seconds >= 60 * values.time_min:
    raise UserError(
      f"--warning_seconds={values.warning_seconds} is no less than --time_min={values.time_min}: "
      "a run would be told to save as soon as it starts"
    )
  cpus = values.cpus or cores
  parameters: dict[str, Any] = {
    "name": name,
    "timeout_min": values.time_min,
    "nodes": values.nodes,
    "tasks_per_node": values.tasks_per_node,
    "cpus_per_task": cpus,
    "slurm_signal_delay_s": values.warning_seconds,
    # srun does not take over the job's number of cores (since Slurm 22.05); a task that fails must not leave the others waiting.
    "slurm_srun_args": [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1"],
    # Slurm signals the script too: it has to outlive its task, which is saving.
    "slurm_setup": ["trap : TERM", *values.setup],
    "slurm_additional_parameters": {"requeue": True, **dict(map(sbatch_option, values.sbatch))},
  }
  if values.gpus:
    parameters["gpus_per_node"] = values.gpus
  if values.mem_gb:
    parameters["mem_gb"] = values.mem_gb
  for option in ("partition", "account", "qos"):
    if values[option].value:
      parameters[f"slurm_{option}"] = values[option].value
  if values.array_parallelism:
    parameters["slurm_array_parallelism"] = values.array_parallelism
  return parameters


def sbatch_option(text: str) -> tuple[str, Any]:
  """An option of --sbatch: its name and its value; raises UserError for one that the launcher needs itself."""
  name, equals, value = text.lstrip("-").partition("=")
  if not name or name in ("array", "signal", "requeue", "no-requeue", "output", "error", "open-mode"):
    raise UserError(f"--sbatch={text}: write NAME=VALUE or NAME; array, signal, requeue and output are set already")
  return name, value if equals else True


def submit_missing(line: Line, runs: Sequence[Run], parameters: Mapping[str, Any]) -> None:
  """Submits the runs that are neither finished nor queued nor at work elsewhere, and says so."""
  jobs = read_jobs(line.folder)
  states = queued(jobs.values())
  waiting = [run for run in runs if not run.finished()]
  elsewhere = Counter(str(states[jobs[run.name]]) for run in waiting if jobs.get(run.name) in states)
  missing = [run for run in waiting if jobs.get(run.name) not in states]
  busy = [run for run in missing if run.busy()]  # launch.local may be at it
  missing = [run for run in missing if run not in busy]
  elsewhere["running elsewhere"] += len(busy)
  told = [f"{count} {state}" for state, count in elsewhere.items() if count]
  told += [f"{len(runs) - len(waiting)} done"] if len(waiting) < len(runs) else []
  rest = f"; {', '.join(told)}" if told else ""
  if missing:
    submitted = submit(missing, line.folder, parameters, line.values.max_timeouts)
    kept = {name: job for name, job in jobs.items() if job in states}
    write_jobs(line.folder, kept | submitted)
    number = next(iter(submitted.values())).split("_")[0]
    print(f"submitted {len(missing)} of {len(runs)} runs as job {number}{rest}")
    print(f"stop:   scancel {number}")
  else:
    print(f"nothing to submit{rest}")
  if not line.values.wait:
    own = "".join(f" --experiment.{name}={value}" for name, value in line.options.items())
    options = f"{line.origin['experiment']} --scale={line.values.scale} --output={line.folder}{own}"
    print(f"look:   python -m launch.slurm {options} --status")
    print(f"report: python -m experiments.report {line.folder}")


def submit(runs: Sequence[Run], folder: Path, parameters: Mapping[str, Any], max_timeouts: int) -> dict[str, str]:
  """Submits runs as one job array; returns the job of each.

  Raises:
    UserError: Slurm does not take it; it says why.
  """
  own = folder.absolute() / SUBMITIT_FOLDER
  own.mkdir(exist_ok=True)
  before = set(own.iterdir())
  executor = submitit.AutoExecutor(own, cluster="slurm", slurm_max_num_timeout=max_timeouts)
  executor.update_parameters(**{"slurm_array_parallelism": len(runs), **parameters})
  cores = parameters["cpus_per_task"]
  tasks = [TrainRun(Run(folder.absolute(), run.setting), cores) for run in runs]
  errors = io.StringIO()  # submitit prints what it raises, too
  try:
    with contextlib.redirect_stderr(errors), outside_of_a_job():
      jobs = executor.submit_array(tasks)
  except (FailedJobError, FailedSubmissionError) as error:
    for left in set(own.iterdir()) - before:
      left.unlink()
    raise UserError(f"Slurm does not take the job: {' '.join(str(error).split())}") from None
  return {run.name: job.job_id for run, job in zip(runs, jobs, strict=True)}


@contextlib.contextmanager
def outside_of_a_job() -> Iterator[None]:
  """Hides the job that we may be in ourselves (an interactive one): sbatch would take its options over from there."""
  hidden = {}
  if "SLURM_JOB_ID" in os.environ:
    taken = [name for name in os.environ if name.startswith(("SLURM_", "SLURMD_", "SRUN_"))]
    hidden = {name: os.environ.pop(name) for name in taken if name != "SLURM_CONF"}
  try:
    yield
  finally:
    os.environ.update(hidden)


def wait(runs: Sequence[Run], folder: Path) -> None:
  """Shows how far the runs are until none is queued. Ctrl-C ends the looking, not the jobs."""
  console = new_table_console()
  watches = QueueWatch.of(runs, folder)
  first, longest = SECONDS_BETWEEN_LOOKS
  pause = first
  try:
    with live_table(console) as live:
      while any(watch.queued for watch in watches):
        if live:
          live.update(runs_table(watches, console.height - 4), refresh=True)
        time.sleep(pause)
        pause = min(longest, pause * 1.1)
        QueueWatch.look(watches)
      if live:
        live.update(runs_table(watches), refresh=True)
  except KeyboardInterrupt:
    print("the jobs go on; the same line with --status shows them", file=sys.stderr)
    raise
  if not console.is_terminal:
    console.print(runs_table(watches))


class QueueWatch(Watch):
  """Follows a run by its files and by its job in the queue.

  Attributes:
    job: which it was last submitted as; "" if it never was.
    queued: the job as it stands in the queue; None: it is not there.
  """

  def __init__(self, run: Run, job: str):
    super().__init__(run)
    self.job = job
    self.queued: Queued | None = None

  @classmethod
  def of(cls, runs: Sequence[Run], folder: Path) -> "list[QueueWatch]":
    """One for each run, after a first look at the queue."""
    jobs = read_jobs(folder)
    watches = [cls(run, jobs.get(run.name, "")) for run in runs]
    cls.look(watches)
    return watches

  @staticmethod
  def look(watches: "Sequence[QueueWatch]") -> None:
    """Asks the queue, once for all of them."""
    states = queued(watch.job for watch in watches if watch.job)
    for watch in watches:
      watch.queued = states.get(watch.job)
      watch.look_again()

  def state(self) -> str:
    """done, running, pending, failed: why, …; a run whose job ended without a word is pointed out."""
    state = super().state()
    if state == "done":
      return state
    if self.queued is not None:
      return str(self.queued)
    if self.job and state in ("stopped", "waiting"):
      return f"ended: see {SUBMITIT_FOLDER}/{self.job}_0_log.err"
    return state


if __name__ == "__main__":
  run_command(main)
