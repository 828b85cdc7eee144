"""Checkpoints of a run of two processes (`jax.distributed`), each with half of the parameters."""

import os
import socket
import subprocess
import sys

PROCESS = """
import sys
import jax
rank, port, workdir = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"localhost:{port}", 2, rank)
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from transformer_jax.errors import UserError
from transformer_jax.training.checkpoints import Checkpoints, load_final, save_final

mesh = jax.make_mesh((2,), ("data",))
table = np.arange(64, dtype=np.float32).reshape(8, 8)

def spread(array, *axes):
  return jax.make_array_from_callback(array.shape, NamedSharding(mesh, PartitionSpec(*axes)), lambda i: array[i])

def state(number):
  params = {"halves": spread(table * number, "data"), "copies": spread(np.full(3, number, np.float32))}
  return {"params": params, "step": spread(np.int32(number))}

def assert_equal(one, two):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert a.sharding == b.sharding
    np.testing.assert_array_equal(a.addressable_shards[0].data, b.addressable_shards[0].data)

checkpoints = Checkpoints(workdir + "/checkpoints", keep=3, keep_best=0, average=2)
for step in (1, 2, 3, 4):
  checkpoints.save(step, state(step), {"step": step})
assert checkpoints.newest() == 4 and checkpoints.steps() == [2, 3, 4] and checkpoints.metadata(4) == {"step": 4}
assert_equal(checkpoints.restore(4, state(0)), state(4))
mean = checkpoints.average([2, 3, 4], state(0)["params"])
assert_equal(mean, state(3)["params"])
save_final(workdir, mean, {"averaged_steps": [2, 3, 4]})
final, metadata = load_final(workdir)
np.testing.assert_array_equal(final["halves"], table * 3)
multihost_utils.sync_global_devices("all have read it")
if rank == 0:
  open(workdir + "/checkpoints/4/contents.json", "a").write(" ")
assert checkpoints.newest() == 3
try:
  checkpoints.restore(4, state(0))
except UserError:
  print("all is well")
checkpoints.close()
"""


def test_two_processes_save_restore_average_and_skip_together(tmp_path):
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    port = str(probe.getsockname()[1])
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}  # one device a process
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", PROCESS, str(rank), port, str(tmp_path)],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for rank in (0, 1)
  ]
  try:
    outputs = [process.communicate(timeout=300) for process in processes]
  finally:
    for process in processes:
      process.kill()
  assert [output[0].splitlines()[-1:] for output in outputs] == [["all is well"]] * 2, outputs
  assert sum("is skipped" in output[1] for output in outputs) == 1  # process 0 says it
