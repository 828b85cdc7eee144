"""Which environments make a process one of several."""

import importlib.util

import pytest
from jax._src import clusters

from transformer_jax import cluster
from transformer_jax.cluster import process_settings
from transformer_jax.errors import UserError

ADDRESS = {"JAX_COORDINATOR_ADDRESS": "node1:1234"}
SLURM = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
GIVEN = {"coordinator_address": "node1:1234", "cluster_detection_method": "deactivate"}


@pytest.mark.parametrize(
  "environment",
  [
    {},
    ADDRESS,
    {"JAX_NUM_PROCESSES": "1"},
    SLURM,  # the script of a job: no step
    {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # as submitit starts it
    {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
    {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "JAX_NUM_PROCESSES": "1"},
    {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"},
  ],
)
def test_a_process_alone_joins_nobody(environment):
  assert process_settings(environment) is None


@pytest.mark.parametrize(
  ("environment", "settings"),
  [
    ({**ADDRESS, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, {**GIVEN, "num_processes": 2, "process_id": 0}),
    ({**SLURM, "SLURM_STEP_NUM_TASKS": "2"}, {"num_processes": 2, "process_id": 1}),
    ({**SLURM, "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4"}, {"num_processes": 4, "process_id": 1}),
    (
      {**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911"},
      {"num_processes": 4, "process_id": 3},
    ),
    ({**OPEN_MPI, **ADDRESS}, {**GIVEN, "num_processes": 4, "process_id": 3, "local_device_ids": [1]}),
    # mpirun in a job of Slurm starts one daemon a node as a step of its own.
    (
      {**SLURM, "SLURM_STEP_NUM_TASKS": "2", **OPEN_MPI, **ADDRESS},
      {**GIVEN, "num_processes": 4, "process_id": 3, "local_device_ids": [1]},
    ),
  ],
)
def test_the_others_are_found(environment, settings):
  assert process_settings(environment) == settings


def test_newer_open_mpi_is_asked_through_mpi4py(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
  assert process_settings(OPEN_MPI) == {"cluster_detection_method": "mpi4py"}


@pytest.mark.parametrize(("workers", "settings"), [("a", None), ("a,b", {})])
def test_the_workers_of_a_tpu_slice(monkeypatch, workers, settings):
  monkeypatch.setattr(clusters.GkeTpuCluster, "is_env_present", lambda: True)
  monkeypatch.setenv("TPU_WORKER_HOSTNAMES", workers)
  monkeypatch.setenv("MEGASCALE_NUM_SLICES", "1")
  monkeypatch.setattr(cluster, "_platforms", lambda: ("tpu", "cpu"))
  assert process_settings({}) == settings


@pytest.mark.parametrize(
  ("environment", "message"),
  [
    ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two', and must be a whole number"),
    ({"JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES is '', and"),
    ({"JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID is '', and"),
    ({"JAX_NUM_PROCESSES": "0", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES is 0"),
    ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID is 2: with JAX_NUM_PROCESSES=2 .* 0 to 1"),
    ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}, "JAX_COORDINATOR_ADDRESS is '', and must be HOST:PORT"),
    ({**OPEN_MPI, "JAX_COORDINATOR_ADDRESS": "node1"}, "JAX_COORDINATOR_ADDRESS is 'node1', and must be HOST:PORT"),
  ],
)
def test_a_contradictory_environment_is_named(environment, message):
  with pytest.raises(UserError, match=message):
    process_settings(environment)
