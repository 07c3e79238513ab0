"""A Slurm cluster of two nodes on this machine, from Debian's packages, with everything in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes.root_folder import roots_folder
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
NODES = ("one", "two")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
# Control groups cannot be had everywhere:
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
NodeName=one NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[1]} CPUs=2 RealMemory=6000
NodeName=two NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[2]} CPUs=2 RealMemory=6000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


class Slurm:
    """Owns the daemons, and the folder ``shared``, which all nodes see."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared = folder, folder / "shared"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": str(folder / "shared"),
            "PYTHONPATH": str(ROOT),
            "RTL_GYM_VENV": sys.prefix,
            "RTL_GYM_ROOTS": str(roots_folder()),
            "RTL_GYM_SANDBOX": "namespaces",
        }

    def start(self) -> None:
        self.shared.mkdir()
        for name in ("munge", "state"):
            (self.folder / name).mkdir(mode=0o700)
        (self.folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge" / "key").chmod(0o600)
        text = CONFIGURATION.format(host=socket.gethostname(), ports=_free_ports(3), folder=self.folder)
        (self.folder / "slurm.conf").write_text(text)
        files = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        places = [f"--{option}={self.folder}/munge/{name}" for option, name in files.items()]
        self._start("munged", ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.sock", *places])
        assert until((self.folder / "munge.sock").exists), self.log("munged")
        self._start("slurmctld", ["slurmctld", "-D"])

    def start_nodes(self) -> None:
        """Start the nodes that do not run, and wait until all are free."""
        for node in NODES:
            if node not in self.daemons or self.daemons[node].poll() is not None:
                self._start(node, ["slurmd", "-D", "-N", node])
        assert until(lambda: self.run("sinfo", "--noheader", "--format=%t").split() == ["idle"]), self.log("slurmctld")

    def cancel(self) -> None:
        """End all jobs, and wait until nothing of them runs."""
        self.run("scancel", "--user", "root")
        until(lambda: not self.run("squeue", "--noheader"))
        for node in NODES:
            until(partial(self.is_idle, node))

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("wb") as output:
            self.daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,  # after Ctrl-C, jobs are still ended through them
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")[-2000:]

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, cwd=self.shared, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def new_folder(self) -> Path:
        """A folder for a run."""
        return Path(tempfile.mkdtemp(prefix="run-", dir=self.shared))

    def submit(self, *words: str) -> str:
        """Submit a job that writes to ``job.log``; its id."""
        return self.run("sbatch", "--parsable", f"--output={self.shared}/job.log", *words).strip()

    def state(self, job: str) -> str:
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", "--job", job).strip()

    def is_idle(self, node: str) -> bool:
        """Whether no process of a job is left on a node."""
        return not self.processes(node)

    def processes(self, node: str) -> set[int]:
        """The processes of all jobs on a node, with Slurm's own that starts and ends them."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "environ").read_bytes().split(b"\0")
                if (
                    f"SLURMD_NODENAME={node}".encode() in words
                    and f"SLURM_CONF={self.folder}/slurm.conf".encode() in words
                ):
                    found.add(int(folder.name))
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    if Path(os.readlink(f"/proc/{parent}/exe")).name.startswith("slurmstepd"):
                        found.add(parent)
        return found

    def lose(self, node: str) -> None:
        """Kill everything of Slurm's and of its jobs' on a node, as if its machine had gone."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        for pid in sorted(self.processes(node)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        for process in reversed(self.daemons.values()):
            if process.poll() is None:
                process.terminate()
                process.wait(30)


@contextlib.contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """A running cluster. Skips the test where there can be none."""
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip(f"a Slurm cluster takes root and its daemons: {INSTALL}")
    made = Slurm(Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")))
    made.folder.chmod(0o755)  # munge refuses a socket below a folder that others cannot read
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(made.folder)
