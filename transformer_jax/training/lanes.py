"""Runs that train together, each with all that is its own: directory, data, place, checkpoints, metrics, end."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax import train as single
from transformer_jax.data.batches import Batch
from transformer_jax.data.prepared import PreparedData
from transformer_jax.errors import UserError
from transformer_jax.results import finish_run
from transformer_jax.screen import show_results
from transformer_jax.tasks import Reader
from transformer_jax.training.checkpoints import Checkpoints
from transformer_jax.training.feed import read_ahead
from transformer_jax.training.progress import Metrics, ProgressOfRun
from transformer_jax.training.recorder import Recorder
from transformer_jax.training.resuming import Place, Start, check_start
from transformer_jax.training.step import StepMetrics, TrainState
from transformer_jax.training.validation import mean_loss
from transformer_jax.training.vectorised import Programs


class OpenRun(NamedTuple):
  """A run whose directory is held by this process."""

  config: ConfigDict
  workdir: Path
  checkpoints: Checkpoints
  start: Start
  newest: int | None  # the checkpoint to go on from
  changes: list[str]  # of the configuration since the run was started


def open_run(held: contextlib.ExitStack, config: ConfigDict, workdir: Path) -> OpenRun:
  """Takes hold of a run directory until `held` is closed; raises UserError if the configuration does not fit what is there."""
  held.enter_context(single.claimed(workdir))
  checkpoints = held.enter_context(contextlib.closing(single.open_checkpoints(config, workdir)))
  start, changes = check_start(config, workdir)
  newest = None if start is Start.FINISHED else single.newest_checkpoint(config, workdir, start, checkpoints)
  return OpenRun(config, workdir, checkpoints, start, newest, changes)


class Lane:
  """A run on its way from its start to its end.

  Attributes:
    place: where it stands; lanes may stand at different steps.
    error: what it failed with while the others went on.
    number: which entry of the arrays of all lanes is its own.
    rows: its batch of the current update. Where there are no more updates to make the last one stays, and what the program
      makes of it is looked at no more.
  """

  number: int
  rows: Batch

  def __init__(self, run: OpenRun, data: PreparedData, given_params: PyTree):
    """`given_params`: those of `init_from`, for a run without a checkpoint."""
    self.run, self.config, self.data, self.given_params = run, run.config, data, given_params
    self.place = Place() if run.newest is None else single.saved_place(run.checkpoints, run.newest)
    self.error: UserError | None = None

  def trains(self) -> bool:
    """Whether there is an update to make."""
    at_end = self.place.step == self.config.training.steps or single.out_of_patience(self.config, self.place)
    return not at_end and self.error is None

  def place_given_params(self, programs: Programs) -> None:
    """Puts the parameters of `init_from` on the device; raises UserError if they are another model's."""
    if self.given_params is not None:
      abstract, shardings = programs.abstract.params, programs.shardings.params
      self.given_params = single.place_params(
        self.given_params, abstract, shardings, self.config.init_from, self.config.task
      )

  def initial_state(self, programs: Programs) -> TrainState:
    """The state of its newest checkpoint, or a new one."""
    if self.run.newest is not None:
      return self.run.checkpoints.restore(self.run.newest, single.placed_at(programs.abstract, programs.shardings))
    state = programs.begin(np.uint32(self.config.seed))
    if self.given_params is not None:
      state = state._replace(params={**state.params, **self.given_params})
    return state

  def open(self, held: contextlib.ExitStack, number: int, reader: Reader, progress: ProgressOfRun) -> None:
    """Opens what updates read from and write to, until `held` is closed."""
    self.number, self.reader, self.progress = number, reader, progress
    self.metrics = held.enter_context(contextlib.closing(Metrics(self.run.workdir, self.run.newest)))
    self.recorder = Recorder(self.config.training, self.metrics, progress, self.place, number)
    self.batches = held.enter_context(
      contextlib.closing(read_ahead(self.data.train_plan, self.place.epoch, self.place.batch))
    )

  def read(self) -> None:
    """Takes the next batch."""
    epoch, batch, self.rows = next(self.batches)
    self.after = epoch, batch

  def updated(self, step_metrics: StepMetrics) -> None:
    """Takes note of the update with that batch; `step_metrics` are those of all lanes."""
    self.place.step += 1
    self.place.epoch, self.place.batch = self.after
    with self.failing_alone():
      self.recorder.add(step_metrics)

  def flush(self) -> None:
    """Writes out the metrics of the updates so far."""
    with self.failing_alone():
      self.recorder.flush()

  @contextlib.contextmanager
  def failing_alone(self) -> Iterator[None]:
    """Keeps an error of this run from the others."""
    try:
      yield
    except UserError as error:
      self.error = error.with_traceback(None)  # its frames hold arrays
      self.progress.print(f"error: {error}")

  def is_save_step(self) -> bool:
    """Whether a checkpoint follows the update just made."""
    return single.is_validation_step(self.config, self.place) or single.is_checkpoint_step(self.config, self.place)

  def validate_and_save(self, state: TrainState, programs: Programs, mesh: Mesh) -> None:
    """Does what `train` does at such a step, with this run's own state."""
    figure = None
    if single.is_validation_step(self.config, self.place):
      valid, reader = self.loss(state.params, programs, mesh), self.reader.with_params(state.params)
      figure = single.take_down_validation(
        self.config, self.place, valid, self.progress, self.metrics, reader, self.data
      )
    self.run.checkpoints.save(self.place.step, state, single.metadata_of(self.place), figure)

  def save_extra(self, state: TrainState) -> None:
    """Saves a checkpoint that an undisturbed run would not have."""
    self.run.checkpoints.save(self.place.step, state, single.metadata_of(self.place), extra=True)

  def loss(self, params: PyTree, programs: Programs, mesh: Mesh) -> dict[str, float]:
    """The validation loss of these parameters."""
    smoothing = self.config.training.label_smoothing
    return mean_loss(
      lambda params, batch: programs.evaluate(params, batch, smoothing), params, self.data.valid_plan, mesh
    )

  def finish(self, programs: Programs, mesh: Mesh, console: Console) -> dict[str, Any]:
    """Ends the run as `train` does; returns the content of `results.json`."""
    config, workdir = self.config, self.run.workdir
    like = single.placed_at(programs.abstract.params, programs.shardings.params)
    params, averaged = single.save_final_params(config, workdir, self.run.checkpoints, self.place, like)
    valid, reader = self.loss(params, programs, mesh), self.reader.with_params(params)
    results = finish_run(config, workdir, console, reader, self.data, self.place, valid, averaged)
    show_results(console, config, results, workdir)
    return results
