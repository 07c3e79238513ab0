"""Finds out whether an agent's commands or the machine ended or silenced its sandbox.

The kernel protects a container's process 1 from signals of the container's other processes, and the warden's filter
protects its limits. So a sandbox can end only in the following ways, which the daemon and the warden can distinguish:

- The warden reported that it could not continue: the commands' fault.
- The kernel's out-of-memory killer ended it after the warden reported that half of the container's own memory or more
  was in use: the commands' fault. Without such a report, the machine was out of memory.
- Something outside killed, stopped or paused the container, or the daemon or the connection is gone: the machine's
  fault.
- The warden is silent while the container uses all its memory, or all its processors at the end or during the whole
  silence: the commands starve it. In an idle container, it is starved or frozen from outside.

In case of doubt the machine is to blame.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
from contextlib import closing
from typing import Any, NamedTuple

import docker.errors

from .protocol import SandboxSpec

_KILLED = "137"
_WAIT = 3
"""Seconds, by the daemon's clock, within which it reports a container's end."""
_BUSY, _FULL = 0.85, 0.97
"""Share of its processors, and of its memory, from which on a container starves its own warden."""


class Usage(NamedTuple):
    """The processor time that a container had used at some moment."""

    seconds: float
    at: float
    """By the daemon's clock."""


def usage(api: Any, container: str) -> Usage:
    """What a container has used. Raises as `own_doing` does."""
    return _usage(api.stats(container, stream=False, one_shot=True), "cpu_stats", "read")


def own_doing(
    api: Any, container: str, spec: SandboxSpec, broken: str | None, memory_full: bool, before: Usage | None = None
) -> str:
    """How the sandbox's own commands ended it; empty if they did not, or if that is unknown. Blocks for seconds.

    Args:
        api: The daemon's client.
        container: Its id.
        spec: Its limits.
        broken: The warden's report that it could not continue, if any.
        memory_full: Whether half of the sandbox's memory was in use by the warden's last report.
        before: What it had used when its warden's silence began, if that is known.

    Raises:
        docker.errors.DockerException: The daemon does not answer; the errors of `requests` likewise.
    """
    if broken is not None:
        return f"the warden could not continue: {broken}"
    with contextlib.suppress(docker.errors.NotFound):  # it has been removed
        state = api.inspect_container(container)["State"]
        if state["Running"]:
            return "" if state.get("Paused") else _starving(api, container, spec, before)
    return _ending(api, container) if memory_full else ""


def _ending(api: Any, container: str) -> str:
    """Whether, by the daemon's events, a lack of memory ended a container: how, in a sentence, or empty."""
    now = datetime.datetime.fromisoformat(api.info()["SystemTime"]).timestamp()
    actions = set()
    with closing(api.events(since=1, until=int(now) + _WAIT, filters={"container": container}, decode=True)) as events:
        for event in events:
            actions.add(event.get("Action"))
            if "die" in actions:
                killed = event.get("Actor", {}).get("Attributes", {}).get("exitCode") == _KILLED
                if killed and "oom" in actions and "kill" not in actions:
                    return "its processes and files took most of its memory"
                break
    return ""


def _starving(api: Any, container: str, spec: SandboxSpec, before: Usage | None) -> str:
    """The resource that a running container has used up, in a sentence; empty if none."""
    found = api.stats(container, stream=False)
    memory = found.get("memory_stats", {})
    if memory.get("limit") and memory.get("usage", 0) >= _FULL * memory["limit"]:
        return "its processes and files take all of its memory and starve the warden"
    may = min(spec.cpus, found.get("cpu_stats", {}).get("online_cpus") or spec.cpus)
    known = [_usage(found, "precpu_stats", "preread"), _usage(found, "cpu_stats", "read")]
    for first, last in itertools.combinations([*([before] if before else []), *known], 2):
        if last.at > first.at and last.seconds - first.seconds >= _BUSY * may * (last.at - first.at):
            return "its processes take all of its processors and starve the warden"
    return ""


def _usage(found: Any, part: str, stamp: str) -> Usage:
    return Usage(found.get(part, {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9, _seconds(found.get(stamp, "")))


def _seconds(stamp: str) -> float:
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0
