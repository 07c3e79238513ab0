"""Sandboxes without a daemon and without root: Linux namespaces, made by bubblewrap.

A `NamespaceSandbox` is a bubblewrap process and below it, as process 1 of namespaces of its own, the same warden as in
a container. The warden's stdin and stdout are one end of a socket pair. It ends when this process closes the other end
or ends, also by SIGKILL; with it ends everything in the sandbox, whose files are all in memory.

Bubblewrap makes the mount, PID, network, IPC, UTS and cgroup namespaces and mounts the root folder, read-only, and the
work folders. It joins a user namespace (`userns.py`) in which no other one can be made. The warden finishes the set-up
(`warden/setup.py`) and gives up all capabilities before anything else runs.

Where this process may use a range of user ids, a sandbox has users of its own, as a container has. Elsewhere it has one
user, so that there is no keeper, and no scoring sandbox is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..errors import ImageError, SandboxError, SandboxLost
from .admission import Budget, budget_of
from .budgeted import CLOSED, BudgetedSandboxes
from .cgroups import SandboxGroup
from .channel import Channel
from .client import CPU_SHARES, SHARED_PAGES, UIDS, folders, process_limits
from .protocol import SandboxSpec
from .root_build import build_root
from .root_folder import Root, find_root
from .seccomp import allowed, compile_filter
from .userns import UserNamespace, bubblewrap, open_ranged, open_single, why_not_ranged
from .warden import program
from .warden.setup import CAPABILITIES
from .warden_sandbox import BUSY, ENVIRONMENT, FULL, CpuTime, WardenSandbox

HOST = "namespaces"
"""The name of this machine's budget for sandboxes without a daemon."""
_NAMESPACES = ("pid", "net", "ipc", "uts", "cgroup")
_MASKED_FILES = ("kcore", "keys", "latency_stats", "sched_debug", "timer_list")
_MASKED_FOLDERS = ("acpi", "asound", "scsi")
"""Of /proc: what Docker hides, too."""
_SHARED_MEMORY = 64 << 20
_UNCOUNTED = ("memfd_create", "memfd_secret", "msgget", "shmget")
"""Calls that take memory which the warden cannot count: refused where no control group limits the memory."""
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
"""A shell's script: enter control groups, then become the program after ``--``."""
_NOTICE = 1.0
"""Seconds within which this process notices that a sandbox has ended."""
_ENDING = 10.0
"""Seconds within which a sandbox ends by itself once its socket is closed."""


