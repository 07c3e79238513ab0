"""Control groups above this process's containers: together they never use more memory than the machine's limit.

The budget only reserves memory: what a sandbox usually needs, not the most that it may use. So agents that fill their
memory at the same time could exhaust the machine. Below a group with a limit, the kernel ends one of their processes
instead. Agents and gradings have a group each, so that agents can take neither memory nor processors from gradings.

Needs a daemon on this machine with the cgroup driver ``cgroupfs``, and the right to make control groups; `why_none`
says which is missing. A sandbox without a daemon gets a group of its own below these, with all of its limits: an
ordinary user's are below a group that is delegated to the user, such as that of a systemd user session. Elsewhere,
`free_memory` at least tells whether there is room for another sandbox.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import UsageError

logger = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
NO_DAEMON = "no daemon"
"""The cgroup driver of sandboxes without a daemon."""
_LIMITED = {"cpu", "memory", "pids"}
"""The controllers that keep a sandbox's limits."""
GRADING_MEMORY = 2 << 30
"""Bytes that a grading may use: the limit of its sandbox."""
WEIGHTS = {"agent": 1024, "scoring": 2048}
"""Weights of all agents, and of all gradings, against each other and each of the machine's other processes (1024), as
cgroup 1 has them. A grading has a time limit. With more weight, gradings would end no sooner, but this process and the
daemon, which every step goes through, would wait for them."""
_HOG = 0.5
"""Share of a sandbox's memory from which on it is itself the reason for running out, whichever limit was reached."""
PREFIX = "rtl-gym-"
JOB = "SLURM_JOB_ID"
"""The environment variable of everything that a Slurm job runs."""
_PERIOD = 100_000
"""Microseconds in which a group gets its processor time."""
_NAME = re.compile(rf"{PREFIX}(\d+)-[0-9a-f]+-(agent|scoring)")

Role = Literal["agent", "scoring"]


@dataclass
class Groups:
    """The two groups of one process and daemon. Owns them; `remove` deletes those that are empty."""

    root: Path
    name: str
    limits: dict[Role, int]
    """Bytes."""

    def parent(self, role: Role) -> str:
        """The group above a sandbox, as Docker's option ``cgroup_parent``. Raises `OSError` if it cannot be made."""
        if not self.folder(role).is_dir():  # deleted by a client that does not see this process
            self.make()
        return f"/{self.name}-{role}"

    def free(self, role: Role) -> int:
        """Bytes below the limit, without the file cache, which the kernel would give back."""
        folder = self.folder(role)
        for name in ("memory.usage_in_bytes", "memory.current"):
            with contextlib.suppress(OSError, ValueError):
                lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
                # With children: their `total_…` comes later.
                stat = {words[0].removeprefix("total_"): int(words[1]) for words in lines}
                cache = stat.get("active_file", 0) + stat.get("inactive_file", 0)
                return self.limits[role] - max(0, int((folder / name).read_text()) - cache)
        return self.limits[role]

    def folder(self, role: Role) -> Path:
        """The group's folder of the memory controller."""
        return _top(self.root, "memory") / f"{self.name}-{role}"

    def make(self) -> None:
        """Make them. Raises `OSError` if this process may not, or sees no group that limits memory."""
        for role, limit in self.limits.items():
            for controller, files in _settings(limit, WEIGHTS[role]).items():
                if controller == "memory" or any(_controllers(self.root, controller)):
                    _make_group(_top(self.root, controller), f"{self.name}-{role}", controller, files)

    def remove(self) -> None:
        """Delete the groups without a container; the next client deletes the others."""
        for top in _controllers(self.root):
            for role in self.limits:
                with contextlib.suppress(OSError):  # it was never made there, or a container is still ending
                    (top / f"{self.name}-{role}").rmdir()

    def remove_at_exit(self, owner: int) -> None:
        """Delete them when the last containers have ended, or after a second; not in a child of their owner."""
        if os.getpid() == owner:
            deadline = time.monotonic() + 1.0
            while self.folder("agent").exists() and time.monotonic() < deadline:
                self.remove()
                time.sleep(0.02)
            self.remove()

    def add(self, role: Role, name: str, *, memory: int, cpus: float, pids: int, weight: int) -> SandboxGroup:
        """Make the group of a sandbox that no daemon places.

        Args:
            role, name: Below which group, and its own name there.
            memory, cpus, pids: The limits: bytes, processors on average, processes and threads.
            weight: On a busy machine, as cgroup 1 has it.

        Raises:
            OSError: It cannot be made, or has no limit for one of them.
        """
        quota, made = int(cpus * _PERIOD), SandboxGroup({})
        settings = _settings(memory, weight) | {"cpuacct": {}, "pids": {"pids.max": str(pids)}}
        settings["memory"]["memory.memsw.limit_in_bytes"] = str(memory)
        settings["cpu"] |= {
            "cpu.cfs_period_us": str(_PERIOD),
            "cpu.cfs_quota_us": str(quota),
            "cpu.max": f"{quota} {_PERIOD}",
        }
        try:
            place = f"{self.parent(role).lstrip('/')}/{name}"
            for controller, files in settings.items():
                top = _top(self.root, controller)
                made.folders[controller] = top / place
                _make_group(top, place, controller, files)
        except OSError as error:
            made.remove()
            raise OSError(f"no control group for a sandbox: {error}") from error
        return made


