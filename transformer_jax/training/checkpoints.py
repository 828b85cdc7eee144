"""Checkpoints that are either exactly what was saved or not used at all.

orbax writes the arrays; by itself it restores flipped bits without a word, and takes any folder named like a step for a
checkpoint. So every checkpoint carries a seal (`training/seals.py`), and one without a matching seal is skipped.

    <workdir>/checkpoints/1200/
      state/           the arrays, by orbax
      contents.json    step, figure of merit, and name → type and shape of every array
      metadata.json    whatever the caller gave
      seal.json        SHA-256 of each of these files, written last
    <workdir>/checkpoints/final/    the finished run's parameters, in the same form

With several processes (`jax.distributed`, one shared file system) every process makes the same calls: orbax writes each
process's part; process 0 seals, verifies and deletes, and the others follow its decisions.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, SupportsFloat

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from transformer_jax.errors import UserError
from transformer_jax.processes import from_first, wait_for_first
from transformer_jax.training import seals
from transformer_jax.training.rundir import write_json_atomically

STATE, CONTENTS, METADATA = "state", "contents.json", "metadata.json"
FINAL = "final"

PyTree = Any


class Checkpoints:
  """The checkpoints of one run, saved in the background."""

  def __init__(self, directory: str | os.PathLike, keep: int, keep_best: int, average: int):
    """Opens a directory of checkpoints, created where missing, and clears what a killed process left unfinished.

    Args:
      directory: `<workdir>/checkpoints`. The caller holds the run's lock.
      keep: how many of the newest checkpoints stay.
      keep_best: how many of those with the lowest figure stay as well.
      average: how many of the newest will be averaged: no fewer stay, whatever `keep` says.
    """
    self._directory = Path(directory).absolute()  # orbax wants absolute paths
    self._newest_kept = max(keep, average, 1)
    self._best_kept = keep_best
    self._verified: set[int] = set()  # steps sealed or verified by this process
    self._orbax = _orbax_checkpointer()
    self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="seal")
    self._pending: Future | None = None
    if jax.process_index() == 0:
      self._directory.mkdir(parents=True, exist_ok=True)
      seals.clear_leftovers(self._directory)

  def save(
    self,
    step: int,
    state: PyTree,
    metadata: Mapping[str, Any],
    figure: SupportsFloat | None = None,
    extra: bool = False,
  ) -> None:
    """Saves a state; writing, sealing and the deletion of older checkpoints go on after the return.

    The arrays are copied before the return, so their buffers may be donated or overwritten. What belongs to this step
    in other files (`metrics.jsonl`) should be written before the call. An earlier checkpoint of the step is replaced.

    Args:
      step: number of updates done; the checkpoint's name.
      state: pytree of JAX or NumPy arrays, random keys as raw uint32 key data.
      metadata: JSON values (position in the data, best figure, versions, ...), returned by `metadata`.
      figure: what `keep_best` goes by, lower is better; None or a non-finite figure is never among the best.
      extra: a checkpoint that an undisturbed run would not have. It is there to go on from, does not count among those
        that are kept or averaged, and is deleted once a newer one exists.

    Raises:
      Exception: what went wrong in the background since the last call, e.g. `OSError` for a full disk.
    """
    self.wait()
    folder = self._directory / str(step)
    figure = None if figure is None else float(figure)
    _start_saving(self._orbax, folder, state, {"step": step, "figure": figure, "extra": extra}, metadata)
    self._pending = self._thread.submit(self._finish, step, folder)

  def _finish(self, step: int, folder: Path) -> None:
    """The background part of `save`."""
    self._orbax.wait_until_finished()  # returns when all processes have written
    if jax.process_index() == 0:
      seals.publish(folder)
      self._verified.add(step)
      self._delete_old()

  def _delete_old(self) -> None:
    """Deletes intact checkpoints that are neither among the newest nor among the best. Damaged ones stay to be seen."""
    steps = self._intact_steps()
    regular = [step for step in steps if not self._is_extra(step)]
    kept = {*regular[-self._newest_kept :], *self._best_first(regular)[: self._best_kept], steps[-1]}
    for step in set(steps) - kept:
      self._verified.discard(step)
      seals.delete(self._directory / str(step))

  def _is_extra(self, step: int) -> bool:
    """Whether an intact checkpoint was saved with `extra`."""
    return _read_json(self._directory / str(step) / CONTENTS).get("extra", False)

  def _best_first(self, steps: Sequence[int]) -> list[int]:
    """The steps that have a figure, the lowest first, of equal ones the earlier."""
    figures = {step: _read_json(self._directory / str(step) / CONTENTS)["figure"] for step in steps}
    return sorted((step for step in steps if figures[step] is not None), key=lambda step: (figures[step], step))

  def best(self) -> int | None:
    """Returns the step of the intact checkpoint with the lowest figure; None where none has a finite one."""
    self.wait()
    best = from_first(lambda: self._best_first(self._intact_steps()))
    return best[0] if best else None

  def wait(self) -> None:
    """Waits until the last save is sealed; raises what went wrong in the background."""
    if self._pending is not None:
      pending, self._pending = self._pending, None
      pending.result()

  def close(self) -> None:
    """Waits for the last save and ends the background thread."""
    try:
      self.wait()
    finally:
      self._thread.shutdown()
      self._orbax.close()

  def newest(self) -> int | None:
    """Returns the newest step whose checkpoint is intact, verified now; None where there is none.

    Every newer one is skipped with one warning that names it and the one taken instead.
    """
    self.wait()
    return from_first(self._newest_intact)

  def _newest_intact(self) -> int | None:
    """Process 0's part of `newest`."""
    newest, skipped = None, []
    for step in reversed(_named_steps(self._directory)):
      problem = seals.find_problem(self._directory / str(step))
      if problem is None:
        newest = step
        self._verified.add(step)
        break
      self._verified.discard(step)
      skipped.append((step, problem))
    instead = "no intact one comes before it" if newest is None else f"using {self._directory / str(newest)} instead"
    for step, problem in skipped:
      logging.warning("checkpoint %s is skipped: %s; %s", self._directory / str(step), problem, instead)
    return newest

  def steps(self) -> list[int]:
    """Returns the steps of all intact checkpoints, ascending; a changed or half-written one is named in a warning.

    A process verifies each checkpoint once for this list; `restore` and `average` verify again what they read.
    """
    self.wait()
    return from_first(self._intact_steps, True)

  def regular_steps(self) -> list[int]:
    """`steps` without those saved as `extra`."""
    steps = self.steps()
    return from_first(lambda: [step for step in steps if not self._is_extra(step)])

  def _intact_steps(self, warn: bool = False) -> list[int]:
    """Process 0's part of `steps`."""
    steps = []
    for step in _named_steps(self._directory):
      problem = None if step in self._verified else seals.find_problem(self._directory / str(step))
      if problem is None:
        self._verified.add(step)
        steps.append(step)
      elif warn:
        logging.warning("checkpoint %s is not used: %s", self._directory / str(step), problem)
    return steps

  def restore(self, step: int, like: PyTree) -> PyTree:
    """Returns the state that was saved at a step, bit for bit.

    Args:
      step: from `newest` or `steps`.
      like: pytree of arrays or `jax.ShapeDtypeStruct`s, with the shardings that the result is to have (without one: the
        first device; where `like` has NumPy arrays, so has the result).

    Raises:
      UserError: the checkpoint is not intact, or is of a model with other arrays.
    """
    self.wait()
    folder = self._directory / str(step)
    _require_intact(folder)
    _require_same_arrays(folder, like)
    return _orbax_restore(self._orbax, folder, like)

  def metadata(self, step: int) -> dict[str, Any]:
    """Returns the metadata that was saved with a step; raises `UserError` where the checkpoint is not intact."""
    self.wait()
    folder = self._directory / str(step)
    _require_intact(folder)
    return _read_json(folder / METADATA)

  def average(self, steps: Sequence[int], like: PyTree, part: str = "params") -> PyTree:
    """Returns the element-wise mean of the parameters of several checkpoints (paper, section 6.1).

    Summed in float64 and rounded once to each array's own type: the mean of one checkpoint with itself is that
    checkpoint. An array that the model uses in several places is one leaf, and averaged once.

    Args:
      steps: whose parameters; at least one.
      like: pytree like the parameters, as in `restore`.
      part: the field of the saved state that holds the parameters.

    Raises:
      UserError: a checkpoint is not intact, or is of a model with other arrays.
    """
    self.wait()
    as_numpy = jax.tree.map(lambda leaf: np.empty((0,), leaf.dtype), like)
    total = None
    for step in steps:
      folder = self._directory / str(step)
      _require_intact(folder)
      _require_same_arrays(folder, {part: like}, only=part)
      params = _orbax_restore(self._orbax, folder, {part: as_numpy}, partial=True)[part]
      params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
      total = params if total is None else jax.tree.map(np.add, total, params)
    return jax.tree.map(lambda leaf, wanted: _placed((leaf / len(steps)).astype(wanted.dtype), wanted), total, like)