class NamespaceSandbox(WardenSandbox):
    """One sandbox; see above.

    Args:
        host: The provider's user namespace and root.
        budget: Of this machine, with its control groups.
        spec: Limits and files.
        on_close: Called when it has ended.
    """

    def __init__(
        self, host: NamespaceHost, budget: Budget, spec: SandboxSpec, on_close: Callable[[NamespaceSandbox], None]
    ) -> None:
        super().__init__(f"rtl-gym-{spec.role}-{os.getpid()}-{secrets.token_hex(4)}", spec)
        self._host, self._budget, self._on_close = host, budget, on_close
        self._starting = asyncio.Lock()
        self._socket: socket.socket | None = None
        """To the warden: the sandbox ends when it is closed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._first_ended, self._gone = asyncio.Event(), asyncio.Event()
        """Set when process 1 has ended, and with it everything in the sandbox; when bubblewrap has, too."""
        self._first = -1
        """A descriptor of process 1."""
        self._group: SandboxGroup | None = None
        """The control group with its limits; None where this process may not make one."""
        self._errors = self._info = -1
        """The ends of pipes from which stderr and bubblewrap's report are read."""
        self.uid = -1
        """The user id of its commands; in a sandbox with a keeper, the keeper has the next one."""

    @property
    def pid(self) -> int:
        """The id of the bubblewrap process outside of the sandbox; 0 if it has not started."""
        return self._process.pid if self._process is not None else 0

    async def open(self) -> None:
        async with self._starting:
            if self._closing is not None:
                raise SandboxLost(f"sandbox {self._name} was closed before it started")
            await asyncio.to_thread(self._host.prepare)
            self._group = self._make_group()
            shared = self._host.users
            users = shared if shared else await asyncio.to_thread(open_single, secrets.choice(UIDS))
            try:
                self.uid = self._host.take_uid() if shared else users.uids[0]
                # Not in another thread: the kernel ends bubblewrap when the thread that started it ends.
                near = self._start(users)
            finally:
                if users is not shared:
                    users.close()
            self._channel = await Channel.open(near, self._name, self._read_errors)
            await self._find_first()
            await self._greet()

    def _make_group(self) -> SandboxGroup | None:
        groups = self._budget.groups
        if groups is None:
            return None
        spec, weight = self.spec, CPU_SHARES[self.spec.role]
        try:
            return groups.add(spec.role, self._name, memory=spec.memory, cpus=spec.cpus, pids=spec.pids, weight=weight)
        except OSError as error:
            self._budget.drop_groups(str(error))
            return None

    def _start(self, users: UserNamespace) -> socket.socket:
        near, far = socket.socketpair()
        self._socket = near
        self._errors, errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._info, info = os.pipe2(os.O_CLOEXEC)
        arguments = os.memfd_create("arguments")  # not the command line, which every user of the machine can read
        try:
            os.write(arguments, b"".join(word.encode() + b"\0" for word in self._options(users)))
            os.lseek(arguments, 0, os.SEEK_SET)
            entering = ["/bin/sh", "-c", _ENTER, "sh", *map(str, self._group.entries), "--"] if self._group else []
            joining = [
                *entering,
                bubblewrap(),
                "--userns",
                str(users.descriptor),
                "--args",
                str(arguments),
                "--info-fd",
                str(info),
            ]
            warden = ["/usr/bin/python3", "-ISBc", program(), *self._warden_words(users)]
            self._process = subprocess.Popen(
                [*joining, "--", *warden],
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=errors,
                pass_fds=(users.descriptor, arguments, info),
                env={},
            )
        except OSError as error:
            raise SandboxError(f"sandbox {self._name} cannot be started: {error}") from error
        finally:
            far.close()
            for descriptor in (errors, info, arguments):
                os.close(descriptor)
        _when_ended(os.pidfd_open(self._process.pid), self._monitor_ended)
        return near

    def _monitor_ended(self) -> None:
        """Bubblewrap has ended, usually since process 1 has. If something else ended it, process 1 runs on."""
        assert self._process is not None
        self._process.wait()
        if self._first_ended.is_set():
            self._gone.set()
        elif self._first >= 0:
            self._kill()

    def _on_first_ended(self) -> None:
        self._first_ended.set()
        if self._process is not None and self._process.returncode is not None:
            self._gone.set()

    async def _find_first(self) -> None:
        """Find process 1, by bubblewrap's report, and notice its end."""
        with os.fdopen(self._info, "rb") as file:
            self._info = -1
            report = await asyncio.to_thread(file.read)  # bubblewrap closes it when it has started process 1
        try:
            self._first = os.pidfd_open(json.loads(report)["child-pid"])
        except (ValueError, KeyError, ProcessLookupError):  # it never started, or has ended; its errors say why
            self._on_first_ended()
        else:
            _when_ended(os.dup(self._first), self._on_first_ended)

    def _kill(self) -> None:
        """End process 1 at once. The owner of a user namespace may do that to its processes, bubblewrap may not."""
        if self._first >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        elif self._process is not None:
            self._process.kill()

    def _options(self, users: UserNamespace) -> Iterator[str]:
        """Bubblewrap's options."""
        yield from (f"--unshare-{name}" for name in _NAMESPACES)
        yield from ("--hostname", "rtl", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv")
        yield from ("--cap-drop", "ALL")
        for name in CAPABILITIES if users.ranged else CAPABILITIES[:3]:
            yield from ("--cap-add", name)
        root = self._host.root_of(self.spec)
        tmpfs = {path: _mount_options(text) for path, text in sorted(folders(self.spec, self.uid).items())}
        yield from _root_options(root.folder, tmpfs)
        yield from ("--dev", "/dev", "--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm")
        yield from ("--remount-ro", "/dev", "--proc", "/proc")
        for name in _MASKED_FILES:
            if Path("/proc", name).exists():
                yield from ("--ro-bind", "/dev/null", f"/proc/{name}")
        for name in _MASKED_FOLDERS:
            if Path("/proc", name).exists():
                yield from ("--size", "4096", "--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}")
        for path, options in tmpfs.items():
            yield from ("--perms", options["mode"], "--size", options["size"], "--tmpfs", path)
        if self._group is not None:
            yield from ("--size", "4096", "--perms", "0755", "--tmpfs", "/sys")
            for folder_made in ("/sys/fs", "/sys/fs/cgroup"):
                yield from ("--perms", "0755", "--dir", folder_made)
            if self._group.is_version_1:
                for controller, folder in self._group.folders.items():
                    yield from ("--ro-bind", str(folder), f"/sys/fs/cgroup/{controller}")
            else:
                yield from ("--ro-bind", str(self._group.folders["memory"]), "/sys/fs/cgroup")
            yield from ("--remount-ro", "/sys")
        yield from ("--remount-ro", "/", "--chdir", "/")
        for name, value in {**root.environment, **ENVIRONMENT, **self.spec.env}.items():
            yield from ("--setenv", name, value)

    def _warden_words(self, users: UserNamespace) -> list[str]:
        """The warden's arguments."""
        mounted = []
        for path, text in folders(self.spec, self.uid).items():
            options = _mount_options(text)
            owner = int(options.get("uid", 0 if users.ranged else self.uid))
            limits = f"size={options['size']},nr_inodes={options['nr_inodes']}"
            mounted.append([path, limits, owner, "exec" in options])
        processes = process_limits(self.spec) | {"nproc": self.spec.pids}
        guarded = self._group is None
        if guarded:
            processes["data"] = self.spec.memory
        refused = [number for name, number in allowed().items() if guarded and name in _UNCOUNTED]
        setup = {
            "folders": mounted,
            "shared_pages": 0 if guarded else SHARED_PAGES,
            "limits": processes,
            "refused": refused,
            "filter": compile_filter().hex(),
        }
        words = [f"setup={json.dumps(setup)}", *([f"memory={self.spec.memory}"] if guarded else [])]
        if self.spec.role == "scoring":
            return [*words, f"keeper={self.uid + 1}", f"worker={self.uid}"]
        return [*words, "shell", *([f"agent={self.uid}"] if users.ranged else [])]

    def _read_errors(self) -> bytes:
        with contextlib.suppress(OSError):
            return os.read(self._errors, 4096)
        return b""

    def abandon(self) -> None:
        if self._socket is not None:
            self._socket.close()

    async def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        async with self._starting:  # a start in progress sees that it was closed
            if self._channel is not None:
                self._channel.close()
            if self._socket is not None:
                self._socket.close()
            if self._process is not None:
                try:
                    await asyncio.wait_for(self._gone.wait(), _ENDING)
                except TimeoutError:
                    self._kill()
                    await self._gone.wait()
        for descriptor in (self._errors, self._info, self._first):
            if descriptor >= 0:
                os.close(descriptor)
        self._errors = self._info = self._first = -1
        if self._group is not None:
            self._group.remove()
        self._host.return_uid(self.uid)
        self._on_close(self)

    async def _cpu_time(self) -> CpuTime | None:
        seconds = self._group.cpu_seconds() if self._group is not None else None
        return None if seconds is None else CpuTime(seconds, time.monotonic())

    async def _own_doing(self, before: CpuTime | None) -> str:
        assert self._channel is not None
        if self._channel.broken is not None:
            return f"the warden could not continue: {self._channel.broken}"
        if self._group is None:  # without its counters nothing is known
            return ""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), _NOTICE)
        if self._gone.is_set():
            killed = self._process is not None and self._process.returncode == 128 + signal.SIGKILL
            full = self._channel.memory_full and self._group.oom_kills() > 0
            return "its processes and files took most of its memory" if killed and full else ""
        return await self._starving(self._group, before)

    async def _starving(self, group: SandboxGroup, before: CpuTime | None) -> str:
        """How a running sandbox starves its warden, in a sentence; empty if it does not."""
        if group.memory_share() >= FULL:
            return "its processes and files take all of its memory and starve the warden"
        seen = [before, await self._cpu_time()]
        await asyncio.sleep(1.0)
        seen.append(await self._cpu_time())
        may = min(self.spec.cpus, len(os.sched_getaffinity(0)))
        for first, last in itertools.combinations([found for found in seen if found is not None], 2):
            if last.seconds - first.seconds >= BUSY * may * (last.at - first.at) > 0:
                return "its processes take all of its processors and starve the warden"
        return ""


