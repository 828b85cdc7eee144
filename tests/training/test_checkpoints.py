"""Checkpoints: bit for bit what was saved, or not used at all."""

import os
import shutil
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging as absl_logging

from transformer_jax.errors import UserError
from transformer_jax.training import seals
from transformer_jax.training.checkpoints import Checkpoints, load_final, save_final


class State(NamedTuple):
  """Of the form of the training state."""

  step: Any
  params: Any
  optimizer: Any
  key: Any


def make_state(seed):
  """A state whose arrays all differ from seed to seed."""
  random = np.random.default_rng(seed)
  params = {
    "embedding": jnp.asarray(random.normal(size=(50, 8)), jnp.float32),
    "encoder": {"layer_0": {"kernel": jnp.asarray(random.normal(size=(8, 8)), jnp.bfloat16)}},
    "edges": jnp.asarray([np.nan, np.inf, -0.0, 1e-42, 3.4e38], jnp.float32) * (seed + 1),
  }
  optimizer = optax.adam(1e-3)
  _, moments = optimizer.update(jax.tree.map(lambda x: x * 0.5, params), optimizer.init(params), params)
  return State(jnp.int32(seed), params, moments, jax.random.key_data(jax.random.key(seed)))


def on_host(tree):
  return jax.tree.map(lambda x: np.array(x), tree)


def assert_same_bits(one, two):
  assert jax.tree.structure(one) == jax.tree.structure(two)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.fixture
def open_checkpoints(tmp_path):
  """Opens <tmp_path>/checkpoints; closed at the end of the test."""
  opened = []

  def open_again(keep=5, keep_best=0, average=1):
    opened.append(Checkpoints(tmp_path / "checkpoints", keep, keep_best, average))
    return opened[-1]

  yield open_again
  for checkpoints in opened:
    checkpoints.close()


@pytest.fixture
def warnings(monkeypatch):
  said = []
  monkeypatch.setattr(absl_logging, "warning", lambda text, *arguments: said.append(text % arguments))
  return said


def names(tmp_path):
  return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_restores_every_bit_and_type_into_the_asked_placement(open_checkpoints):
  checkpoints, state = open_checkpoints(), make_state(3)
  checkpoints.save(7, state, {"epoch": 2, "best": 3.25, "versions": {"jax": "x"}})
  assert checkpoints.newest() == 7 and checkpoints.metadata(7) == {"epoch": 2, "best": 3.25, "versions": {"jax": "x"}}
  sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data"))
  place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding if x.ndim else None)  # noqa: E731
  restored = checkpoints.restore(7, jax.tree.map(place, state))
  assert_same_bits(restored, state)
  assert restored.params["embedding"].sharding == sharding
  assert_same_bits(checkpoints.restore(7, make_state(0)), state)
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(checkpoints.restore(7, on_host(state))))


def test_a_step_may_overwrite_its_buffers_while_they_are_saved(open_checkpoints):
  checkpoints, state = open_checkpoints(), make_state(1)
  update = jax.jit(lambda tree: jax.tree.map(lambda x: x + x.dtype.type(1), tree), donate_argnums=0)
  checkpoints.save(1, state, {})
  jax.block_until_ready(update(state))  # JAX reuses the buffers that nothing else looks at
  assert_same_bits(checkpoints.restore(1, make_state(0)), make_state(1))
  overwritten = on_host(make_state(2))
  checkpoints.save(2, overwritten, {})
  for leaf in jax.tree.leaves(overwritten):
    leaf[...] = 0
  assert_same_bits(checkpoints.restore(2, make_state(0)), make_state(2))


def flip_a_bit(folder):
  largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 4
  largest.write_bytes(content)


def truncate(folder):
  file = next(path for path in sorted(folder.glob("state/**/d/*")) if path.stat().st_size)
  file.write_bytes(file.read_bytes()[:-1])


def remove_an_array_file(folder):
  next(iter(sorted(folder.glob("state/**/d/*")))).unlink()


def add_a_file(folder):
  (folder / "state" / "more").write_bytes(b"")


def lose_the_seal(folder):
  (folder / seals.SEAL).unlink()


def change_the_seal(folder):
  text = (folder / seals.SEAL).read_text()
  (folder / seals.SEAL).write_text(text.replace(": ", ":  ", 1))