def save_final(workdir: str | os.PathLike, params: PyTree, metadata: Mapping[str, Any]) -> None:
  """Saves the finished run's parameters as `<workdir>/checkpoints/final`, and returns when they are sealed.

  Args:
    workdir: the run directory.
    params: the parameters, usually an average; nested dictionaries.
    metadata: JSON values; "averaged_steps" lists the checkpoints that `params` is the mean of.
  """
  folder = Path(workdir).absolute() / "checkpoints" / FINAL
  with _orbax_checkpointer() as orbax:
    _start_saving(orbax, folder, params, {"step": None, "figure": None}, metadata)
    orbax.wait_until_finished()
    if jax.process_index() == 0:
      seals.publish(folder)
    wait_for_first()  # no process returns before the seal


def load_final(workdir: str | os.PathLike, like: PyTree = None) -> tuple[PyTree, dict[str, Any]]:
  """Loads what `save_final` saved.

  Args:
    workdir: the run directory.
    like: as in `Checkpoints.restore`; None: nested dictionaries of NumPy arrays.

  Returns:
    The parameters and the metadata.

  Raises:
    UserError: there is no such run, it is not finished, its file was changed, or it is of a model with other arrays.
  """
  folder = Path(workdir).absolute() / "checkpoints" / FINAL
  finish = f"python -m transformer_jax.main --config=... --workdir={workdir}"
  if not Path(workdir).is_dir():
    raise UserError(f"--workdir={workdir}: no such folder; name the run directory of a finished training")
  if not folder.exists():
    raise UserError(f"--workdir={workdir}: its training is not finished; `{finish}` goes on with it")
  if problem := from_first(seals.find_problem, folder):
    raise UserError(f"{folder} is not intact: {problem}; remove it, and `{finish}` makes it again")
  if like is not None:
    _require_same_arrays(folder, like)
  with _orbax_checkpointer() as orbax:
    tree = _nested_dictionaries(_read_json(folder / CONTENTS)["arrays"]) if like is None else like
    return _orbax_restore(orbax, folder, tree), _read_json(folder / METADATA)


