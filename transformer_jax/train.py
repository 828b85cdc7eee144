"""The training run, read from top to bottom: data, mesh, state, step, loop, evaluation, checkpoint, final model."""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict
from rich.console import Console

from transformer_jax import processes
from transformer_jax.allocator import use_huge_pages
from transformer_jax.checks import load_saved_config
from transformer_jax.compilation import use_compilation_cache
from transformer_jax.data.batches import Batch, Plan, Shape
from transformer_jax.data.prepared import PreparedData
from transformer_jax.data.vocabulary import Vocabularies, load_vocabularies, save_vocabularies
from transformer_jax.errors import Stopped, UserError
from transformer_jax.model.build import build_model
from transformer_jax.results import finish_run
from transformer_jax.screen import show_data, show_model, show_results, show_start
from transformer_jax.tasks import Reader, task_of
from transformer_jax.training import step as programs
from transformer_jax.training.checkpoints import Checkpoints, load_final, save_final
from transformer_jax.training.feed import batches, empty_batch
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer
from transformer_jax.training.preemption import Preemption
from transformer_jax.training.progress import Metrics, Progress, new_console
from transformer_jax.training.recorder import Recorder, perplexity
from transformer_jax.training.resuming import Place, Start, check_start, environment, warn_about_environment
from transformer_jax.training.rundir import RunLock, write_json_atomically
from transformer_jax.training.step import StepMetrics, TrainState
from transformer_jax.training.validation import mean_loss


def train(config: ConfigDict, workdir: str | Path) -> dict[str, Any]:
  """Trains what `config` describes, or goes on where an earlier start in `workdir` stopped.

  Of several processes (`transformer_jax.processes`) all call it, and only process 0 writes.

  Returns: the content of `results.json`.

  Raises:
    UserError: a mistake in the configuration or the data (the run directory is then as it was), or training that does not
      stay finite.
  """
  workdir, console = Path(workdir), new_console()
  with claimed(workdir), contextlib.closing(open_checkpoints(config, workdir)) as checkpoints:
    start, changes = processes.from_first(check_start, config, workdir)
    if start is Start.FINISHED:
      return show_saved_results(console, config, workdir)
    check_devices(config)
    task = task_of(config)
    newest = newest_checkpoint(config, workdir, start, checkpoints)
    for change in changes:
      logging.warning("%s", change)
    use_compilation_cache(config)

    # Data. The vocabulary belongs to the run; the encoded corpora lie in the cache that all runs share.
    mesh = programs.data_mesh()
    show_start(console, config, workdir, newest)
    console.print(f"fetching and encoding the data; what can be used again is kept in {config.data.cache}")
    vocabularies, given_params = starting_point(config, workdir, start, newest)
    data = prepare_data(config, vocabularies, mesh)
    show_data(console, config, data)

    # Model, optimizer, and where each array of the state lies.
    model = build_model(config, data.vocabularies.source.size, data.vocabularies.target.size)
    schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    begin: Callable[[], TrainState] = functools.partial(
      programs.initial_state, model, optimizer, empty_batch(data.train_plan.shapes[0]), config.seed
    )
    abstract = jax.eval_shape(begin)
    shardings = programs.state_shardings(abstract, mesh, config.training.fsdp)
    begin = jax.jit(begin, out_shardings=shardings)
    if given_params is not None:
      given_params = place_params(given_params, abstract.params, shardings.params, config.init_from, config.task)

    # Programs, compiled now for every shape of batch, the largest first: memory runs out here or never.
    smoothing, accumulate = config.training.label_smoothing, config.training.accumulate
    update = programs.make_train_step(model, optimizer, schedule, smoothing, accumulate)
    train_step = programs.compile_train_step(update, shardings, mesh)
    eval_step = programs.compile_eval_step(model, smoothing, shardings.params, mesh)
    console.print("compiling")
    seconds_per_step = compile_shapes(train_step, begin, data.train_plan, mesh)

    # State: of the newest intact checkpoint, or new.
    if newest is not None:
      place = saved_place(checkpoints, newest)
      state = checkpoints.restore(newest, placed_at(abstract, shardings))
    else:
      state, place = begin(), Place()
      if given_params is not None:
        state = state._replace(params={**state.params, **given_params})
    if processes.is_first():
      write_start(config, workdir, start, data.vocabularies)
    batches_per_epoch = len(data.train_plan.epoch(place.epoch))
    show_model(console, abstract.params, batches_per_epoch, place.step, config.training.steps, seconds_per_step)

    # Loop.
    reader = task.Reader(model, state.params, data.vocabularies, config)
    metrics = Metrics(workdir, newest)
    with (
      Progress(console, config.training.steps, place.step) as progress,
      contextlib.closing(metrics),
      Preemption() as stop,
    ):
      recorder = Recorder(config.training, metrics, progress, place)
      for epoch, batch_number, batch in batches(data.train_plan, mesh, place.epoch, place.batch):
        if place.step == config.training.steps or out_of_patience(config, place):
          break
        state, step_metrics = train_step(state, batch)
        place.step, place.epoch, place.batch = place.step + 1, epoch, batch_number
        recorder.add(step_metrics)
        figure = None
        if is_validation_step(config, place):
          recorder.flush()
          valid = mean_loss(eval_step, state.params, data.valid_plan, mesh)
          shown = reader.with_params(processes.on_own_devices(state.params))
          figure = take_down_validation(config, place, valid, progress, metrics, shown, data)
        if figure is not None or is_checkpoint_step(config, place):
          recorder.flush()
          checkpoints.save(place.step, state, metadata_of(place), figure)
          recorder.restart_clock()
        if signal := stop.asked(place.step):
          recorder.flush()
          if figure is None and not is_checkpoint_step(config, place):
            checkpoints.save(place.step, state, metadata_of(place), extra=True)
          checkpoints.wait()
          raise Stopped(signal, place.step)

    # The end: the mean of the last checkpoints, its validation loss, its test translations.
    like = placed_at(abstract.params, shardings.params)
    params, averaged = save_final_params(config, workdir, checkpoints, place, like)
    valid = mean_loss(eval_step, params, data.valid_plan, mesh)
    reader = reader.with_params(processes.on_own_devices(params))
    results = processes.from_first(finish_run, config, workdir, console, reader, data, place, valid, averaged)
    show_results(console, config, results, workdir)
    return results


