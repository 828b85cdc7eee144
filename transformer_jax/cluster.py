"""Whether this process is one of several, as whatever started it says in the environment."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.errors import UserError


def process_settings(environment: Mapping[str, str]) -> dict[str, Any] | None:
  """Returns the arguments of `jax.distributed.initialize`; None for a process alone, which need not call it.

  Looked for in this order; what is left out of the result, JAX finds by itself:

    JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS (host:port of process 0), for any way of starting;
      JAX_NUM_PROCESSES=1 makes a process a run of its own wherever it is started
    Open MPI's, of a job of more than one process
    Slurm's, of a step of more than one task: the process is started by `srun`. One task a device
    the workers of a cloud TPU slice

  Args:
    environment: `os.environ`.

  Raises:
    UserError: a variable is missing or is no number.
  """
  if "JAX_NUM_PROCESSES" in environment or "JAX_PROCESS_ID" in environment:
    return _by_variables(environment)
  if _number(environment, "OMPI_COMM_WORLD_SIZE", 1) > 1:
    return _by_open_mpi(environment)
  # SLURM_NTASKS, which JAX goes by, also counts the tasks that a job's steps may have while the job's script is no step.
  if "SLURM_PROCID" in environment and (tasks := _number(environment, "SLURM_STEP_NUM_TASKS", 1)) > 1:
    return {"num_processes": tasks, "process_id": _number(environment, "SLURM_PROCID")}
  return {} if _tpu_workers() > 1 else None


def _by_variables(environment: Mapping[str, str]) -> dict[str, Any] | None:
  number = _number(environment, "JAX_NUM_PROCESSES")
  if number == 1:
    return None
  if number == 0:
    raise UserError("JAX_NUM_PROCESSES is 0, and must be at least 1")
  process = _number(environment, "JAX_PROCESS_ID")
  if process >= number:
    raise UserError(f"JAX_PROCESS_ID is {process}: with JAX_NUM_PROCESSES={number} the processes are 0 to {number - 1}")
  return {
    "coordinator_address": _address(environment),
    "num_processes": number,
    "process_id": process,
    "cluster_detection_method": "deactivate",
  }


def _by_open_mpi(environment: Mapping[str, str]) -> dict[str, Any]:
  if "OMPI_MCA_orte_hnp_uri" in environment:  # up to version 4: JAX reads the address in it
    return {
      "num_processes": _number(environment, "OMPI_COMM_WORLD_SIZE"),
      "process_id": _number(environment, "OMPI_COMM_WORLD_RANK"),
    }
  if "JAX_COORDINATOR_ADDRESS" not in environment and importlib.util.find_spec("mpi4py"):
    return {"cluster_detection_method": "mpi4py"}
  device = None if "JAX_LOCAL_DEVICE_IDS" in environment else [_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK")]
  return {
    "coordinator_address": _address(environment),
    "num_processes": _number(environment, "OMPI_COMM_WORLD_SIZE"),
    "process_id": _number(environment, "OMPI_COMM_WORLD_RANK"),
    "local_device_ids": device,  # as for version 4: one process a device
    "cluster_detection_method": "deactivate",
  }


def _tpu_workers() -> int:
  """How many processes a cloud TPU slice runs, by JAX's own detection; 1 on any other machine."""
  from jax._src import clusters  # JAX has no public name for it

  if "tpu" not in _platforms():
    return 1
  for cluster in (clusters.GkeTpuCluster, clusters.GceTpuCluster):
    if cluster.is_env_present():
      return cluster.get_process_count()
  return 1


def _platforms() -> Sequence[str]:
  """Those that JAX may use."""
  import jax

  return (getattr(jax.config, "jax_platforms", None) or "tpu").split(
    ","
  )  # on a machine with a TPU JAX sets it by itself


def _address(environment: Mapping[str, str]) -> str:
  address = environment.get("JAX_COORDINATOR_ADDRESS", "")
  host, colon, port = address.rpartition(":")
  if not host or not colon or not port.isdecimal():
    raise UserError(
      f"JAX_COORDINATOR_ADDRESS is {address!r}, and must be HOST:PORT of process 0, for example node1:12345"
    )
  return address


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
  text = environment.get(name, "" if default is None else str(default))
  if not text.isdecimal():
    raise UserError(f"the environment variable {name} is {text!r}, and must be a whole number")
  return int(text)
