"""Several runs that train as one program, for sweeps over seeds, dropout, label smoothing and learning rates.

Only the update is shared (`training/vectorised.py`). Everything else is a run's own (`training/lanes.py`), as in `train`:
its directory, the order of its data, its checkpoints, metrics, early stopping and end. So a run directory does not tell how
it was trained: a run that stopped here can go on in a `train` of its own, and the other way round, and the results agree
within rounding.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax import train as single
from transformer_jax.checks import check, fields
from transformer_jax.compilation import use_compilation_cache
from transformer_jax.data.batches import Batch
from transformer_jax.data.prepared import PreparedData
from transformer_jax.errors import Stopped, UserError
from transformer_jax.model.build import build_model
from transformer_jax.screen import show_data, show_model, show_start_together
from transformer_jax.tasks import task_of
from transformer_jax.training import step as step_programs
from transformer_jax.training.lanes import Lane, OpenRun, open_run
from transformer_jax.training.preemption import Preemption
from transformer_jax.training.progress import Progress, ProgressOfRun, new_console
from transformer_jax.training.resuming import Start
from transformer_jax.training.step import StepMetrics, TrainState
from transformer_jax.training.vectorised import SETTINGS, Programs, make_programs, stacked_batches, stacked_states

MAY_DIFFER = ("seed", *SETTINGS)

Outcome = dict[str, Any] | UserError


def check_together(configs: Sequence[ConfigDict]) -> None:
  """Raises UserError, naming the field, where runs cannot train as one program. Asks nothing of the machine.

  They may differ in `MAY_DIFFER` and in nothing else, and all batches must have one shape.
  """
  if not configs:
    raise UserError("there is no run to train")
  first = dict(fields(configs[0]))
  for config in configs:
    check(config)
    for name, value in fields(config):
      if value != first[name] and name not in MAY_DIFFER:
        raise UserError(
          f"{name} is {first[name]!r} in one run and {value!r} in another: runs that train together may differ in "
          f"{', '.join(MAY_DIFFER)} only; train these apart"
        )
  if not configs[0].batch.packing:
    raise UserError("batch.packing must be True for runs that train together: their batches would differ in shape")
  if configs[0].model.kernel == "cudnn":
    raise UserError('model.kernel "cudnn" cannot be vectorised over runs: use "xla" for runs that train together')


def train_together(configs: Sequence[ConfigDict], workdirs: Sequence[str | Path]) -> list[Outcome]:
  """Trains several runs as one program, or goes on with each of them where an earlier start stopped.

  Args:
    configs: what to train; see `check_together` for what may differ.
    workdirs: the run directory of each.

  Returns:
    For each run the content of its `results.json`, or the error that it failed with while the others went on (training
    that does not stay finite).

  Raises:
    UserError: a mistake in a configuration or the data, or runs that do not go together; all run directories are then as
      they were.
    Stopped: a signal came; every run that was not at its end has saved a checkpoint.
  """
  check_together(configs)
  directories = [Path(workdir) for workdir in workdirs]
  for number, workdir in enumerate(directories):
    if workdir.resolve() in (other.resolve() for other in directories[:number]):
      raise UserError(f"two runs have the run directory {workdir}: give each its own")
  mesh, console = mesh_of_one_device(), new_console()
  with contextlib.ExitStack() as held:
    runs = [open_run(held, config, workdir) for config, workdir in zip(configs, directories, strict=True)]
    unfinished = [run for run in runs if run.start is not Start.FINISHED]
    outcomes = dict(zip((run.workdir for run in unfinished), train_runs(unfinished, mesh, console), strict=True))
    for run in runs:
      if run.start is Start.FINISHED:
        outcomes[run.workdir] = single.show_saved_results(console, run.config, run.workdir)
    return [outcomes[workdir] for workdir in directories]


def mesh_of_one_device() -> Mesh:
  """The mesh to train on; raises UserError where runs cannot train together here."""
  mesh = step_programs.data_mesh()
  if mesh.devices.size > 1:
    raise UserError(
      f"runs train together on one device, and here are {mesh.devices.size}: let JAX see one of them "
      "(CUDA_VISIBLE_DEVICES=0, JAX_NUM_CPU_DEVICES=1), or train the runs apart"
    )
  # Other kinds of keys give other numbers under vmap than in a run of its own.
  kind = str(jax.random.key_impl(jax.random.key(0)))
  if kind != "threefry2x32":
    raise UserError(f"jax_default_prng_impl is {kind}: runs train together with threefry2x32 only")
  return mesh


def train_runs(runs: list[OpenRun], mesh: Mesh, console: Console) -> list[Outcome]:
  """Trains and ends runs that are not finished; returns what became of each."""
  if not runs:
    return []
  config = runs[0].config
  single.check_devices(config)
  for change in dict.fromkeys(change for run in runs for change in run.changes):
    logging.warning("%s", change)
  use_compilation_cache(config)

  # Data: each run's in the order that its seed gives.
  show_start_together(console, config, descriptions(runs))
  console.print(f"fetching and encoding the data; what can be used again is kept in {config.data.cache}")
  lanes = make_lanes(runs, rows_multiple=config.training.accumulate)
  check_shapes(lanes)
  data = lanes[0].data
  show_data(console, config, data)

  # Program and states. It is compiled before anything is written: memory runs out here or never.
  training = [lane for lane in lanes if lane.trains()]
  model = build_model(config, data.vocabularies.source.size, data.vocabularies.target.size)
  programs = make_programs([lane.config for lane in training or lanes], model, data.train_plan.shapes[0], mesh)
  for lane in lanes:
    lane.place_given_params(programs)
  console.print("compiling")
  seconds_per_step = compile_step(programs, training, mesh) if training else 0.0
  state = stacked_states([lane.initial_state(programs) for lane in training]) if training else None
  for lane in lanes:
    single.write_start(lane.config, lane.run.workdir, lane.run.start, lane.data.vocabularies)
  done, abstract = min(lane.place.step for lane in lanes), programs.abstract.params
  batches_per_epoch = len(data.train_plan.epoch(lanes[0].place.epoch))
  show_model(console, abstract, batches_per_epoch, done, config.training.steps, seconds_per_step)

  # Loop.
  with Progress(console, config.training.steps, done) as bar, contextlib.ExitStack() as held, Preemption() as stop:
    parts = ProgressOfRun.of_all(bar, [lane.run.workdir.name for lane in lanes])
    for lane, progress in zip(lanes, parts, strict=True):
      reader = task_of(config).Reader(model, abstract, lane.data.vocabularies, lane.config)
      lane.open(held, training.index(lane) if lane in training else -1, reader, progress)
    if state is not None:
      train_lanes(training, programs, state, mesh, stop)

  # The end, of one run after the other.
  return [end_lane(lane, programs, mesh, console) for lane in lanes]


def descriptions(runs: list[OpenRun]) -> list[str]:
  """A line for each run: its directory, what it does not share with all others, and from where it goes on."""
  values = [dict(fields(run.config)) for run in runs]
  differing = [name for name in MAY_DIFFER if len({value[name] for value in values}) > 1]
  lines = []
  for run, value in zip(runs, values, strict=True):
    facts = [f"{name} {value[name]}" for name in differing]
    if run.newest is not None:
      facts.append(f"going on from the checkpoint of step {run.newest:,}")
    lines.append(f"{run.workdir}: {', '.join(facts)}" if facts else str(run.workdir))
  return lines


def make_lanes(runs: list[OpenRun], rows_multiple: int) -> list[Lane]:
  """Prepares the data of each run; runs with the same seed and without a vocabulary of their own share it."""
  prepared: dict[tuple[int, Path | None], PreparedData] = {}
  lanes = []
  for run in runs:
    vocabularies, given_params = single.starting_point(run.config, run.workdir, run.start, run.newest)
    key = run.config.seed, run.workdir if run.start is Start.CONTINUED else None
    if key not in prepared:
      prepared[key] = task_of(run.config).prepare_data(run.config, vocabularies, rows_multiple=rows_multiple)
    lanes.append(Lane(run, prepared[key], given_params))
  return lanes


def check_shapes(lanes: list[Lane]) -> None:
  """Raises UserError if the runs' arrays differ in shape: a seed can make another vocabulary, or other made-up data."""

  def sizes(lane: Lane) -> dict[str, Any]:
    source, target = (vocabulary.size for vocabulary in lane.data.vocabularies)
    shapes = [tuple(shape) for shape in lane.data.train_plan.shapes]
    return {"vocabularies": (source, target), "batches (rows, source length, target length)": shapes}

  expected = sizes(lanes[0])
  for lane in lanes[1:]:
    for name, size in sizes(lane).items():
      if size != expected[name]:
        raise UserError(
          f"the {name} of {lanes[0].run.workdir} and {lane.run.workdir} differ in size, {expected[name]} and {size}: "
          "train them apart, or give all runs one vocabulary.file"
        )