@contextlib.contextmanager
def claimed(workdir: Path) -> Iterator[None]:
  """Keeps other runs out of the run directory, and leaves no trace of a start that failed before the run began."""
  if not processes.is_first():
    processes.wait_for_first()
    yield
    return
  with RunLock(workdir) as lock:
    try:
      processes.wait_for_first()
      yield
    finally:
      if not (workdir / "config.json").exists():
        with contextlib.suppress(OSError):  # whatever else lies there is not ours, and stays
          (workdir / "checkpoints").rmdir()
          lock.path.unlink()
          workdir.rmdir()


def open_checkpoints(config: ConfigDict, workdir: Path) -> Checkpoints:
  """The checkpoints of the run in `workdir`."""
  training = config.training
  return Checkpoints(workdir / "checkpoints", training.keep, training.keep_best, training.average)


def newest_checkpoint(config: ConfigDict, workdir: Path, start: Start, checkpoints: Checkpoints) -> int | None:
  """The step that the run goes on from, None for its beginning; raises UserError if that is beyond `training.steps`."""
  newest = None if start is Start.NEW else checkpoints.newest()
  if newest is not None and newest > config.training.steps:
    raise UserError(
      f"training.steps is {config.training.steps:,}, but {workdir} is trained for {newest:,} steps already: nothing was changed"
    )
  return newest


def show_saved_results(console: Console, config: ConfigDict, workdir: Path) -> dict[str, Any]:
  """Prints the results of a run that is finished, and returns them."""
  results = json.loads((workdir / "results.json").read_text())
  console.print("finished already; to train further, raise training.steps")
  show_results(console, config, results, workdir)
  return results


def check_devices(config: ConfigDict) -> None:
  """Raises UserError if the configuration needs devices that are not there."""
  platform = jax.devices()[0].platform
  if config.model.kernel == "cudnn" and platform != "gpu":
    raise UserError(f'model.kernel "cudnn" needs an NVIDIA GPU, and this is a {platform.upper()}: use "xla"')


def starting_point(
  config: ConfigDict, workdir: Path, start: Start, newest: int | None
) -> tuple[Vocabularies | None, PyTree | None]:
  """Returns the vocabularies and parameters that are given: by this run's first start, by `init_from`, or not at all."""
  origin = workdir if start is Start.CONTINUED else config.init_from
  vocabularies = load_vocabularies(Path(origin)) if origin else None
  params = load_final(config.init_from)[0] if config.init_from and newest is None else None
  return vocabularies, params


def prepare_data(config: ConfigDict, vocabularies: Vocabularies | None, mesh: Mesh) -> PreparedData:
  """Returns the task's data. Process 0 makes vocabulary and cache first; the others then read what it left there."""
  rows_multiple = mesh.devices.size * config.training.accumulate
  prepare = functools.partial(task_of(config).prepare_data, config, rows_multiple=rows_multiple)
  data = prepare(vocabularies) if processes.is_first() else None
  vocabularies = processes.from_first(lambda: data and data.vocabularies)
  return prepare(vocabularies) if data is None else data


def saved_place(checkpoints: Checkpoints, newest: int) -> Place:
  """Where the run stood at its checkpoint; warns if that was made under other conditions."""
  metadata = checkpoints.metadata(newest)
  warn_about_environment(metadata["environment"])
  return Place(**metadata["place"])