@dataclass
class SandboxGroup:
    """The control group of one sandbox without a daemon. Owns it until `remove`."""

    folders: dict[str, Path]
    """By controller; all the same in cgroup 2."""

    @property
    def entries(self) -> list[Path]:
        """The files into which a process writes its id to enter."""
        return [folder / "cgroup.procs" for folder in dict.fromkeys(self.folders.values())]

    @property
    def places(self) -> dict[str, str]:
        """The folders, by where processes in the group expect them."""
        if len(set(self.folders.values())) == 1:
            return {str(ROOT): str(self.folders["memory"])}
        return {str(ROOT / controller): str(folder) for controller, folder in self.folders.items()}

    def memory_share(self, *, most: bool = False) -> float:
        """The share of its memory that is in use, or was at the most; 0 if unknown."""
        names = ("memory.peak", "memory.max_usage_in_bytes") if most else ("memory.current", "memory.usage_in_bytes")
        for used, limit in zip(names, ("memory.max", "memory.limit_in_bytes"), strict=True):
            if len(found := _numbers(self.folders["memory"], used, limit)) == 2:
                return found[0] / max(found[1], 1.0)
        return 0.0

    def lacked_memory(self) -> bool:
        """Whether a limit above was reached: the kernel has ended a process, and half of the memory was never in use.

        Who takes more than half helps to reach that limit, and must not earn another try by it.
        """
        return 0 < self.memory_share(most=True) < _HOG and self.oom_kills() > 0

    def oom_kills(self) -> int:
        """Processes that the kernel has ended here for lack of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                lines = (self.folders["memory"] / name).read_text().splitlines()
                return int(dict(line.split() for line in lines)["oom_kill"])
        return 0

    def cpu_seconds(self) -> float | None:
        """Processor time used so far; None if unknown."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = (self.folders["cpu"] / "cpu.stat").read_text().splitlines()
            return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6
        found = _numbers(self.folders["cpuacct"], "cpuacct.usage")
        return found[0] / 1e9 if found else None

    def remove(self) -> None:
        """Delete it, once its last process has ended. A group that is still in use is left to `sweep_groups`."""
        for folder in dict.fromkeys(self.folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _settings(memory: int, weight: int) -> dict[str, dict[str, str]]:
    """The files of a group, of both versions, by controller."""
    weight_2 = 1 + (weight - 2) * 9999 // 262142  # the kernel's conversion: 2..262144 to 1..10000
    return {
        "memory": {"memory.limit_in_bytes": str(memory), "memory.max": str(memory), "memory.swap.max": "0"},
        "cpu": {"cpu.shares": str(weight), "cpu.weight": str(weight_2)},
    }


def _make_group(top: Path, name: str, controller: str, files: Mapping[str, str]) -> None:
    """Make a group below a controller's folder, and write those of the files that its version has.

    Raises `OSError` if it cannot be made, or has none of these files.
    """
    folder = top / name
    if files and (top / "cgroup.controllers").exists():  # version 2: a group's children have only what it names
        for above in reversed(Path(name).parents):
            (top / above / "cgroup.subtree_control").write_text(f"+{controller}")
    folder.mkdir(parents=True, exist_ok=True)
    known = [file for file in files if (folder / file).exists()]
    for file in known:
        (folder / file).write_text(files[file])
    if files and not known:
        raise FileNotFoundError(f"{folder} has no limit of {controller}")


def _top(root: Path, controller: str) -> Path:
    """The folder of a controller. Raises `FileNotFoundError` if there is none."""
    for folder in _controllers(root, controller):
        return folder
    raise FileNotFoundError(f"{root} has no control groups that limit {controller}")


def _controllers(root: Path, name: str = "*") -> Iterator[Path]:
    """The folders of the controllers of cgroup 1, or the root of cgroup 2."""
    if (root / "cgroup.controllers").exists():
        yield root
    else:
        yield from (
            path for path in sorted(root.glob(name)) if path.is_dir() and (name != "*" or not path.is_symlink())
        )


def _own_groups(root: Path) -> list[Path]:
    """The folders of this process's control group and those above it, from the root on; in version 1 the root alone."""
    own = root
    with contextlib.suppress(OSError, StopIteration):
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
        own = root / next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    return [folder for folder in reversed((own, *own.parents)) if folder.is_relative_to(root)]


def group_memory(root: Path = ROOT) -> int:
    """The memory limit in bytes of this process's control group or one above it (version 1 or 2); 0 for none."""
    names = ("memory.max", "memory/memory.limit_in_bytes")
    limits = [number for folder in _own_groups(root) for name in names for number in _numbers(folder, name)]
    return int(min((limit for limit in limits if limit < 1 << 60), default=0))  # version 1: a huge number for none


def group_cpus(root: Path = ROOT) -> float:
    """The processors that this process's control group, and each above it, may use (version 1 or 2); 0 for no limit."""
    names = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
    found = [_numbers(folder, *files) for folder in _own_groups(root) for files in names]
    return min((each[0] / each[1] for each in found if len(each) == 2 and min(each) > 0), default=0.0)  # -1: no limit


def job_memory(environment: Mapping[str, str] = os.environ) -> int:
    """The memory in bytes that this process's Slurm job has on this machine; 0 for no job, or all of the memory.

    Raises `UsageError` if a variable of Slurm's is not a number.
    """
    if not environment.get(JOB):
        return 0
    per_cpu = _job_number(environment, "SLURM_MEM_PER_CPU")
    return int(_job_number(environment, "SLURM_MEM_PER_NODE") or per_cpu * job_cpus(environment)) << 20


def job_cpus(environment: Mapping[str, str] = os.environ) -> float:
    """The processors that this process's Slurm job has on this machine; 0 for no job. Raises as `job_memory` does."""
    return _job_number(environment, "SLURM_CPUS_ON_NODE") if environment.get(JOB) else 0.0


def _job_number(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name) or "0"
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{name}: {text!r} is not a number; Slurm itself sets it") from error


def machine_info() -> dict[str, Any]:
    """This machine in the form of ``docker info``, for sandboxes without a daemon."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"MemTotal": memory, "NCPU": len(os.sched_getaffinity(0)), "CgroupDriver": NO_DAEMON}


def _numbers(root: Path, *names: str) -> list[float]:
    """The numbers in some files; none if one is missing or has a word, such as ``max`` for no limit."""
    try:
        return [float(word) for name in names for word in (root / name).read_text().split()]
    except (OSError, ValueError):
        return []


def shares(memory: int, cpus: float) -> dict[Role, int]:
    """The memory of all agents, and of all gradings with the sandboxes that wait, in bytes.

    A grading gets what its sandbox may use, unless that is more than half of the machine's limit.
    """
    scoring = int(min(memory / 2, memory / 8 + cpus * GRADING_MEMORY))
    return {"agent": memory - scoring, "scoring": scoring}


def why_none(driver: str, *, local: bool, podman: bool = False) -> str:
    """Why this process can have no groups at a daemon with this cgroup driver, or `NO_DAEMON`; empty if it can.

    `local` tells whether the daemon is on this machine.
    """
    if driver == NO_DAEMON and delegated_group() is not None:
        return ""
    if not local:
        return "the daemon is on another machine"
    if podman:
        return "Podman places its containers itself"
    if driver not in ("cgroupfs", NO_DAEMON):
        return f"the daemon's cgroup driver is {driver}, not cgroupfs"
    tops = list(_controllers(ROOT, "memory"))
    if not tops:
        return f"{ROOT} has no control groups that limit memory"
    if not all(os.access(top, os.W_OK) for top in tops):
        return "this process may not make control groups"
    return ""


def delegated_group() -> Path | None:
    """The highest group of version 2 above this process in which an ordinary user may make groups with all limits.

    It has no process of its own, as a group whose children have limits cannot have one.
    """
    try:
        for folder in _own_groups(ROOT)[1:]:
            files = [folder / "cgroup.procs", folder / "cgroup.subtree_control"]
            if (
                all(os.access(path, os.W_OK) for path in (folder, *files))
                and not files[0].read_text(encoding="ascii").strip()
                and set((folder / "cgroup.controllers").read_text(encoding="ascii").split()) >= _LIMITED
            ):
                return folder
    except OSError:
        pass
    return None


def make_groups(driver: str, memory: int, cpus: float, *, local: bool, podman: bool = False) -> Groups | None:
    """Groups for this process's containers, which are removed at its exit; None where `why_none` says why.

    All sandboxes have so many bytes of `memory`; `cpus` is how many gradings are simultaneous.
    """
    why = why_none(driver, local=local, podman=podman)
    if not why:
        root = ROOT
        if driver == NO_DAEMON and not all(os.access(top, os.W_OK) for top in _controllers(ROOT, "memory")):
            root = delegated_group() or ROOT
        sweep_groups(root)
        groups = Groups(root, f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}", shares(memory, cpus))
        try:
            groups.make()
        except OSError as error:
            groups.remove()
            why = str(error)
        else:
            atexit.register(groups.remove_at_exit, os.getpid())
            return groups
    logger.info("the memory of sandboxes is not limited together: %s", why)
    return None


def sweep_groups(root: Path = ROOT) -> None:
    """Delete the groups of processes that are gone."""
    for top in _controllers(root):
        for folder in top.glob(f"{PREFIX}*"):
            match = _NAME.fullmatch(folder.name)
            if match and not Path("/proc", match[1]).exists():
                with contextlib.suppress(OSError):  # a container is still ending
                    for sandbox in filter(Path.is_dir, folder.iterdir()):
                        sandbox.rmdir()
                    folder.rmdir()


def free_memory() -> int | None:
    """Bytes that this machine still has; None if unknown. The limit does not count here: other programs than sandboxes
    may use the rest of the machine.
    """
    try:
        words = dict(re.findall(r"(\w+):\s+(\d+) kB", MEMINFO.read_text()))
        return int(words["MemAvailable"]) * 1024
    except (OSError, KeyError):
        return None
