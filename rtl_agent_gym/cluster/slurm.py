"""The nodes of a Slurm job as nodes of a Ray cluster.

::

    sbatch's script, on the job's first node            every node of the job, the first one included
    rtl-agent-gym cluster up ──► srun, a step ─────────► rtl-agent-gym cluster part ──► becomes ``ray start --block``
    rtl-agent-gym eval --ray auto ── driver ───────────► Machine, its sandboxes

The step starts one process on each node, which becomes that node's Ray. So Slurm ends these processes: with the step or
the job, or when it takes a node away. A node may use what its job has there (`sandboxes.cgroups.job_memory`).

Several jobs, also of other users, may share a machine. So free ports are chosen, and Ray's files are in a folder that
only this user can read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from ..errors import SandboxError, UsageError
from ..sandboxes.cgroups import JOB, job_cpus, job_memory
from .node import (
    STARTED,
    address_here,
    free_port,
    prepare,
    ray_start,
    refuse_without_token,
    slots_here,
    start_apart,
    wait_for,
)
from .ray_cluster import NODE_NAME, job_folder, node_files, use_token

JOB_SECONDS = 300.0
"""Time limit for a job's nodes to start: all of them may load Python from a slow disk at once."""
OBJECT_STORE_SHARE, LEAST_OBJECT_STORE = 0.05, 128 << 20
"""Share of a node's memory for Ray's object store (problems and files in transit), and its minimum in bytes."""
_STAYS = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0")
"""The other nodes continue when one is lost or ends."""
_SHARES = ("--overlap", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--input=none")
"""The step may use all that the job has on a node, and so may other steps."""


def in_job() -> bool:
    """Whether this process runs in a Slurm allocation."""
    return bool(os.environ.get(JOB))


def start_job(slots: int, progress: Callable[[str], None], port: int = 0) -> str:
    """Start a cluster on all nodes of this process's job, whose head is on this machine; return the head's address.

    Nodes that need more than `JOB_SECONDS` are used once they have started. With 0 `slots`, each node gets as many as
    its memory allows; with `port` 0, the head uses a free port. Raises `UsageError` if this process is not on a node of
    the job, or there is no ``srun`` or no token, and `SandboxError` if the head does not start.
    """
    first, nodes = os.environ.get(NODE_NAME), int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    if not first:
        raise UsageError(
            "this is not a node of the job: run it in the script of sbatch, or after `srun --overlap --pty bash`"
        )
    if (srun := shutil.which("srun")) is None:
        raise UsageError("Slurm's program srun is not in PATH; add its folder")
    port = port or free_port()
    if not use_token():
        refuse_without_token(port, progress)
    head = address_here(port)
    part = [sys.executable, "-m", "rtl_agent_gym", "cluster", "part", head, first, "--slots", str(slots)]
    places = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    log = start_apart([srun, *places, *_STAYS, *_SHARES, "--label", *part])

    def started() -> int:
        return log.read_bytes().count(STARTED)

    def errors() -> list[str]:
        return re.findall(r"^\s*\d+: (error: .*)", log.read_text(errors="replace"), re.MULTILINE)

    try:
        wait_for(log, lambda: started() + len(errors()) >= nodes > len(errors()), lambda: _answers(head), JOB_SECONDS)
    except SandboxError as error:
        causes = [line.removeprefix("error: ") for line in dict.fromkeys(errors())]  # srun's last line names no cause
        raise SandboxError("Ray does not start: " + "; ".join(causes) if causes else str(error)) from error
    for line in dict.fromkeys(errors()):
        progress(f"WARNING: a node of the job is not used: {line}")
    node_files()[0].with_suffix(".head").write_text(head)
    progress(f"{started()} of the job's {nodes} nodes are used; what they print is in {log}")
    return head


def become_part(head: str, first: str, slots: int, progress: Callable[[str], None]) -> NoReturn:
    """Replace this process by Ray on this node of a job: the head on the node that Slurm calls `first`, else a worker.

    With 0 `slots`, it gets as many as its memory allows. Raises `UsageError` outside a job, and `SandboxError` if no
    sandboxes can be made here, or the head does not answer at its address.
    """
    if not in_job():
        raise UsageError("this is for the nodes of a Slurm job: `rtl-agent-gym cluster up` starts it there")
    prepare(progress)
    slots = slots or slots_here()  # before the wait for the head, so that what is missing here is reported
    folder = job_folder()  # on every node, since Ray would make it accessible to all users
    if os.environ.get(NODE_NAME) == first:
        where = ["--head", "--port", head.rpartition(":")[2], "--temp-dir", str(folder / "ray")]
    else:
        _wait_for(head)
        where = ["--address", head]
    where += ["--min-worker-port", "0", "--max-worker-port", "0"]  # free ports
    if cpus := job_cpus():
        where += ["--num-cpus", str(max(1, int(cpus)))]
    if memory := job_memory():
        where += ["--object-store-memory", str(max(LEAST_OBJECT_STORE, int(OBJECT_STORE_SHARE * memory)))]
    use_token()
    command = ray_start(where, slots)
    progress(f"this node has {slots} slots")
    os.execv(command[0], command)


def _answers(head: str) -> bool:
    host, _, port = head.rpartition(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host, int(port)), timeout=5.0).close()
        return True
    return False


def _wait_for(head: str) -> None:
    deadline = time.monotonic() + JOB_SECONDS
    while not _answers(head):
        if time.monotonic() > deadline:
            raise SandboxError(f"the head of the cluster has not answered at {head} for {JOB_SECONDS:.0f} s")
        time.sleep(0.2)
