"""Prepares this machine as a node of a Ray cluster: its daemon, its image, its slots; and ends it again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import SandboxError, UsageError
from ..sandboxes.admission import RESERVED, Budget, Limits, given_limits, read_limits
from ..sandboxes.daemon import connect, daemon_host, ensure_daemon, is_local
from ..sandboxes.image import find_image
from .machine import METRICS_VARIABLE
from .ray_cluster import SLOTS, use_token

START_SECONDS, STOP_SECONDS = 120.0, 30.0
"""Time that Ray has to start, and to end."""
_STARTED = b"Ray runtime started"


def slots_here(limits: str = "") -> int:
    """Agent sandboxes that this machine can have at the same time.

    Raises:
        DaemonError, ImageError: There is no daemon or no simulation image.
        UsageError: The limits cannot be read.
    """
    client = connect()
    try:
        find_image(client)
        found = limits_here(client, limits)
    finally:
        client.close()
    return max(1, int(Budget(found).permits["agent"].capacity // RESERVED["agent"]))


def limits_here(client: Any, limits: str = "") -> Limits:
    """What sandboxes may use of the machine of a daemon. Raises `UsageError`: the limits cannot be read."""
    given = given_limits() | read_limits(limits, "limits")
    info = client.api.info()
    return Limits.of(info, local=is_local(daemon_host(), info), given=given)


def start_node(head: str, slots: int, progress: Callable[[str], None], port: int = 6379, metrics_port: int = 0) -> str:
    """Start Ray on this machine, as the head of a new cluster or as a node of an existing cluster.

    Args:
        head: The address of the head; empty to start one here.
        slots: Its slots.
        progress: Called with what Ray prints.
        port: Of a head that is started here.
        metrics_port: Where its machines serve metrics for Prometheus; 0 for nowhere.

    Returns:
        The address of the cluster's head.

    Raises:
        SandboxError: Ray does not start.
    """
    if (running := _running()) is not None:
        raise UsageError(f"this machine is a node already (process {running}); end it with: rtl-agent-gym cluster down")
    arguments = ["--address", head] if head else ["--head", "--port", str(port), "--include-dashboard", "false"]
    resources = ["--resources", json.dumps({SLOTS: slots})]
    command = [_ray(), "start", *arguments, *resources, "--disable-usage-stats", "--block"]
    if not use_token() and not head:
        progress(
            f"WARNING: there is no token, so every host that reaches port {port} of this machine can run code on it. "
            "Make one with `ray get-auth-token --generate`, copy ~/.ray/auth_token to the other machines, and start it "
            "again"
        )
    log = _pid_file().with_suffix(".log")
    environment = {**os.environ, METRICS_VARIABLE: str(metrics_port)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
        )
    _pid_file().write_text(str(process.pid))
    deadline = time.monotonic() + START_SECONDS
    try:
        while _STARTED not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SandboxError(f"Ray does not start: {_end(log)}")
            time.sleep(0.1)
    except BaseException:
        process.terminate()
        _pid_file().unlink(missing_ok=True)
        raise
    process.returncode = 0  # it runs on; without this, Popen warns about it when it is collected
    progress(f"this machine is a node with {slots} slots")
    if head:
        return head
    import ray

    library: Any = ray.util  # this function is untyped
    return f"{library.get_node_ip_address()}:{port}"


def stop_node() -> bool:
    """End the node that `start_node` started on this machine; containers end with it. Whether there was one.

    Other nodes of Ray on this machine stay.

    Raises:
        SandboxError: It does not end.
    """
    pid = _running()
    if pid is None:
        _pid_file().unlink(missing_ok=True)
        return False
    deadline = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)  # Ray ends what it started
        while _is_ray(pid):
            if time.monotonic() > deadline:
                raise SandboxError(f"process {pid} of Ray does not end in {STOP_SECONDS:.0f} s")
            time.sleep(0.1)
    _pid_file().unlink(missing_ok=True)
    return True


def prepare(progress: Callable[[str], None]) -> None:
    """See that a Docker daemon answers. Raises `DaemonError`."""
    progress(f"Docker {ensure_daemon(progress).version} answers")


def _ray() -> str:
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise UsageError("Ray is not installed; pip install 'rtl-agent-gym[ray]'")
    return str(program)


def _pid_file() -> Path:
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return folder / f"rtl-agent-gym-node-{os.getuid()}.pid"


def _running() -> int | None:
    """The process of the node that `start_node` started, if it is there."""
    try:
        pid = int(_pid_file().read_text())
    except (OSError, ValueError):
        return None
    return pid if _is_ray(pid) else None


def _is_ray(pid: int) -> bool:
    """Whether a process is Ray's: ids are reused."""
    try:
        stat, command = Path(f"/proc/{pid}/stat").read_text(), Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"--block" in command and stat.rpartition(")")[2].split()[0] not in "ZX"


def _end(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"see {log}"
