"""Sandboxes without a daemon and without root: Linux namespaces, made by bubblewrap, or by Apptainer.

Process 1 of a `NamespaceSandbox`, in its own namespaces, is the same warden as in a container. The warden's stdin and
stdout are one end of a socket pair. It ends when this process closes the other end or ends, even by SIGKILL; everything
in the sandbox ends with it. All files that the sandbox writes are in memory.

Bubblewrap joins a user namespace (`userns.py`) and mounts the root folder, read-only, for a process that has loaded the
warden and runs nothing else (`zygote.py`). It forks into the mount, PID, network, IPC, UTS and cgroup namespaces
of each sandbox. The new process 1 mounts the work folders (`warden/zygote.py`) and gives up all capabilities before
anything else runs.

If this process may use a range of user ids, each sandbox has its own users, as a container has. Otherwise it has one
user, and namespaces protect what a keeper's user id protects in a container (`warden/relay.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ImageError, SandboxError
from .admission import Budget, budget_of
from .budgeted import BudgetedSandboxes
from .cgroups import NO_DAEMON, Groups, SandboxGroup, machine_info, why_none
from .channel import Channel
from .client import CPU_SHARES, UIDS, UserIds, finished, folders, process_limits
from .programs import programs_folder
from .protocol import SandboxSpec
from .root_build import build_root
from .root_folder import SIF, Root, apptainer, apptainer_exec, find_root, require_unchanged
from .seccomp import allowed
from .userns import UserNamespace, bubblewrap, open_ranged, open_single, why_not_ranged
from .warden.confine import SHARED_PAGES
from .warden.relay import NAMES
from .warden_sandbox import ENVIRONMENT, START_PATIENCE, CpuTime, WardenSandbox, starving
from .zygote import ENDING, Launch, Started, Zygote, bubblewrap_options, memory_file, missing_folders, set_within

HOST = "namespaces"
"""The name of this machine's budget for sandboxes without a daemon."""
_UNCOUNTED = ("memfd_create", "memfd_secret", "msgget", "shmget")
"""System calls for memory that the warden cannot count: refused if no control group limits the memory."""
_COUNTED_BY_USER = ("epoll_create", "epoll_create1")
"""System calls for epoll, whose watches the kernel limits for each user of the machine: refused if commands run as this
process's user, which would then have none left. Programs of agents cannot do without them."""
_RAISED = {resource.RLIMIT_NOFILE: 1 << 16, resource.RLIMIT_STACK: 8 << 20}
"""Limits that this process raises for itself. A sandbox takes three open files, and 1024 is a usual limit. Its programs
inherit this process's stack limit; in a container it is usually the kernel's default."""
_DECISIVE = {"data": "d", "as": "v", "fsize": "f", "cpu": "t", "nofile": "n"}
"""Limits that can change a verdict, with their letters for ``ulimit``; for open files: below `_FEWEST_FILES`."""
_FEWEST_FILES = 320
"""Open files that the warden needs: while it starts a program, it moves the program's files to the numbers from 300."""
_CPU_SECONDS = 1800
"""Processor seconds that a process must be allowed to use, as in a grading of ten minutes on two processors."""
_NOTICE = 1.0
"""Seconds within which this process notices that a sandbox has ended."""