def placed_at(abstract: PyTree, shardings: PyTree) -> PyTree:
  """The shapes and types of arrays together with where they lie."""
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)


def write_start(config: ConfigDict, workdir: Path, start: Start, vocabularies: Vocabularies) -> None:
  """Writes what a run directory holds from the start on; nothing of this start has gone wrong until here."""
  if start is Start.NEW:
    save_vocabularies(vocabularies, workdir)
  (workdir / "results.json").unlink(missing_ok=True)  # those of an earlier end that this start goes beyond
  write_json_atomically(workdir / "config.json", config.to_dict())


def place_params(given: PyTree, wanted: PyTree, shardings: PyTree, origin: str, task: str) -> PyTree:
  """Puts the parameters of another run on the devices; raises UserError if that run's model has other sizes.

  From a run of another task it takes what both models have (embedding and encoder of a masked language model).
  """
  if task_of_run(origin) != task:
    common = wanted.keys() & given.keys()
    if not common:
      raise UserError(f'init_from {origin} has nothing in common with a model of task "{task}"')
    given, wanted, shardings = ({name: tree[name] for name in common} for tree in (given, wanted, shardings))

  def shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}

  sizes, found = shapes(wanted), shapes(given)
  for name in sorted(sizes.keys() | found.keys()):
    if sizes.get(name) != found.get(name):
      raise UserError(
        f"init_from {origin} has another model: {name} is {found.get(name, 'absent')} there and "
        f"{sizes.get(name, 'absent')} here; take over its model fields"
      )
  return jax.device_put(given, shardings)


def task_of_run(workdir: str) -> str:
  """The task of a finished run."""
  return load_saved_config(Path(workdir) / "config.json").task


def compile_shapes(
  train_step: Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]],
  begin: Callable[[], TrainState],
  plan: Plan,
  mesh: Mesh,
) -> float:
  """Runs the step once on an empty batch of every shape and throws the result away; returns the seconds of a further one.

  The time is the mean over the shapes, each run once more: what a step will take, about.
  """
  use_huge_pages()  # for the temporary arrays of the steps
  state = begin()
  seconds = []
  for shape in plan.shapes:
    share = Shape(shape.rows // jax.process_count(), *shape[1:])
    batch = programs.put_batch(empty_batch(share), mesh)
    start = time.perf_counter()
    state, _ = jax.block_until_ready(train_step(state, batch))
    compiled = time.perf_counter()
    logging.info("compiled the training step for %d rows of %d + %d pieces in %.1f s", *shape, compiled - start)
    state, _ = jax.block_until_ready(train_step(state, batch))
    seconds.append(time.perf_counter() - compiled)
  return sum(seconds) / len(seconds)


def metadata_of(place: Place) -> dict[str, Any]:
  """What a checkpoint says beside its arrays."""
  return {"place": dataclasses.asdict(place), "environment": environment()}


def is_validation_step(config: ConfigDict, place: Place) -> bool:
  """Whether the update just made is followed by a validation: every so many, at an epoch's end, and at the last."""
  every = config.training.evaluate_every
  due = place.step % every == 0 if every else place.batch == 0
  return due or place.step == config.training.steps


def is_checkpoint_step(config: ConfigDict, place: Place) -> bool:
  """Whether the update just made is followed by a checkpoint though not by a validation."""
  every = config.training.checkpoint_every
  return bool(every) and place.step % every == 0


def out_of_patience(config: ConfigDict, place: Place) -> bool:
  """Whether the validation loss has not become lower for too long."""
  return bool(config.training.patience) and place.without_gain >= config.training.patience


def take_down_validation(
  config: ConfigDict,
  place: Place,
  valid: dict[str, float],
  progress: Progress,
  metrics: Metrics,
  reader: Reader,
  data: PreparedData,
) -> float:
  """Prints and records a validation and what the reader makes of the first examples; returns the figure of the checkpoint."""
  figure = place.validated(valid["nll"])
  best = ", the lowest so far" if place.without_gain == 0 else ""
  progress.print(f"step {place.step:,}: validation perplexity {perplexity(valid['nll']):.2f}{best}")
  valid = valid | processes.from_first(task_of(config).show_validation, progress, reader, data, config)
  metrics.write(place.step, "valid", valid)
  return figure


def save_final_params(
  config: ConfigDict, workdir: Path, checkpoints: Checkpoints, place: Place, like: PyTree
) -> tuple[PyTree, list[int]]:
  """Saves and returns the parameters that the run ends with, and the steps they come from (paper, section 6.1).

  They are the mean of the last `training.average` checkpoints; with early stopping and no averaging, the best one.
  """
  steps = checkpoints.regular_steps()[-config.training.average :]
  if config.training.average == 1 and config.training.patience and (best := checkpoints.best()) is not None:
    steps = [best]
  params = checkpoints.average(steps, like)
  save_final(workdir, params, {"averaged_steps": steps, "steps": place.step})
  return params, steps