def compile_step(programs: Programs, lanes: list[Lane], mesh: Mesh) -> float:
  """Compiles the update of all lanes and returns the seconds that another one takes."""

  def begin() -> TrainState:
    return stacked_states([programs.begin(np.uint32(lane.config.seed)) for lane in lanes])

  def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
    return programs.step(state, stacked_batches([batch] * len(lanes), mesh))

  return single.compile_shapes(step, begin, lanes[0].data.train_plan, mesh)


def train_lanes(lanes: list[Lane], programs: Programs, state: TrainState, mesh: Mesh, stop: Preemption) -> None:
  """Updates all lanes until none has an update to make; raises Stopped after a signal."""
  while active := [lane for lane in lanes if lane.trains()]:
    for lane in active:
      lane.read()
    state, step_metrics = programs.step(state, stacked_batches([lane.rows for lane in lanes], mesh))
    for lane in active:
      lane.updated(step_metrics)
    if any(lane.is_save_step() for lane in active):
      for lane in active:
        lane.flush()
      for lane in active:
        if lane.is_save_step() and lane.error is None:
          lane.validate_and_save(programs.lane(state, lane.number), programs, mesh)
      for lane in active:
        lane.recorder.restart_clock()
    step = min(lane.place.step for lane in active)
    if signal := stop.asked(step):
      save_and_stop(active, programs, state, signal, step)
    for lane in active:
      if not lane.trains():
        lane.progress.end()


def save_and_stop(lanes: list[Lane], programs: Programs, state: TrainState, signal: int, step: int) -> NoReturn:
  """Saves a checkpoint of every lane that has none of this step, and raises Stopped."""
  for lane in lanes:
    lane.flush()
    if not lane.is_save_step() and lane.error is None:
      lane.save_extra(programs.lane(state, lane.number))
  for lane in lanes:
    lane.run.checkpoints.wait()
  raise Stopped(signal, step)


def end_lane(lane: Lane, programs: Programs, mesh: Mesh, console: Console) -> Outcome:
  """Ends a run that did not fail; returns its results or its error."""
  if lane.error is None:
    with lane.failing_alone():
      return lane.finish(programs, mesh, console)
  assert lane.error is not None
  return lane.error
