"""A Slurm of one machine, for tests: its own munge, its own ports, everything it writes in one folder, nothing left behind.

The daemons come from the distribution (Debian: slurm-wlm and munge), and only root may start jobs with them. Two "nodes" are two
slurmd on this machine; they claim more cores than there are, since tests wait more than they compute.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("node1", "node2")
PR_SET_PDEATHSIG = 1  # of prctl(2)
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])  # where daemons are
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential cannot be used any more.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=60
InactiveLimit=0
MinJobAge=300
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def why_not() -> str:
  """Why a Slurm cannot be started here; "" if it can."""
  missing = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
  if missing:
    return f"no {', '.join(missing)}: Debian's slurm-wlm and munge have them"
  return "" if os.geteuid() == 0 else "only root can start Slurm's daemons"


class Slurm:
  """A running Slurm; in a `with` block.

  Attributes:
    environment: what a process needs in its environment to use it.
  """

  def __init__(self, folder: Path):
    """Writes the configuration.

    Args:
      folder: a new one, of a short path (a socket's name has at most 107 characters).
    """
    self.folder = folder
    folder.mkdir(mode=0o755)
    (folder / "state").mkdir()
    for node in NODES:
      (folder / node).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3), nodes=NODES)
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    self.daemons: list[subprocess.Popen] = []

  def __enter__(self) -> "Slurm":
    try:
      files = {
        "key": "munge.key",
        "socket": "munge.socket",
        "pid": "munged.pid",
        "log": "munged.log",
        "seed": "munge.seed",
      }
      paths = [f"--{name}{'' if name == 'socket' else '-file'}={self.folder / file}" for name, file in files.items()]
      self._start("munged", "--foreground", "--force", *paths)
      self._wait_for(lambda: (self.folder / "munge.socket").exists())
      self._start("slurmctld", "-D", "-i")
      for node in NODES:
        self._start("slurmd", "-D", "-N", node)
      self._wait_for(lambda: self.call("sinfo", "-h", "-N", "-o", "%T", check=False).split() == ["idle"] * len(NODES))
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_) -> None:
    with contextlib.suppress(OSError, AssertionError, subprocess.SubprocessError):
      self.call("scancel", "--user=root", "--signal=KILL", "--full", check=False)
      self.call("scancel", "--user=root", check=False)
      self._wait_for(lambda: not self.call("squeue", "-h", check=False), seconds=10)
    for daemon in reversed(self.daemons):
      daemon.terminate()
      try:
        daemon.wait(10)
      except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    for process in self.processes():  # of jobs that did not end when they were told to
      with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)

  def call(self, *command: str, check: bool = True) -> str:
    """Runs one of Slurm's programs; returns what it prints, errors too."""
    done = subprocess.run(
      command,
      env={**os.environ, **self.environment},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      check=False,
      timeout=60,
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout.strip()

  def processes(self) -> list[int]:
    """The processes that belong to it: all that have its configuration in their environment, but for this one."""
    wanted, found = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode(), []
    for entry in Path("/proc").iterdir():
      if entry.name.isdigit() and int(entry.name) != os.getpid():
        with contextlib.suppress(OSError):
          if wanted in (entry / "environ").read_bytes().split(b"\0"):
            found.append(int(entry.name))
    return found

  def logs(self) -> str:
    """What its daemons have to say."""
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')}" for path in sorted(self.folder.glob("*.log")))

  def _start(self, *command: str) -> None:
    with open(self.folder / f"{Path(command[0]).name}.out", "ab") as output:
      self.daemons.append(
        subprocess.Popen(
          command,
          env={**os.environ, **self.environment},
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=subprocess.STDOUT,
          start_new_session=True,
          preexec_fn=end_with_parent,
        )
      )

  def _wait_for(self, condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
      assert time.monotonic() < deadline, self.logs()
      assert all(daemon.poll() is None for daemon in self.daemons), self.logs()
      time.sleep(0.1)


def end_with_parent() -> None:
  """Asks the kernel to end this process when its parent ends, also by SIGKILL."""
  ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_ports(number: int) -> list[int]:
  """So many TCP ports that nobody listens on."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
    for each in sockets:
      each.bind(("127.0.0.1", 0))
    return [each.getsockname()[1] for each in sockets]


STAND_IN = """#!/bin/sh
here=$(dirname "$0")
case $(basename "$0") in
sbatch) cp "$1" "$here/script"; cat "$here/refusal" >&2 2>/dev/null && exit 1; echo Submitted batch job 17;;
squeue) echo "$@" >> "$here/asked"; cat "$here/queue"; cat "$here/trouble" >&2 2>/dev/null && exit 1; exit 0;;
scontrol) echo "$@" >> "$here/controlled";;
esac
"""


def stand_ins(folder: Path) -> Path:
  """Makes a folder with programs that stand for Slurm's where it is not needed or not there, and returns it.

  sbatch keeps what is submitted as `script` and fails with what stands in `refusal`; squeue says what stands in `queue`, keeps
  what it was asked in `asked` and fails with what stands in `trouble`; scontrol keeps what it was told in `controlled`.
  """
  folder.mkdir()
  for name in ("sbatch", "squeue", "srun", "scontrol"):
    (folder / name).write_text(STAND_IN)
    (folder / name).chmod(0o755)
  (folder / "queue").touch()
  return folder