def _when_ended(descriptor: int, call: Callable[[], object]) -> None:
    """Call once when the process of a descriptor has ended. Takes the descriptor over."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        call()

    loop.add_reader(descriptor, ended)


def _mount_options(text: str) -> dict[str, str]:
    """The options of a folder in memory by name; those without a value are empty."""
    return dict(part.partition("=")[::2] for part in text.split(","))


def _root_options(root: Path, folders_in_memory: Mapping[str, object]) -> Iterator[str]:
    """Mount the root, read-only. If a folder in memory is not in it, mount its entries, so that the folder can be made.

    Raises:
        SandboxError: A folder in memory would be below one of the root's own folders that does not have it.
    """
    missing = [
        path
        for path in folders_in_memory
        if not (root / path.lstrip("/")).is_dir()
        and not any(path.startswith(f"{other}/") for other in folders_in_memory)
    ]
    if not missing:
        yield from ("--ro-bind", str(root), "/")
        return
    for path in missing:
        if len(Path(path).parts) > 2 and (root / Path(path).parts[1]).is_dir():
            raise SandboxError(f"the folder {path} of a sandbox without Docker is not in the image")
    made = {"dev", "proc", "sys", *(Path(path).parts[1] for path in folders_in_memory if len(Path(path).parts) == 2)}
    with os.scandir(root) as entries:
        for entry in sorted(entries, key=lambda found: found.name):
            if entry.is_symlink():
                yield from ("--symlink", os.readlink(entry.path), f"/{entry.name}")
            elif entry.name not in made:
                yield from ("--ro-bind", entry.path, f"/{entry.name}")


class NamespaceHost:
    """What the sandboxes of one provider share: the root and, where there is one, a range of users."""

    def __init__(self) -> None:
        self.users: UserNamespace | None = None
        """None if each sandbox gets a namespace with one user."""
        self._root: Root | None = None
        self._built: dict[str, Root] = {}
        """Roots of harnesses' own images, by id."""
        self._lock = threading.Lock()
        self._uids: set[int] = set()

    def prepare(self) -> None:
        """Find the root and make the shared user namespace, once. Raises `ImageError` or `SandboxError`."""
        with self._lock:
            if self._root is None:
                bubblewrap()
                root = find_root()
                if not why_not_ranged():
                    self.users = open_ranged()
                self._root = root

    @property
    def root(self) -> Root:
        """The image's files. Raises as `prepare` does."""
        if self._root is None:
            self.prepare()
        assert self._root is not None
        return self._root

    def root_of(self, spec: SandboxSpec) -> Root:
        """The root of a sandbox. Raises `ImageError` if its image is neither the simulation image nor built here."""
        if spec.image in (None, self.root.id):
            return self.root
        if spec.image not in self._built:
            raise ImageError(f"a sandbox without Docker has only the simulation image, not {spec.image}")
        return self._built[spec.image]

    def add(self, root: Root) -> str:
        """Let sandboxes have this root; returns its id."""
        self._built[root.id] = root
        return root.id

    def take_uid(self) -> int:
        """A user id that no other sandbox of this provider has; its keeper has the next one."""
        assert self.users is not None
        while (uid := secrets.choice(self.users.uids)) in self._uids:
            pass
        self._uids.add(uid)
        return uid

    def return_uid(self, uid: int) -> None:
        """Release the user id of a sandbox that has ended."""
        self._uids.discard(uid)

    def close(self) -> None:
        """Idempotent."""
        users, self.users, self._root = self.users, None, None
        if users is not None:
            users.close()


