"""Whether other processes use the same Docker host, whose memory and processors each of them plans with."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

from ..errors import SandboxError
from ..visible import plural
from .budget import given_limits
from .client import OWNER_LABEL, owner_label, owner_lives
from .daemon import connect, docker_errors
from .limits import read_limits

MOST_NAMED = 5
"""Processes that a warning names, at most."""


def other_owners() -> dict[str, int]:
    """The number of running containers of each other process at the daemon; ``host:pid`` names a process.

    Raises:
        SandboxError: The daemon does not answer.
    """
    with docker_errors(), closing(connect()) as client:
        api: Any = client.api
        owners = [found["Labels"][OWNER_LABEL] for found in api.containers(filters={"label": OWNER_LABEL})]
    return dict(Counter(one for one in owners if one != owner_label() and owner_lives(one)))


def warning_of_others(option: str, limits: str = "") -> str:
    """A warning if other processes have containers there, and the user has not limited this one; empty otherwise.

    It is also empty if the daemon does not answer: a run that needs it says so itself.

    Args:
        option: The name of the run's option for limits.
        limits: Its value.

    Raises:
        UsageError: The user's limits cannot be read.
    """
    if {"memory", "cpus"} & (given_limits() | read_limits(limits, option)).keys():
        return ""
    try:
        owners = other_owners()
    except SandboxError:
        return ""
    if not owners:
        return ""
    named = ", ".join(sorted(owners)[:MOST_NAMED]) + (", …" if len(owners) > MOST_NAMED else "")
    others = "another process" if len(owners) == 1 else f"{len(owners)} other processes"
    return (
        f"{plural(sum(owners.values()), 'container')} of {others} on this Docker host ({named}), and each process "
        f"plans with the whole machine; give each its part, with {option}, such as memory=8G,cpus=2"
    )