class NamespaceSandbox(WardenSandbox):
    """One sandbox; see above. `host` is its provider's; see `WardenSandbox` for the other arguments."""

    def __init__(
        self, host: NamespaceHost, spec: SandboxSpec, budget: Budget, on_close: Callable[[NamespaceSandbox], None]
    ) -> None:
        super().__init__(spec, budget, on_close)
        self._host = host
        self._zygote: Zygote | None = None
        self._start: asyncio.Task[Started] | None = None
        self._started: Started | None = None
        """Its process 1."""
        self._errors = -1
        """The end of a pipe from which its stderr is read."""

    @property
    def pid(self) -> int:
        """The id of process 1 outside of the sandbox; 0 if it has not started."""
        return self._started.pid if self._started is not None else 0

    @property
    def image_id(self) -> str:
        return self._host.root_of(self.spec).digest

    async def _connect(self) -> None:
        try:
            await self._start_process()
        except OSError as error:  # such as too many open files
            raise SandboxError(f"sandbox {self._name} cannot be started: {error}") from error

    async def _start_process(self) -> None:
        groups = self.budget.groups if self._host.grouped else None
        self._zygote = zygote = self._host.zygote(self.spec, groups=groups is not None)
        self.uid = self._host.uids.take()
        if groups is not None:
            await finished(asyncio.to_thread(self._make_group, groups))
        near, far = socket.socketpair()
        self._socket = near
        with far:
            self._errors, errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self._start = asyncio.ensure_future(zygote.start(self._wanted(), far, errors))
                self._started = await asyncio.shield(self._start)
            finally:
                os.close(errors)
        if self._group is not None:
            await asyncio.to_thread(self._enter, self._group)
            with contextlib.suppress(OSError):  # it has ended, and the channel reports why
                near.send(b"\n")  # process 1 waits for it
        self._channel = await Channel.open(near, self._name, self._read_errors)

    def _enter(self, group: SandboxGroup) -> None:
        assert self._started is not None
        if not self._started.pid:  # it has ended, and the channel reports why; writing 0 would move this process
            return
        try:
            for folder in dict.fromkeys(group.folders.values()):
                (folder / "cgroup.procs").write_text(str(self._started.pid))
        except ProcessLookupError:  # it has ended
            return
        except OSError as error:
            raise SandboxError(f"sandbox {self._name} cannot be put into its control group: {error}") from error

    def _make_group(self, groups: Groups) -> None:
        spec, name, weight = self.spec, self._name, CPU_SHARES[self.spec.room]
        try:
            self._group = groups.add(spec.room, name, memory=spec.memory, cpus=spec.cpus, pids=spec.pids, weight=weight)
        except OSError as error:
            if getattr(error.__cause__, "errno", None) in (errno.EMFILE, errno.ENFILE):
                raise
            self.budget.drop_groups(str(error))

    def _wanted(self) -> dict[str, Any]:
        """The description of process 1, for `warden/zygote.py`."""
        root, ranged = self._host.root_of(self.spec), self._host.ranged
        guarded = self._group is None
        limits = _own_limits(self.spec, guarded=guarded)
        keeper = self.uid + 1 if ranged else self.uid
        refused = (*(_UNCOUNTED if guarded else ()), *(() if ranged or self.spec.programs else _COUNTED_BY_USER))
        words: dict[str, str] = {}
        if guarded:
            words["memory"] = str(self.spec.memory)
        if self.spec.role == "scoring":
            words |= {
                "keeper": str(keeper),
                "worker": str(self.uid),
                "kept": " ".join((*self.spec.keeper_folders, NAMES)),
            }
        else:
            words |= {"shell": ""} | ({"agent": str(self.uid)} if ranged else {})
        return {
            "single": not ranged,
            "lock": self._host.locks,
            "uid": self.uid,
            "folders": dict(sorted(folders(self.spec, self.uid, keeper).items())),
            "groups": self._group.places if self._group is not None else {},
            "shared_pages": 0 if guarded else SHARED_PAGES,
            "limits": limits,
            "refused": [number for name, number in allowed().items() if name in refused],
            "environment": {**root.environment, **ENVIRONMENT, **self.spec.env},
            "words": words,
        }

    def _read_errors(self) -> bytes:
        with contextlib.suppress(OSError):
            return os.read(self._errors, 4096)
        return b""

    async def _remove(self) -> None:
        if self._start is not None:
            with contextlib.suppress(SandboxError, OSError):
                self._started = await self._start
        if self._started is not None and self._zygote is not None:
            ended = self._started.ended
            if not await set_within(ended, ENDING):
                self._started.kill()
                if not await set_within(ended, START_PATIENCE):  # the zygote, which would report its end, hangs
                    self._zygote.kill()
                    await set_within(ended, ENDING)
        self._close_descriptors()
        if self._group is not None:
            self._group.remove()
        self._host.uids.give_back(self.uid)

    def _close_descriptors(self) -> None:
        if self._started is not None:
            self._started.close()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1

    def abandon(self) -> None:
        super().abandon()
        self._close_descriptors()

    async def _cpu_time(self) -> CpuTime | None:
        seconds = self._group.cpu_seconds() if self._group is not None else None
        return None if seconds is None else CpuTime(seconds, time.monotonic())

    async def _own_doing(self, before: CpuTime | None) -> str:
        if self._group is None:  # without a group's counters, the cause is unknown
            return ""
        assert self._started is not None
        assert self._channel is not None
        if await set_within(self._started.ended, _NOTICE):
            full = self._channel.memory_full and self._group.oom_kills() > 0
            return "its processes and files took most of its memory" if self._started.killed and full else ""
        if starved := starving(self._group.memory_share(), (), 0.0):
            return starved
        seen = [before, await self._cpu_time()]
        await asyncio.sleep(1.0)
        seen.append(await self._cpu_time())
        return starving(0.0, seen, min(self.spec.cpus, len(os.sched_getaffinity(0))))