def check_namespaces() -> str:
    """Whether such sandboxes can be made here; describes them in a sentence.

    Raises:
        SandboxError: Bubblewrap is missing, or the kernel refuses a user namespace.
        ImageError: The image has not been unpacked.
    """
    version = subprocess.run([bubblewrap(), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    why = why_not_ranged()
    (open_single(UIDS.start) if why else open_ranged()).close()
    root = find_root()
    users = f"one user per sandbox ({why}), so that nothing is graded" if why else "each sandbox has its own users"
    return f"{version}; {root.folder}; {users}"


class NamespaceSandboxes(BudgetedSandboxes[NamespaceSandbox]):
    """Makes sandboxes of namespaces on this machine.

    Example:
        async with NamespaceSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self) -> None:
        super().__init__()
        self._host = NamespaceHost()

    async def budget(self) -> Budget:
        """The budget of this machine for such sandboxes. Raises `SandboxLost` if this provider is closed."""
        if self._closed:
            raise SandboxLost(CLOSED)
        return self._known_budget()

    def _known_budget(self) -> Budget:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        info = {"MemTotal": memory, "NCPU": len(os.sched_getaffinity(0)), "CgroupDriver": "cgroupfs"}
        return budget_of(HOST, info, local=True)

    async def _ready_for(self, spec: SandboxSpec) -> Budget:
        if spec.network:
            raise SandboxError(f"a sandbox without Docker cannot join the Docker network {spec.network}")
        await asyncio.to_thread(self._host.prepare)
        self._host.root_of(spec)
        if spec.role == "scoring" and self._host.users is None:
            raise SandboxError(
                "nothing is graded without Docker by a user without a range of user ids, since the hidden tests need a "
                f"second user: {why_not_ranged()}"
            )
        return await self.budget()

    def _make(self, spec: SandboxSpec) -> NamespaceSandbox:
        return NamespaceSandbox(self._host, self._known_budget(), spec, self._ended)

    async def image(self) -> str:
        return await asyncio.to_thread(lambda: self._host.root.id)

    async def image_digest(self) -> str:
        return await asyncio.to_thread(lambda: self._host.root.digest)

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        built = await asyncio.to_thread(lambda: build_root(self._host.root, files, dockerfile))
        return self._host.add(built)

    async def close(self) -> None:
        await super().close()
        self._host.close()