def _start_saving(
  orbax: ocp.AsyncCheckpointer, folder: Path, tree: PyTree, contents: dict[str, Any], metadata: Mapping[str, Any]
) -> None:
  """Copies the arrays and starts writing them."""
  if jax.process_index() == 0:
    writing = seals.start_writing(folder)
    write_json_atomically(writing / CONTENTS, {**contents, "arrays": _arrays(tree)})
    write_json_atomically(writing / METADATA, dict(metadata))
  orbax.save(seals.writing_place(folder) / STATE, args=ocp.args.PyTreeSave(tree))


def _named_steps(directory: Path) -> list[int]:
  """Everything that is named like a step, ascending, intact or not."""
  names = [path.name for path in directory.iterdir()]
  return sorted(int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name)


def _require_intact(folder: Path) -> None:
  if problem := from_first(seals.find_problem, folder):
    raise UserError(f"checkpoint {folder} cannot be used: {problem}; name an intact one")


def _read_json(path: Path) -> Any:
  return json.loads(path.read_text())


def _arrays(tree: PyTree) -> dict[str, str]:
  """Name → type and shape of every array, e.g. {"params/encoder/scale": "float32[512]"}."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
  return {
    name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for name, (_, leaf) in zip(names, leaves, strict=True)
  }


def _nested_dictionaries(arrays: Mapping[str, str]) -> dict[str, Any]:
  """The inverse of `_arrays` for nested dictionaries, with empty NumPy arrays at the leaves."""
  tree: dict[str, Any] = {}
  for name, array in arrays.items():
    *parents, last = name.split("/")
    branch = tree
    for parent in parents:
      branch = branch.setdefault(parent, {})
    branch[last] = np.empty((0,), jax.numpy.dtype(array.split("[")[0]))
  return tree


def _require_same_arrays(folder: Path, like: PyTree, only: str = "") -> None:
  """Raises `UserError` at the first array that checkpoint and `like` do not share in name, type and shape."""
  saved, wanted = _read_json(folder / CONTENTS)["arrays"], _arrays(like)
  saved = {name: array for name, array in saved.items() if not only or name.startswith(only + "/")}
  for name in sorted(saved.keys() | wanted.keys()):
    if saved.get(name) != wanted.get(name):
      there, here = saved.get(name, "absent"), wanted.get(name, "absent")
      raise UserError(
        f"checkpoint {folder} is of another model: {name} is {there} there, {here} in this configuration; "
        "use the configuration it was trained with, or another --workdir"
      )


def _orbax_restore(orbax: ocp.AsyncCheckpointer, folder: Path, like: PyTree, partial: bool = False) -> PyTree:
  """Reads arrays that were verified before: those in `like`, which is all of them unless `partial`."""

  def arguments(leaf: Any) -> ocp.RestoreArgs:
    if isinstance(leaf, np.ndarray):
      return ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    return ocp.ArrayRestoreArgs(dtype=leaf.dtype, sharding=_sharding(leaf), global_shape=leaf.shape)

  restore = ocp.args.PyTreeRestore(item=like, restore_args=jax.tree.map(arguments, like), partial_restore=partial)
  return orbax.restore(folder / STATE, args=restore)


def _placed(array: np.ndarray, like: Any) -> Any:
  """Puts a NumPy array where `like` is; each process puts its own part."""
  if isinstance(like, np.ndarray):
    return array
  return jax.make_array_from_callback(array.shape, _sharding(like), lambda index: array[index], dtype=array.dtype)


def _sharding(leaf: Any) -> jax.sharding.Sharding:
  return getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _orbax_checkpointer() -> ocp.AsyncCheckpointer:
  return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
