"""What sandboxes may use of a machine: what ``docker info`` says, the control group of this process, and the user.

The user's word is a text such as ``memory=16G,cpus=4,starts=8``, in part or whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DaemonError, UsageError

MEMORY_SHARE = 0.85
"""Share of a machine's memory for sandboxes; the rest is for the daemon and the trainer."""
STARTS_PER_CPU = 2
"""Containers that start at the same time. More would only start more slowly: a processor starts some four a second."""
VARIABLE = "RTL_GYM_SANDBOX_LIMITS"
"""The environment variable with the user's limits."""
WEAK_VARIABLE = "RTL_GYM_ALLOW_WEAK_LIMITS"
"""The environment variable that lets a daemon grade that cannot enforce all limits."""
NAMES = ("memory", "cpus", "starts", "ready")


@dataclass(frozen=True)
class Limits:
    """What sandboxes may use of a machine."""

    memory: int
    """Bytes."""
    cpus: float
    """Submissions that are graded at the same time: a simulation keeps one processor busy."""
    starts: int
    """Containers that start at the same time."""
    ready: int = 0
    """Unused agent sandboxes that each event loop keeps started, so that episodes begin at once."""

    @classmethod
    def of(cls, info: Mapping[str, Any], *, local: bool, given: Mapping[str, float] | None = None) -> Limits:
        """The limits of a daemon's machine.

        Args:
            info: The daemon's description of itself, as from ``docker info``.
            local: Whether it runs on this machine, so that this process's control group may limit it, too.
            given: Limits by name that replace the machine's.
        """
        memory, cpus = int(info.get("MemTotal") or 0) or (4 << 30), float(info.get("NCPU") or 0) or 1.0
        if local:
            memory, cpus = min(memory, group_memory() or memory), min(cpus, group_cpus() or cpus)
        cpus = max(1.0, cpus)
        found: dict[str, float] = {
            "memory": MEMORY_SHARE * memory,
            "cpus": cpus,
            "starts": STARTS_PER_CPU * cpus,
            "ready": 0,
        }
        found |= given or {}
        return cls(int(found["memory"]), found["cpus"], max(1, int(found["starts"])), int(found["ready"]))


def read_limits(text: str, source: str) -> dict[str, float]:
    """The limits in a text such as ``memory=16G,cpus=4``, by name; memory in bytes.

    Raises:
        UsageError: A name is unknown or a number is not above 0; the message begins with `source`.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        unit = r"(?:([kKMGT])(?:i?B)?)?" if name == "memory" else "()"
        match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*{unit}", number)
        if name not in NAMES or match is None or float(match[1]) <= 0:
            raise UsageError(f"{source}: {part!r} is no limit such as memory=16G, cpus=4, starts=8 or ready=2")
        found[name] = float(match[1]) * 1024.0 ** " KMGT".index((match[2] or " ").upper())
    return found


def require_enforced(missing: Sequence[str]) -> None:
    """Refuse to grade where limits of the sandbox are not enforced, unless the user allows it.

    There, a design may take all of the machine's memory, processors or processes, so that verdicts, also those of other
    gradings, depend on what else runs.

    Args:
        missing: The limits that the daemon cannot enforce.

    Raises:
        DaemonError: There are some, and `WEAK_VARIABLE` is not set.
    """
    if missing and not os.environ.get(WEAK_VARIABLE):
        raise DaemonError(
            f"this Docker host cannot enforce {', '.join(missing)}, so it does not grade. Use a host with these limits "
            f"(rootless ones need cgroup v2 with delegation; see rtl-agent-gym doctor), or accept verdicts that "
            f"depend on the machine's load: rtl-agent-gym --allow-weak-limits …, or {WEAK_VARIABLE}=1"
        )


def group_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory limit in bytes of this process's control group (version 1 or 2); 0 for none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        found = _numbers(root, [name])
        if found and found[0] < 1 << 60:  # version 1 has a huge number for no limit
            return int(found[0])
    return 0


def group_cpus(root: Path = Path("/sys/fs/cgroup")) -> float:
    """The processors that this process's control group may use (version 1 or 2); 0 for no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        found = _numbers(root, names)
        if len(found) == 2 and found[0] > 0:  # version 1 has -1 for no limit
            return found[0] / found[1]
    return 0.0


def _numbers(root: Path, names: Sequence[str]) -> list[float]:
    """The numbers in some files; none if one is missing or has a word, such as ``max`` for no limit."""
    try:
        return [float(word) for name in names for word in (root / name).read_text().split()]
    except (OSError, ValueError):
        return []
