"""Control groups above this process's containers, which limit the memory that all containers use together.

The budget reserves what a sandbox usually needs, not the most that it may use, so agents that fill their memory at the
same time could exhaust the machine. In a group with a limit, the kernel ends one of their processes instead. Agents and
gradings have a group each, so that agents can take neither memory nor processors from gradings.

This needs a daemon on this machine with the cgroup driver ``cgroupfs``, and the right to create control groups;
`why_none` says what is missing. A sandbox without a daemon gets its own group below these, with all of its limits; for
an ordinary user, they are below a group that is delegated to the user, such as that of a systemd user session. Without
control groups, `free_memory` at least tells whether there is memory for another sandbox.
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
"""The controllers that enforce a sandbox's limits."""
GRADING_MEMORY = 2 << 30
"""Bytes that a grading may use: the limit of its sandbox."""
WEIGHTS = {"agent": 1024, "scoring": 2048}
"""Processor weights of all agents together and of all gradings together, in cgroup 1's units; each of the machine's
other processes has 1024. Gradings have more since they have a time limit. Still more would not end them sooner, but
would slow down this process and the daemon, which every step needs."""
_HOG = 0.5
"""Share of its memory from which a sandbox itself causes a lack of memory, whichever limit was reached."""
PREFIX = "rtl-gym-"
JOB = "SLURM_JOB_ID"
"""The environment variable that Slurm sets for all processes of a job."""
_PERIOD = 100_000
"""Period of the processor quota, in microseconds."""
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
        """Bytes left below the limit. The file cache counts as free, since the kernel would reclaim it."""
        folder = self.folder(role)
        for name in ("memory.usage_in_bytes", "memory.current"):
            with contextlib.suppress(OSError, ValueError):
                lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
                # The later `total_…` of cgroup 1 include child groups, and replace the others.
                stat = {words[0].removeprefix("total_"): int(words[1]) for words in lines}
                cache = stat.get("active_file", 0) + stat.get("inactive_file", 0)
                return self.limits[role] - max(0, int((folder / name).read_text()) - cache)
        return self.limits[role]

    def folder(self, role: Role) -> Path:
        """The group's folder in the memory controller."""
        return _top(self.root, "memory") / f"{self.name}-{role}"

    def make(self) -> None:
        """Create the groups. Raises `OSError` if this process may not, or no control group here limits memory."""
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
        """Delete the groups when the last containers have ended, or after a second; does nothing in a forked child."""
        if os.getpid() == owner:
            deadline = time.monotonic() + 1.0
            while self.folder("agent").exists() and time.monotonic() < deadline:
                self.remove()
                time.sleep(0.02)
            self.remove()

    def add(self, role: Role, name: str, *, memory: int, cpus: float, pids: int, weight: int) -> SandboxGroup:
        """Create the group of a sandbox without a daemon.

        Args:
            role, name: The group that it is created below, and its name there.
            memory, cpus, pids: The limits: bytes, processors on average, processes and threads.
            weight: Processor weight on a busy machine, in cgroup 1's units.

        Raises:
            OSError: It cannot be created, or cannot enforce one of the limits.
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
    def places(self) -> dict[str, str]:
        """The group's folders, by the paths where its processes expect them."""
        if len(set(self.folders.values())) == 1:
            return {str(ROOT): str(self.folders["memory"])}
        return {str(ROOT / controller): str(folder) for controller, folder in self.folders.items()}

    def memory_share(self, *, most: bool = False) -> float:
        """The share of its memory limit in use, or the largest so far (`most`); 0 if unknown."""
        names = ("memory.peak", "memory.max_usage_in_bytes") if most else ("memory.current", "memory.usage_in_bytes")
        for used, limit in zip(names, ("memory.max", "memory.limit_in_bytes"), strict=True):
            if len(found := _numbers(self.folders["memory"], used, limit)) == 2:
                return found[0] / max(found[1], 1.0)
        return 0.0

    def lacked_memory(self) -> bool:
        """Whether a limit above was reached: the kernel ended a process, but half of the memory was never in use.

        A sandbox that uses more than half contributes to reaching that limit, and must not gain another try by it.
        """
        return 0 < self.memory_share(most=True) < _HOG and self.oom_kills() > 0

    def oom_kills(self) -> int:
        """The number of the group's processes that the kernel has ended for lack of memory."""
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
        """Delete the group if its last process has ended; otherwise, `sweep_groups` deletes it later."""
        for folder in dict.fromkeys(self.folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _settings(memory: int, weight: int) -> dict[str, dict[str, str]]:
    """The files of a group with their contents, for cgroup 1 and 2, by controller."""
    weight_2 = 1 + (weight - 2) * 9999 // 262142  # the kernel's conversion: 2..262144 to 1..10000
    return {
        "memory": {"memory.limit_in_bytes": str(memory), "memory.max": str(memory), "memory.swap.max": "0"},
        "cpu": {"cpu.shares": str(weight), "cpu.weight": str(weight_2)},
    }


def _make_group(top: Path, name: str, controller: str, files: Mapping[str, str]) -> None:
    """Create a group below a controller's folder, and write those of the files that exist in its cgroup version.

    Raises `OSError` if it cannot be created, or has none of these files.
    """
    folder = top / name
    if files and (top / "cgroup.controllers").exists():  # version 2: child groups have only these controllers
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
    """The processors that this process's control group and all above it may use (version 1 or 2); 0 for no limit."""
    names = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
    found = [_numbers(folder, *files) for folder in _own_groups(root) for files in names]
    return min((each[0] / each[1] for each in found if len(each) == 2 and min(each) > 0), default=0.0)  # -1: no limit


def job_memory(environment: Mapping[str, str] = os.environ) -> int:
    """The memory in bytes that this process's Slurm job has on this machine; 0 without a job, or if it has all memory.

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
    """A description of this machine in the format of ``docker info``, for sandboxes without a daemon."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"MemTotal": memory, "NCPU": len(os.sched_getaffinity(0)), "CgroupDriver": NO_DAEMON}


def _numbers(root: Path, *names: str) -> list[float]:
    """The numbers in some files; none if one is missing or contains a word, such as ``max`` for no limit."""
    try:
        return [float(word) for name in names for word in (root / name).read_text().split()]
    except (OSError, ValueError):
        return []


def shares(memory: int, cpus: float) -> dict[Role, int]:
    """The memory in bytes of all agents together, and of all gradings together with the waiting sandboxes.

    Gradings get what their sandboxes may use, but at most half of the machine's limit.
    """
    scoring = int(min(memory / 2, memory / 8 + cpus * GRADING_MEMORY))
    return {"agent": memory - scoring, "scoring": scoring}


def why_none(driver: str, *, local: bool, podman: bool = False) -> str:
    """Why this process cannot have groups for a daemon with this cgroup driver, or `NO_DAEMON`; empty if it can.

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
    """The highest cgroup 2 group above this process in which this user may create groups with all limits, or None.

    It contains no processes itself, since a group whose child groups have limits cannot contain any.
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
    """Create groups for this process's containers, which are removed at its exit; None if that fails, with a log line.

    `memory` is the limit of all sandboxes together in bytes, `cpus` the number of simultaneous gradings.
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
    """Bytes of memory that are available on this machine; None if unknown. The budget's limit is not considered, since
    other programs may use the rest of the machine.
    """
    try:
        words = dict(re.findall(r"(\w+):\s+(\d+) kB", MEMINFO.read_text()))
        return int(words["MemAvailable"]) * 1024
    except (OSError, KeyError):
        return None
