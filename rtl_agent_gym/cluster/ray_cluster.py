"""The package's direct use of Ray: the connection, the cluster's nodes, and their slots.

A node reports its slots as a custom resource. A run reserves some with a placement group, so that no other run, and no
task of a `RayExecutor`, gets them too. Ray removes a placement group when its creator ends, even after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..sandboxes.cgroups import JOB

SLOTS = "rtl_gym_slots"
"""The custom resource of a node: the number of agent sandboxes that it can have at the same time."""
NODE_LABEL = "ray.io/node-id"
"""The label that Ray itself gives each node."""
NODE_NAME = "SLURMD_NODENAME"
"""The environment variable with Slurm's name of the node on which a process of a job runs."""
CONNECT_SECONDS = 10.0
"""Time limit for an answer of a cluster's head."""
RESERVE_SECONDS = 5.0
"""Time limit for reserving free slots; Ray needs milliseconds, unless another run was faster."""


def node_files() -> list[Path]:
    """The files that may name the process started on this machine by ``cluster up``; each node of a job has its own.

    The first is for a new process. After `su`, XDG_RUNTIME_DIR may be unset, or name a folder that does not exist.
    """
    if os.environ.get(JOB):
        return [job_folder() / f"{os.environ.get(NODE_NAME, 'login')}.pid"]
    folders = (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), f"/run/user/{os.getuid()}")
    return [Path(folder, f"rtl-agent-gym-node-{os.getuid()}.pid") for folder in folders if os.access(folder, os.W_OK)]


def job_folder() -> Path:
    """A folder of this process's Slurm job on this machine. Its path is short: Ray's sockets are below it.

    Raises `UsageError` if it belongs to another user, or is accessible to others.
    """
    again = os.environ.get("SLURM_RESTART_COUNT", "0")  # a job that was queued again keeps its id
    folder = Path("/tmp", f"rtl-gym-{os.getuid()}-{os.environ[JOB]}-{again}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(f"{folder} belongs to another user, or others have access to it; remove it")
    return folder


def job_head() -> str:
    """The address of the head that ``cluster up`` started for this process's Slurm job; empty if there is none."""
    try:
        return node_files()[0].with_suffix(".head").read_text() if os.environ.get(JOB) else ""
    except OSError:
        return ""


def use_token() -> bool:
    """Use this user's token, if there is one and ``RAY_AUTH_MODE`` is not set; return whether Ray uses tokens.

    A head that is started where a token exists requires it, but clients with an explicit address do not send it by
    themselves: https://docs.ray.io/en/latest/ray-security/token-auth.html
    """
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:  # a version of Ray without authentication
        return False
    logging.getLogger(setup.__name__).setLevel(logging.ERROR)
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def connect(address: str) -> None:
    """Connect this process to a Ray cluster. Idempotent. Raises `UsageError` if there is none.

    Args:
        address: Of the head; ``auto`` for the head of this Slurm job or, without one, for the cluster of this machine.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed; pip install 'rtl-agent-gym[ray]'") from None
    if ray.is_initialized():
        return
    use_token()
    if address == "auto":
        address = job_head() or address
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers at {address!r}: {str(error).splitlines()[0]}") from error
    except (RuntimeError, ray.exceptions.RayError) as error:  # usually another version of Ray or Python
        raise UsageError(f"the Ray cluster at {address!r} cannot be used: {' '.join(str(error).split())}") from error


def nodes_with_slots() -> dict[str, dict[str, Any]]:
    """The nodes that are alive and report slots, as Ray describes them, by their ids."""
    import ray

    listed: Any = ray.nodes  # this function is untyped
    return {node["NodeID"]: node for node in listed() if node["Alive"] and node["Resources"].get(SLOTS, 0) >= 1}


def name_of(node: dict[str, Any]) -> str:
    """A node's host and address, from Ray's description."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def free_slots() -> dict[str, int]:
    """The slots that no run has reserved, by Ray's ids of the nodes; may be outdated by some tenths of a second."""
    from ray._private import state

    untyped: Any = state
    return {node: int(found.get(SLOTS, 0)) for node, found in untyped.available_resources_per_node().items()}


def on_node(node: str) -> Any:
    """The scheduling strategy that starts an actor or a task on this node only."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def first_line(error: Exception) -> str:
    """A Ray error in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


async def reserve(node: str, slots: int) -> Any | None:
    """Reserve slots of a node, for `release`; None if they are not free."""
    from ray.util.placement_group import placement_group

    group = placement_group([{SLOTS: slots}], bundle_label_selector=[{NODE_LABEL: node}])
    reserved = False
    try:
        reserved = await asyncio.to_thread(group.wait, RESERVE_SECONDS)
    finally:
        if not reserved:
            release(group)
    return group if reserved else None


def release(group: Any) -> None:
    """Release reserved slots."""
    from ray.exceptions import RayError
    from ray.util.placement_group import remove_placement_group

    with contextlib.suppress(RayError, ValueError):  # Ray may be gone already
        remove_placement_group(group)
