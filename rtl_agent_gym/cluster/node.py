"""The nodes of a Ray cluster: makes this machine a node and ends it; describes all nodes without using them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RTLGymError, SandboxError, UsageError
from ..options import WITHOUT_DAEMON
from ..sandboxes import choice
from ..sandboxes.admission import RESERVED, Budget, Limits, given_limits
from ..sandboxes.cgroups import machine_info
from ..sandboxes.daemon import ensure_daemon, is_local
from ..sandboxes.image import CONTENT_LABEL, connected, find_image
from ..sandboxes.root_folder import find_root
from ..scoring import rules_digest
from .machine import Facts, RunReport
from .machines import NAME, NAMESPACE
from .node_client import difference
from .ray_cluster import SLOTS, first_line, free_slots, name_of, node_files, nodes_with_slots, on_node, use_token

START_SECONDS, STOP_SECONDS, EXEC_SECONDS = 120.0, 30.0, 2.0
"""Time limits for Ray to start and to end, and for a started process to show its command line."""
STARTED = b"Ray runtime started"
"""What Ray prints once for each node that has started."""


def slots_here() -> int:
    """Agent sandboxes that this machine can have at the same time. Raises as `describe` does."""
    return max(1, int(Budget(describe()[1]).permits["agent"].capacity // RESERVED["agent"]))


def describe() -> tuple[Facts, Limits]:
    """A description of this machine as a node, and the limits of its sandboxes. Starts nothing.

    Raises `SandboxError` if there is no image, no daemon, or no kind of sandboxes works here, and `UsageError` if the
    limits cannot be read.
    """
    given = given_limits()
    maker = choice.made_by()
    if maker in WITHOUT_DAEMON:
        digest = find_root().digest
        found = Limits.of(machine_info(), local=True, given=given)
    else:
        with connected(maker) as client:
            api: Any = client.api
            info, image = api.info(), api.inspect_image(find_image(client))
            digest = str((image["Config"].get("Labels") or {}).get(CONTENT_LABEL) or "")
        found = Limits.of(info, local=is_local(maker, info), given=given)
    return Facts(maker, found.cpus, digest, rules_digest()), found


def start_node(head: str, slots: int, progress: Callable[[str], None], port: int = 6379) -> str:
    """Start Ray on this machine, as a node of the cluster with this head; return the head's address.

    If `head` is empty, a new one is started here, with this `port`. Raises `SandboxError` if Ray does not start, and
    `UsageError` if a head would have no token.
    """
    if not use_token() and not head:
        refuse_without_token(port, progress)
    what = f"a node of {head}, which" if head else "a head, which"
    progress(f"starting Ray as {what} has {START_SECONDS:.0f} s to answer")
    where = ["--address", head] if head else ["--head", "--port", str(port)]
    log = start_apart(ray_start(where, slots))
    wait_for(log, lambda: log.read_bytes().count(STARTED) > 0)
    progress(f"this machine is a node with {slots} slots")
    return head or address_here(port)


def refuse_without_token(port: int, progress: Callable[[str], None]) -> None:
    """Warn of a head without a token; raise `UsageError` unless ``RAY_AUTH_MODE`` is ``disabled``."""
    danger = f"without a token, every host that reaches port {port} of this machine can run code on it"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "disabled":
        raise UsageError(
            f"{danger}. Make one with `ray get-auth-token --generate`, copy ~/.ray/auth_token to the other machines, "
            "and retry. If only trusted hosts reach the port, RAY_AUTH_MODE=disabled allows a head without a token"
        )
    progress(f"WARNING: {danger}")


def ray_start(where: Sequence[str], slots: int) -> list[str]:
    """The command that runs a Ray node until it ends. Raises `UsageError` if Ray is not installed."""
    options = [*where, "--resources", json.dumps({SLOTS: slots}), "--disable-usage-stats", "--block"]
    if "--head" in where:
        options += ["--include-dashboard", "false"]
        if importlib.util.find_spec("grpc") is not None:  # then Ray also serves its client, by default at port 10001
            options += ["--ray-client-server-port", str(free_port())]
    return [_ray(), "start", *options]


def free_port() -> int:
    """A port that no process of this machine uses."""
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def address_here(port: int) -> str:
    """The address of a head on this machine. Raises `UsageError` if Ray is not installed."""
    _ray()
    import ray

    library: Any = ray.util  # this function is untyped
    return f"{library.get_node_ip_address()}:{port}"


def start_apart(command: Sequence[str]) -> Path:
    """Start the process that `stop_node` ends, with the kind of sandboxes chosen here, and return its log file.

    Raises `UsageError` if there is one already.
    """
    if (running := _running()) is not None:
        raise UsageError(f"this machine is a node already (process {running}); end it with: rtl-agent-gym cluster down")
    chosen = {} if choice.kind() == "auto" else {choice.VARIABLE: choice.kind()}
    environment, log = {**os.environ, **chosen}, node_files()[0].with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
        )
    deadline = time.monotonic() + EXEC_SECONDS
    while not _is_ours(process.pid) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # Popen can return before the kernel has set the new program's command line
    process.returncode = 0  # it keeps running; without this, Popen warns about it when it is collected
    node_files()[0].write_text(str(process.pid))
    return log


def wait_for(
    log: Path, ready: Callable[[], bool], enough: Callable[[], bool] = lambda: False, seconds: float = START_SECONDS
) -> None:
    """Wait until what `start_apart` started is ready. Ends it after a failure.

    Raises `SandboxError` if it has ended, or after `seconds` is neither ready nor usable (`enough`).
    """
    deadline = time.monotonic() + seconds
    try:
        while not ready():
            if time.monotonic() > deadline and enough():
                break
            if _running() is None or time.monotonic() > deadline:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                raise SandboxError(f"Ray does not start: {lines[-1] if lines else f'see {log}'}")
            time.sleep(0.1)
    except BaseException:
        stop_node()
        raise


def stop_node() -> bool:
    """End the node, or the nodes of a job, started here, with all their sandboxes; return whether there was one.

    Other Ray nodes on this machine keep running. Raises `SandboxError` if it does not end.
    """
    pid = _running()
    if pid is not None:
        deadline = time.monotonic() + STOP_SECONDS
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # Ray ends what it started, and srun its tasks
            while _is_ours(pid):
                if time.monotonic() > deadline:
                    raise SandboxError(f"process {pid} has not ended within {STOP_SECONDS:.0f} s")
                time.sleep(0.1)
    for file in node_files():
        if _process(file) is None:
            with contextlib.suppress(PermissionError):  # another user's file
                for suffix in (".pid", ".head"):
                    file.with_suffix(suffix).unlink(missing_ok=True)
    return pid is not None


def prepare(progress: Callable[[str], None]) -> None:
    """Ensure that sandboxes can be created: find, or install and start, the Docker daemon unless another kind works.

    Raises `SandboxError` if none can be created.
    """
    if choice.kind() == "auto":
        try:
            choice.resolved_kind()
        except SandboxError as lacks:
            try:
                ensure_daemon(progress)
            except SandboxError:
                raise lacks from None
    if (word := choice.use_daemon(choice.resolved_kind())) in WITHOUT_DAEMON:
        progress(f"sandboxes of {word}: {choice.CHECKS[word]()}")
    else:
        progress(f"Docker {ensure_daemon(progress).version} answers")


def _ray() -> str:
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise UsageError("Ray is not installed; pip install 'rtl-agent-gym[ray]'")
    return str(program)


def _running() -> int | None:
    """The process that `start_apart` started, if it is running."""
    return next((pid for file in node_files() if (pid := _process(file)) is not None), None)


def _process(file: Path) -> int | None:
    """The process that a file of `node_files` names, if it is running."""
    try:
        pid = int(file.read_text()) if file.stat().st_uid == os.getuid() else 0
    except (OSError, ValueError):
        return None
    return pid if _is_ours(pid) else None


def _is_ours(pid: int) -> bool:
    """Whether a process is Ray's or srun's: ids are reused."""
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")  # empty once it has ended
    except OSError:
        return False
    return "--block" in words or "srun" in [Path(word).name for word in words[:2]]  # the second word if it is a script


REPORT_SECONDS = 10.0
"""Time limit for a machine's report."""
DESCRIBE_SECONDS = 60.0
"""Time limit for a node's description, for which Ray may have to start a process there."""