def cut_the_seal(folder):
  (folder / seals.SEAL).write_text((folder / seals.SEAL).read_text()[:100])


def change_the_metadata(folder):
  (folder / "metadata.json").write_text((folder / "metadata.json").read_text().replace("20", "21"))


def empty(folder):
  shutil.rmtree(folder)
  folder.mkdir()


def become_a_file(folder):
  shutil.rmtree(folder)
  folder.write_text("")


def take_another_step(folder):
  shutil.rmtree(folder)
  shutil.copytree(folder.with_name("10"), folder)


DAMAGES = [
  flip_a_bit,
  truncate,
  remove_an_array_file,
  add_a_file,
  lose_the_seal,
  change_the_seal,
  cut_the_seal,
  change_the_metadata,
  empty,
  become_a_file,
  take_another_step,
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Steps 10 and 20, intact."""
  directory = tmp_path_factory.mktemp("saved")
  checkpoints = Checkpoints(directory, keep=5, keep_best=0, average=1)
  for step in (10, 20):
    checkpoints.save(step, make_state(step), {"step": step})
  checkpoints.close()
  return directory


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path, open_checkpoints, warnings, saved, damage):
  """Users hit 20: a half-written or changed checkpoint is never chosen; the one before is, with a warning."""
  shutil.copytree(saved, tmp_path / "checkpoints")
  folder = tmp_path / "checkpoints" / "20"
  damage(folder)
  checkpoints = open_checkpoints()
  assert checkpoints.newest() == 10
  assert len(warnings) == 1 and str(folder) in warnings[0] and str(folder.with_name("10")) in warnings[0]
  assert_same_bits(checkpoints.restore(10, make_state(0)), make_state(10))
  assert checkpoints.steps() == [10]
  with pytest.raises(UserError, match=str(folder)):
    checkpoints.restore(20, make_state(0))
  with pytest.raises(UserError, match=str(folder)):
    checkpoints.average([10, 20], make_state(0).params)
  checkpoints.save(20, make_state(99), {})  # the resumed run comes by again
  assert checkpoints.newest() == 20
  assert_same_bits(checkpoints.restore(20, make_state(0)), make_state(99))
  assert names(tmp_path) == ["10", "20"]


def test_every_flipped_bit_is_noticed(saved, tmp_path):
  """Users hit 20: orbax restores flipped bits without a word; the seal notices one in any file."""
  folder = tmp_path / "20"
  shutil.copytree(saved / "20", folder)
  assert seals.find_problem(folder) is None
  random = np.random.default_rng(0)
  for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
    content = file.read_bytes()
    changed = bytearray(content)
    changed[random.integers(len(content))] ^= 1 << int(random.integers(8))
    file.write_bytes(changed)
    problem = seals.find_problem(folder)
    assert problem is not None, file
    if file.name != seals.SEAL:
      assert problem == f"{file.relative_to(folder).as_posix()} was changed"
    file.write_bytes(content)
  assert seals.find_problem(folder) is None


def test_no_checkpoint_and_none_that_is_intact(tmp_path, open_checkpoints, warnings):
  checkpoints = open_checkpoints()
  assert checkpoints.newest() is None and checkpoints.steps() == [] and warnings == []
  (tmp_path / "checkpoints" / "30").mkdir()
  (tmp_path / "checkpoints" / "final").mkdir()  # named otherwise than a step, as is this:
  (tmp_path / "checkpoints" / "040").mkdir()
  assert checkpoints.newest() is None
  assert len(warnings) == 1 and "checkpoints/30" in warnings[0]


def test_a_change_after_it_was_chosen_is_noticed_when_restoring(tmp_path, open_checkpoints):
  """Users hit 20: nothing is restored unverified."""
  checkpoints = open_checkpoints()
  checkpoints.save(1, make_state(1), {})
  assert checkpoints.newest() == 1
  flip_a_bit(tmp_path / "checkpoints" / "1")
  for use in (lambda: checkpoints.restore(1, make_state(0)), lambda: checkpoints.metadata(1)):
    with pytest.raises(UserError, match="was changed"):
      use()


@pytest.mark.parametrize("step", [20, 10])
def test_killed_at_any_moment_of_a_save(tmp_path, open_checkpoints, warnings, monkeypatch, step):
  """Users hit 20: what a kill leaves behind at each change of the folder is the old or the new, whole."""
  checkpoints = open_checkpoints(keep=1)
  checkpoints.save(10, make_state(10), {})
  checkpoints.wait()
  moments = []

  def snapshot():
    moments.append(tmp_path / f"moment_{len(moments)}")
    shutil.copytree(tmp_path / "checkpoints", moments[-1])

  def between_snapshots(function):
    def call(*arguments):
      snapshot()
      result = function(*arguments)
      snapshot()
      return result

    return call

  def remove_in_two_parts(folder):
    for name in ("contents.json", "seal.json"):
      (folder / name).unlink(missing_ok=True)
      snapshot()
    shutil.rmtree(folder)

  with monkeypatch.context() as patch:
    patch.setattr(seals, "os", SimpleNamespace(path=os.path, fsync=os.fsync, rename=between_snapshots(os.rename)))
    patch.setattr(seals, "shutil", SimpleNamespace(rmtree=remove_in_two_parts))
    for name in ("start_writing", "write_text_atomically"):
      patch.setattr(seals, name, between_snapshots(getattr(seals, name)))
    checkpoints.save(step, make_state(99), {})
    checkpoints.wait()
  seen = []
  for directory in moments:
    after_the_kill = Checkpoints(directory, keep=1, keep_best=0, average=1)
    newest = after_the_kill.newest()
    content = int(after_the_kill.restore(newest, make_state(0)).step)
    assert_same_bits(after_the_kill.restore(newest, make_state(0)), make_state(content))
    assert all(name.isdigit() for name in os.listdir(directory))
    seen.append((newest, content))
    after_the_kill.close()
  # First the old one, then the new one.
  assert set(seen) == {(10, 10), (step, 99)} and seen == sorted(seen)
  assert warnings == [] and len(moments) >= 10


def test_what_fails_in_the_background_is_raised_by_the_next_call(tmp_path, open_checkpoints, monkeypatch):
  checkpoints = open_checkpoints()
  with monkeypatch.context() as patch:
    patch.setattr(seals, "_hashes", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    checkpoints.save(1, make_state(1), {})
    with pytest.raises(OSError, match="disk full"):
      checkpoints.save(2, make_state(2), {})
  checkpoints.save(3, make_state(3), {})
  assert checkpoints.newest() == 3 and checkpoints.steps() == [3]


@pytest.mark.parametrize(
  ("keep", "keep_best", "average", "figures", "kept"),
  [
    (2, 0, 1, [5, 4, 3, 2], [3, 4]),
    (1, 0, 3, [5, 4, 3, 2], [2, 3, 4]),  # never fewer than are averaged
    (1, 1, 1, [5, 1, 3, 2], [2, 4]),
    (1, 2, 1, [2, 9, None, 2, 3, 7], [1, 4, 6]),
    (1, 1, 1, [float("nan"), 3, float("-inf"), 4], [2, 4]),
    (2, 1, 1, [4, 3, 2, 1], [3, 4]),  # the best is among the newest
  ],
)
def test_retention(tmp_path, open_checkpoints, keep, keep_best, average, figures, kept):
  checkpoints = open_checkpoints(keep, keep_best, average)
  for step, figure in enumerate(figures, 1):
    if step == 3:  # a later start of the run
      checkpoints.close()
      checkpoints = open_checkpoints(keep, keep_best, average)
    checkpoints.save(step, {"params": {"w": jnp.float32(step)}}, {}, figure)
  assert checkpoints.steps() == kept and names(tmp_path) == [str(step) for step in kept]


def test_damaged_ones_do_not_count_among_the_kept(tmp_path, open_checkpoints, warnings):
  checkpoints = open_checkpoints(keep=2)
  for step in (1, 2):
    checkpoints.save(step, {"params": {"w": jnp.float32(step)}}, {})
  checkpoints.close()
  flip_a_bit(tmp_path / "checkpoints" / "2")
  checkpoints = open_checkpoints(keep=2)
  checkpoints.save(3, {"params": {"w": jnp.float32(3)}}, {})
  assert checkpoints.steps() == [1, 3]


def test_an_older_one_is_deleted_only_when_the_newer_one_is_sealed(tmp_path, open_checkpoints, monkeypatch):
  order = []
  for name in ("publish", "delete"):
    function = getattr(seals, name)
    monkeypatch.setattr(seals, name, lambda path, f=function, n=name: (f(path), order.append((n, path.name))))
  checkpoints = open_checkpoints(keep=1)
  for step in (1, 2):
    checkpoints.save(step, {"params": {"w": jnp.float32(step)}}, {})
  checkpoints.wait()
  assert order == [("publish", "1"), ("publish", "2"), ("delete", "1")]


def test_another_model_is_refused_in_one_line(open_checkpoints):
  checkpoints, state = open_checkpoints(), make_state(1)
  checkpoints.save(1, state, {})
  wider = state._replace(params={**state.params, "embedding": jnp.zeros((50, 9))})
  other = {
    "params/embedding is float32[50,8] there, float32[50,9]": wider,
    "params/more is absent there": state._replace(params={**state.params, "more": jnp.zeros(3)}),
    "params/encoder.* is bfloat16.* absent in": state._replace(
      params={name: state.params[name] for name in ("embedding", "edges")}
    ),
    "step is int32": state._replace(step=jnp.float32(1)),
  }
  for message, like in other.items():
    with pytest.raises(UserError, match=message.replace("[", r"\[")) as refused:
      checkpoints.restore(1, like)
    assert "\n" not in str(refused.value)
  with pytest.raises(UserError, match="of another model"):
    checkpoints.average([1], wider.params)


def test_averaging_a_checkpoint_with_itself_changes_nothing(open_checkpoints):
  """Users hit 27: bit for bit, with NaN, infinity, -0.0 and subnormal numbers."""
  checkpoints, state = open_checkpoints(), make_state(5)
  checkpoints.save(5, state, {})
  for times in (1, 2, 3, 7):
    assert_same_bits(checkpoints.average([5] * times, state.params), state.params)


def test_the_average_is_the_mean_in_float64_of_each_array_once(open_checkpoints):
  """Users hit 27: shared parameters, one array in the tree, are averaged once."""
  checkpoints = open_checkpoints()
  values = np.array([[1e8, 1.0, 3.0], [1.0, 2.0, 4.0], [-1e8, 4.0, 5.0]], np.float32)
  for step, value in enumerate(values, 1):
    params = {"shared_embedding": jnp.asarray(value), "scale": jnp.asarray(value, jnp.bfloat16)}
    checkpoints.save(step, State(jnp.int32(step), params, (), jnp.zeros(2, jnp.uint32)), {})
  mean = checkpoints.average([1, 2, 3], params)
  expected = values.astype(np.float64).sum(0) / 3  # a sum in float32 would lose the 1 beside 1e8
  assert sorted(mean) == ["scale", "shared_embedding"]
  np.testing.assert_array_equal(mean["shared_embedding"], expected.astype(np.float32))
  assert mean["scale"].dtype == jnp.bfloat16 and isinstance(mean["scale"], jax.Array)
  two = checkpoints.average([1, 2], params)
  np.testing.assert_array_equal(two["shared_embedding"], (values[:2].astype(np.float64).sum(0) / 2).astype(np.float32))


def test_the_final_parameters_and_the_steps_they_are_the_mean_of(tmp_path):
  """Users hit 27: the steps averaged are recorded."""
  params = make_state(2).params
  save_final(tmp_path, params, {"averaged_steps": [10, 20]})
  loaded, metadata = load_final(tmp_path)
  assert metadata["averaged_steps"] == [10, 20]
  assert_same_bits(loaded, params)
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(loaded))
  loaded, _ = load_final(tmp_path, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params))
  assert_same_bits(loaded, params)
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded))
  save_final(tmp_path, make_state(3).params, {"averaged_steps": [30]})
  assert load_final(tmp_path)[1] == {"averaged_steps": [30]}
  flip_a_bit(tmp_path / "checkpoints" / "final")
  with pytest.raises(UserError, match="not intact"):
    load_final(tmp_path)


def test_a_run_that_is_not_finished_says_how_to_finish_it(tmp_path, open_checkpoints):
  open_checkpoints().save(1, make_state(1), {})
  with pytest.raises(UserError, match=f"not finished; `python -m transformer_jax.main .*--workdir={tmp_path}`"):
    load_final(tmp_path)
  with pytest.raises(UserError, match="no such folder"):
    load_final(tmp_path / "typo")
