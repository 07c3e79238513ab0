"""Prepares this machine as a node of a Ray cluster: its daemon, its image, its slots; and ends it again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import SandboxError, UsageError
from ..sandboxes.budget import RESERVED, Budget
from ..sandboxes.daemon import connect, daemon_host, ensure_daemon
from ..sandboxes.image import find_image
from ..sandboxes.limits import Limits, read_limits
from .machines import SLOTS


def slots_here(limits: str = "") -> int:
    """Agent sandboxes that this machine can have at the same time.

    Raises:
        DaemonError, ImageError: There is no daemon or no simulation image.
        UsageError: The limits cannot be read.
    """
    host = daemon_host()
    client = connect()
    try:
        find_image(client)
        info: Any = client.api.info()
    finally:
        client.close()
    found = Limits.of(info, local=host.startswith("unix://"), given=read_limits(limits, "limits"))
    return max(1, int(Budget(found).tokens["agent"].capacity // RESERVED["agent"]))


def start_node(head: str, slots: int, progress: Callable[[str], None], port: int = 6379) -> str:
    """Start Ray on this machine, as the head of a new cluster or as a node of another one.

    Args:
        head: The address of the head; empty to start one here.
        slots: Its slots.
        progress: Called with what Ray prints.
        port: Of a head that is started here.

    Returns:
        The address of the cluster's head.

    Raises:
        SandboxError: Ray does not start.
    """
    arguments = ["--address", head] if head else ["--head", "--port", str(port), "--include-dashboard", "false"]
    done = _ray("start", *arguments, "--resources", json.dumps({SLOTS: slots}), "--disable-usage-stats")
    if done.returncode:
        raise SandboxError(f"Ray does not start: {_end(done)}")
    progress(f"this machine is a node with {slots} slots")
    if head:
        return head
    import ray

    library: Any = ray.util  # this function is untyped
    return f"{library.get_node_ip_address()}:{port}"


def stop_node() -> None:
    """End Ray on this machine; containers end with it. Raises `SandboxError`."""
    done = _ray("stop")
    if done.returncode:
        raise SandboxError(f"Ray does not stop: {_end(done)}")


def prepare(progress: Callable[[str], None]) -> None:
    """See that a Docker daemon answers. Raises `DaemonError`."""
    progress(f"Docker {ensure_daemon(progress).version} answers")


def _ray(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise UsageError("Ray is not installed; pip install 'rtl-agent-gym[ray]'")
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)


def _end(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"