class NamespaceHost:
    """What the sandboxes of one provider share: the root and, if there is one, the range of users."""

    locks = False
    """Whether process 1 of a sandbox must make the root's mounts read-only."""
    grouped = True
    """Whether a sandbox may have a control group."""

    def __init__(self) -> None:
        self._users: UserNamespace | None = None
        self.root: Root | None = None
        """The image's, once it is prepared."""
        self.built: dict[str, Root] = {}
        """Roots of harnesses' own images, by digest."""
        self._lock = threading.Lock()
        self.uids = UserIds(UIDS)
        self._zygotes: dict[object, Zygote] = {}
        """By root, folders that are missing in it, whether there are control groups, and an agent's programs."""

    def prepare(self) -> Root:
        """Find the image's root and make the shared user namespace, once. Raises `ImageError` or `SandboxError`."""
        with self._lock:
            if self.root is None:
                bubblewrap()
                raise_limits()
                root = find_root()
                self._users = open_single(secrets.choice(UIDS)) if why_not_ranged() else open_ranged()
                self.uids = UserIds(self._users.uids)
                self.root = root
            return self.root

    @property
    def ranged(self) -> bool:
        """Whether a sandbox can have two users. Raises as `prepare` does."""
        return self.users.ranged

    @property
    def users(self) -> UserNamespace:
        """The user namespace of all sandboxes, or the one above theirs if each has one user. Raises as `prepare`."""
        self.prepare()
        assert self._users is not None
        return self._users

    def zygote(self, spec: SandboxSpec, *, groups: bool) -> Zygote:
        """The zygote for sandboxes of a spec. Raises `SandboxError`, such as `ImageError` if the root was replaced."""
        root = self.root_of(spec)
        missing = missing_folders(root.folder, folders(spec, 0))
        programs = programs_folder(spec.programs) if spec.programs else None
        key = (root.digest, missing, groups, programs)
        found = self._zygotes.get(key)
        if found is None or not found.works:
            if found is not None:
                found.abandon()
            require_unchanged(root)
            with self.launch(root, missing, groups=groups, programs=programs) as launch:
                found = self._zygotes[key] = Zygote(launch)
        return found

    @contextlib.contextmanager
    def launch(self, root: Root, missing: Collection[str], *, groups: bool, programs: Path | None) -> Iterator[Launch]:
        """How to start a zygote, within the context.

        Args:
            root, groups: The root of its sandboxes, and whether they have control groups.
            missing: Folders to create in the root; see `missing_folders`.
            programs: The folder to mount at `programs.PLACE`; None for none.
        """
        users = self.users
        options = bubblewrap_options(root.folder, missing, ranged=users.ranged, groups=groups, programs=programs)
        arguments = memory_file(b"".join(word.encode() + b"\0" for word in options))  # the command line has a limit
        try:
            command = [bubblewrap(), "--userns", str(users.descriptor), "--args", str(arguments), "--"]
            yield Launch(command, not users.ranged, (users.descriptor, arguments))
        finally:
            os.close(arguments)

    def root_of(self, spec: SandboxSpec) -> Root:
        """The root of a sandbox. Raises `ImageError` if its image is neither the simulation image nor built here."""
        root = self.prepare()
        if spec.image in (None, root.digest):
            return root
        if spec.image not in self.built:
            raise ImageError(f"a sandbox without Docker has only the simulation image, not {spec.image}")
        return self.built[spec.image]

    def abandon(self) -> None:
        """End the zygotes without their event loop. Idempotent."""
        for zygote in self._zygotes.values():
            zygote.abandon()
        users, self._users, self.root = self._users, None, None
        if users is not None:
            users.close()

    async def close(self) -> None:
        """End the zygotes; return when they are gone. Idempotent."""
        for zygote in self._zygotes.values():
            await zygote.close()
        self.abandon()


def raise_limits() -> None:
    """Raise this process's limits of open files and of the stack, as far as it may."""
    for kind, most in _RAISED.items():
        soft, hard = resource.getrlimit(kind)
        wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(kind, (wanted, hard))


def _own_limits(spec: SandboxSpec, *, guarded: bool) -> dict[str, int]:
    """The limits of each process of a sandbox, at most this process's hard limits, which a sandbox cannot raise.

    Where a sandbox has no limit of its own, such as for processor time, this process's hard limit applies, not the soft
    one. A sandbox is `guarded` if no control group limits its memory. Raises `SandboxError` if this process's hard
    limit of memory, file size, processor time or open files is lower than a sandbox needs.
    """
    inherited = {"as": spec.memory, "cpu": _CPU_SECONDS} | ({} if guarded else {"data": spec.memory})
    limits = process_limits(spec) | {"nproc": spec.pids, "data": spec.memory} | inherited
    for name, limit in limits.items():
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
        lower = hard != resource.RLIM_INFINITY and hard < limit
        needed = _FEWEST_FILES if name == "nofile" else limit
        if lower and hard < needed and (letter := _DECISIVE.get(name)):
            number, unit = {"cpu": (1, " s"), "nofile": (1, "")}.get(name, (1024, " KiB"))
            raise SandboxError(
                f"`ulimit -H{letter}` is {hard // number}{unit} here, and a sandbox without Docker needs "
                f"{needed // number}; raise this limit, as in /etc/security/limits.conf"
            )
        if lower or name in inherited:
            limits[name] = hard
    return limits


