"""Whose doing it is that an agent's sandbox ended or fell silent.

The kernel keeps every signal of a container's own processes from its process 1, and the warden's filter keeps them from
its limits. So a sandbox ends in few ways, and the daemon and the warden tell them apart:

- The warden said that it could not go on: it met something that the commands had left for it.
- The kernel's out-of-memory killer took it, after the warden had said that the container's own memory was full: the
  commands had filled it. Otherwise the machine had no more.
- Somebody outside killed, stopped or paused the container, the daemon is gone, or the client's line to it: the machine.
- The warden is silent while the container uses all that it may of processors or memory: the commands starve it. Silent
  in an idle container, it is starved or frozen from outside.

What nobody can say is put down to the machine.
"""

from __future__ import annotations

import datetime
from typing import Any

import docker.errors

from .protocol import SandboxSpec

_KILLED = 137
_WAIT = 3
"""Seconds, by the daemon's clock, in which it reports a container's end."""
_BUSY, _FULL = 0.85, 0.97
"""Share of its processors, and of its memory, from which on a container starves its own warden."""


def own_doing(api: Any, container: str, spec: SandboxSpec, broken: str | None, memory_full: bool) -> str:
    """Why the sandbox's own commands ended it; empty where they did not, or nobody can say. Blocks for seconds.

    Args:
        api: The daemon's client.
        container: Its id.
        spec: What it was made of.
        broken: What its warden said when it could not go on.
        memory_full: Whether its warden has last said that its own memory was full.

    Raises:
        docker.errors.DockerException: The daemon does not say; the errors of `requests` likewise.
    """
    if broken is not None:
        return f"the warden could not go on: {broken}"
    state = _state(api, container)
    if state is not None and state["Running"]:
        return "" if state.get("Paused") else _starving(api, container, spec)
    return _ending(api, container) if memory_full else ""


def _state(api: Any, container: str) -> dict[str, Any] | None:
    """What the daemon says of a container; None when it has removed it."""
    try:
        state: dict[str, Any] = api.inspect_container(container)["State"]
    except docker.errors.NotFound:
        return None
    return state


def _ending(api: Any, container: str) -> str:
    now = datetime.datetime.fromisoformat(api.info()["SystemTime"]).timestamp()
    killed = out_of_memory = False
    code = None
    events = api.events(since=1, until=int(now) + _WAIT, filters={"container": container}, decode=True)
    try:
        for event in events:
            action, said = event.get("Action"), event.get("Actor", {}).get("Attributes", {})
            killed = killed or action == "kill"
            out_of_memory = out_of_memory or action == "oom"
            if action == "die":
                code = int(said.get("exitCode", -1))
                break
    finally:
        events.close()
    if code == _KILLED and out_of_memory and not killed:
        return "its processes and files took all of its memory"
    return ""


def _starving(api: Any, container: str, spec: SandboxSpec) -> str:
    """What a running container has too little of by its own doing."""
    found = api.stats(container, stream=False)
    memory = found.get("memory_stats", {})
    if memory.get("limit") and memory.get("usage", 0) >= _FULL * memory["limit"]:
        return "its processes and files take all of its memory, and the warden does not get to work"
    now, before = found.get("cpu_stats", {}), found.get("precpu_stats", {})
    used = now.get("cpu_usage", {}).get("total_usage", 0) - before.get("cpu_usage", {}).get("total_usage", 0)
    seconds = _seconds(found.get("read", "")) - _seconds(found.get("preread", ""))
    may = min(spec.cpus, now.get("online_cpus") or spec.cpus)
    if seconds > 0 and used / 1e9 / seconds >= _BUSY * may:
        return "its processes take all of its processors, and the warden does not get to work"
    return ""


def _seconds(stamp: str) -> float:
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0