@dataclass(frozen=True)
class NodeState:
    """A node that reports slots."""

    machine: str
    """Its host and address."""
    slots: int
    free: int
    """Slots that no run has reserved."""
    facts: Facts | None = None
    """Its own description; None if it did not answer."""
    why: str = ""
    """Why it cannot be used; empty if it can."""
    runs: list[RunReport] = field(default_factory=list)
    """Reports of its machines, one for each run that uses it."""


async def look() -> list[NodeState]:
    """All nodes that report slots. Connect to the cluster first."""
    running, free, nodes = await reports(), free_slots(), nodes_with_slots()
    found = await asyncio.gather(*(_facts(node) for node in nodes))
    digest = next((facts.digest for facts in found if isinstance(facts, Facts)), "")
    states = []
    for (node, described), facts in zip(nodes.items(), found, strict=True):
        slots, runs = int(described["Resources"][SLOTS]), running.get(node[:8], [])
        known, why = (None, facts) if isinstance(facts, str) else (facts, difference(facts, digest))
        states.append(NodeState(name_of(described), slots, free.get(node, slots), known, why, runs))
    return states


async def _facts(node: str) -> Facts | str:
    import ray
    from ray.exceptions import RayError, RayTaskError

    asked: Any = ray.remote(describe).options(num_cpus=0, max_retries=0, scheduling_strategy=on_node(node)).remote()
    try:
        async with asyncio.timeout(DESCRIBE_SECONDS):
            facts: Facts = (await asked)[0]
            return facts
    except TimeoutError:
        ray.cancel(asked, force=True)
        return f"it has not answered for {DESCRIBE_SECONDS:.0f} s"
    except RayTaskError as error:
        return str(error.cause) if isinstance(error.cause, RTLGymError) else str(error).splitlines()[-1]
    except RayError as error:
        return first_line(error)


async def reports() -> dict[str, list[RunReport]]:
    """Reports of the machines of all runs, by the first digits of their nodes' ids."""
    import ray
    from ray.exceptions import RayError

    found: dict[str, list[RunReport]] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(NAME):
            with contextlib.suppress(RayError, ValueError, TimeoutError):  # it has just ended, or does not answer
                report: Any = ray.get_actor(actor["name"], NAMESPACE).report.remote()
                node = actor["name"].removeprefix(NAME).partition("-")[0]
                found.setdefault(node, []).append(await asyncio.wait_for(report, REPORT_SECONDS))
    return found