def check_namespaces() -> str:
    """Check that such sandboxes can be started here; describe them in a sentence.

    Raises `SandboxError` if bubblewrap is missing, the kernel refuses a user namespace, or this user's limits are too
    low; `ImageError` if the image has not been unpacked.
    """
    version = subprocess.run([bubblewrap(), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    why = why_not_ranged()
    (open_single(UIDS.start) if why else open_ranged()).close()
    _own_limits(SandboxSpec(), guarded=bool(why_none(NO_DAEMON, local=True)))
    root = find_root()
    users = f"each sandbox has one user ({why})" if why else "each sandbox has its own users"
    return f"{version}; {root.folder}; {users}"


class NamespaceSandboxes(BudgetedSandboxes[NamespaceSandbox]):
    """Starts sandboxes of namespaces on this machine.

    Example:
        async with NamespaceSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self, host: NamespaceHost | None = None) -> None:
        super().__init__()
        self._host = host or NamespaceHost()

    async def budget(self) -> Budget:
        self._require_open()
        return budget_of(HOST, machine_info(), local=True)

    async def _require(self, spec: SandboxSpec) -> None:
        if spec.network:
            raise SandboxError(f"a sandbox without Docker cannot join the Docker network {spec.network}")
        if self._host.root is None:
            await asyncio.to_thread(self._host.prepare)
        self._host.root_of(spec)

    def _make(self, spec: SandboxSpec, budget: Budget) -> NamespaceSandbox:
        return NamespaceSandbox(self._host, spec, budget, self._ended)

    async def image(self) -> str:
        return (await asyncio.to_thread(self._host.prepare)).digest

    async def _build_image(self, files: Mapping[str, bytes], dockerfile: str) -> str:
        built = await asyncio.to_thread(lambda: build_root(self._host.prepare(), files, dockerfile))
        self._host.built[built.digest] = built
        return built.digest

    async def close(self) -> None:
        await super().close()
        await self._host.close()

    def abandon(self) -> None:
        super().abandon()
        self._host.abandon()


def image_file(root: Root) -> Path:
    """The image for Apptainer: the SIF file ``root.sif`` beside the root folder if it exists, otherwise the folder."""
    file = root.folder.with_name(SIF)
    return file if file.is_file() else root.folder


class ApptainerHost(NamespaceHost):
    """The same with Apptainer, for clusters that have it but no bubblewrap.

    Apptainer starts the same zygote in the same root folder, or in a SIF file beside it. Each sandbox has its own user
    namespace, so the limits, the system call filter and the read-only root are those of a sandbox with one user.

    What Apptainer cannot enforce is refused. Its containers have one user, so each sandbox has one. Root gets no
    sandboxes, since the kernel does not limit root's processes. Apptainer's own limits need control groups that root
    has delegated, and are not used. Harnesses' own images are built by bubblewrap, and refused without it.
    """

    locks = True
    grouped = False

    def prepare(self) -> Root:
        with self._lock:
            if self.root is None:
                apptainer()
                raise_limits()
                self.root = find_root()
            return self.root

    @property
    def ranged(self) -> bool:
        return False

    @contextlib.contextmanager
    def launch(self, root: Root, missing: Collection[str], *, groups: bool, programs: Path | None) -> Iterator[Launch]:
        if programs is not None:
            raise SandboxError("with Apptainer, sandboxes cannot have the programs of agents; use namespaces or Docker")
        scratch = [word for path in missing for word in ("--scratch", path)]
        command, environment = apptainer_exec(image_file(root), *scratch)
        yield Launch(command, single=True, environment=environment)


class ApptainerSandboxes(NamespaceSandboxes):
    """Starts sandboxes with Apptainer on this machine.

    Example:
        async with ApptainerSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self) -> None:
        super().__init__(ApptainerHost())


def check_apptainer() -> str:
    """Check that Apptainer and the image are here; describe them in a sentence. Starts nothing.

    Raises `SandboxError` if Apptainer is missing, `ImageError` if the image has not been unpacked.
    """
    version = subprocess.run([apptainer(), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return f"{version}; {image_file(find_root())}; one user per sandbox"
