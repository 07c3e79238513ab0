"""A provider's client of the Docker daemon, and the daemon's options for a container: users, owner, limits.

The client connects at first use and makes its blocking calls in threads.

Podman's Docker-compatible API cannot set the owner, mode or number of files of a folder in memory, so a container gets
volumes of type tmpfs instead, with the kernel's own options. They are named after the container and removed after it;
those of a client that was killed are removed by the next one. A volume without a container is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import docker
import docker.errors
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from ..errors import SandboxError
from .admission import Budget, budget_of
from .daemon import connect, daemon_host, docker_errors, is_local, is_podman, missing_limits
from .programs import PLACE, programs_folder
from .protocol import SandboxSpec
from .results import WORK_DIR
from .warden.confine import SHARED_PAGES
from .warden.relay import NAMES

THREADS = 16
"""Threads for calls to the daemon, in addition to one for each container that may start at the same time."""
ENDS = 4
"""Containers that one client ends at the same time."""
OWNER_LABEL = "io.rtl-agent-gym.owner"
"""The label of every container, with the process that owns it."""
UIDS = range(0x4000_0000, 0x7000_0000, 2)
"""User ids of agents; each keeper has the next. To the kernel, containers with the same user id are one user, with one
limit on epoll watches, inotify instances, pending signals and keys. So each container draws an id at random from a
large range, which systemd reserves for containers: https://systemd.io/UIDS-GIDS/"""
MAPPED_UIDS = range(2000, 65_000, 2)
"""The same, if the daemon maps the ids of containers to a range of 65,536, as rootless Docker does."""
CPU_SHARES = {"agent": 256, "scoring": 4096}
"""Processor weights on a busy machine: a grading must not miss its time limit because of agents' commands."""
MAX_INODES = 32_768
"""Files and folders in each of the folders in memory, at most. The kernel's memory for them counts against the
container's, but not against the folders' sizes."""
MAX_FILES = 1024
"""Open files of each process, at most. All containers share the machine's table of open files, by default one per 10
KiB of its memory; a container can take this number times its number of processes."""
_PAGE = 4096
_UID_MAP, _PID_NAMESPACE = Path("/proc/self/uid_map"), Path("/proc/self/ns/pid")
_MACHINE_ID = Path("/etc/machine-id")
_KEPT = {"uid", "gid", "mode", "nr_inodes"}
"""Options of a tmpfs that belong to the volume; the others belong to its mount in the container."""
PROCESSES = 16_384
"""Limit on a user's processes given to Podman, whose default fails if it is above the limit that Podman runs under."""

REMOVAL = 30.0
"""Seconds for which a removal is retried while the daemon says that the object is in use or being removed."""

T = TypeVar("T")


class DockerClient:
    """Owns its connections and threads until `close`. `host` is the daemon's address; None for `daemon_host`."""

    def __init__(self, host: str | None = None) -> None:
        self.host = host
        self._client: docker.DockerClient | None = None
        self.podman = False
        self.missing_limits: tuple[str, ...] = ()
        self.info: Mapping[str, Any] = {}
        """The daemon's description of itself, once connected."""
        self._connecting = threading.Lock()
        self._starters = _threads(THREADS)
        self._enders = _threads(ENDS)
        self._budget: Budget | None = None
        self.uids = UserIds(UIDS)
        self._left: set[str] = set()
        """Containers whose removal has failed."""

    def docker(self) -> docker.DockerClient:
        """docker-py's client, connected at first use."""
        with self._connecting:
            if self._client is None:
                host = self.host or daemon_host()
                client = connect(host, timeout=120)
                self.info = info = client.api.info()
                self.podman = is_podman(client.api)
                self.missing_limits = missing_limits(client.api, info)
                budget = budget_of(host, info, podman=self.podman)
                self.uids = UserIds(uid_range(info, local=is_local(host, info)))
                sweep(client.api, podman=self.podman)
                self._starters = _threads(THREADS + budget.limits.starts)  # created when needed
                self._client, self._budget = client, budget  # last, since `budget` does not wait for the lock
        return self._client

    async def budget(self) -> Budget:
        """The budget of the daemon's machine. Raises like `call`, and `UsageError` for an invalid variable."""
        if self._budget is None:
            await self.call(self.docker)
        assert self._budget is not None
        return self._budget

    async def call(self, work: Callable[[], T], *, ending: bool = False) -> T:
        """Run blocking Docker calls in a thread. Starting never waits for ending. Raises `SandboxError`."""

        def translated() -> T:
            with docker_errors():
                return work()

        threads = self._enders if ending else self._starters
        return await finished(asyncio.get_running_loop().run_in_executor(threads, translated))

    async def remove(self, name: str) -> None:
        """Remove a container in any state. If the daemon fails, `remove_left` removes it later."""
        try:
            await self.call(lambda: self._remove(name), ending=True)
        except SandboxError:
            self._left.add(name)

    async def remove_left(self) -> None:
        """Remove the containers that could not be removed when their sandboxes ended.

        A daemon that is killed while it creates a container still has it after its restart, but never starts or removes
        it.
        """
        left, self._left = self._left, set()
        await asyncio.gather(*map(self.remove, left))

    def _remove(self, name: str) -> None:
        api: Any = self.docker().api
        # While a container ends by itself, Docker answers 409 (its removal is in progress), and Podman 409 or 500.
        busy = (409, 500) if self.podman else (409,)
        removing = _repeating(lambda error: getattr(error, "status_code", None) in busy)
        with contextlib.suppress(docker.errors.NotFound):
            removing(api.remove_container, name, force=True, v=True)
        if self.podman:
            remove_volumes(api, name)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._starters.shutdown(wait=False)
        self._enders.shutdown(wait=False)


async def finished(work: Awaitable[T]) -> T:
    """Await work that must be completed, such as that of a thread: a cancellation is raised only when it has ended."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _threads(most: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(most, thread_name_prefix="rtl-gym-docker")


def sweep(api: Any, *, podman: bool = False) -> None:
    """Remove containers of clients that were killed between creating and starting them; no others outlive their owner.
    On Podman, also remove the volumes of clients that were killed.
    """
    for found in api.containers(all=True, filters={"label": OWNER_LABEL, "status": "created"}):
        if not owner_lives(found["Labels"][OWNER_LABEL]):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_container(found["Id"], force=True)
    if podman:
        for volume in api.volumes(filters={"label": OWNER_LABEL})["Volumes"] or []:
            if not owner_lives((volume.get("Labels") or {}).get(OWNER_LABEL, "")):
                with contextlib.suppress(docker.errors.APIError):  # it is in use
                    api.remove_volume(volume["Name"])


class UserIds:
    """Draws user ids for the sandboxes of one provider; see `UIDS`. They differ, unless there is only one id."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids, self._taken = ids, set[int]()

    def take(self) -> int:
        while (uid := secrets.choice(self._ids)) in self._taken and len(self._ids) > 1:
            pass
        self._taken.add(uid)
        return uid

    def give_back(self, uid: int) -> None:
        self._taken.discard(uid)


def uid_range(info: Mapping[str, Any], *, local: bool = False) -> Sequence[int]:
    """The user ids that a daemon's containers can have, according to its description of itself, `info`.

    If this process has only some ids, as in LXC, so does a `local` daemon.
    """
    mapped = any("name=userns" in option or "name=rootless" in option for option in info.get("SecurityOptions") or [])
    mapped = mapped or bool(info.get("Rootless"))  # Podman's name for it
    return MAPPED_UIDS if mapped or (local and not _has_ids(UIDS)) else UIDS


def _has_ids(ids: range) -> bool:
    """Whether this process's user namespace has these ids; True if unknown."""
    try:
        lines = [list(map(int, line.split())) for line in _UID_MAP.read_text(encoding="ascii").splitlines()]
    except OSError:
        return True
    return any(first <= ids.start and ids.stop <= first + count for first, _, count in lines)


def owner_label(pid: int | None = None) -> str:
    """The value of `OWNER_LABEL` for a process; None for this one: ``host:pid``."""
    return f"{_owner_host()}:{os.getpid() if pid is None else pid}"


def _owner_host() -> str:
    """Identifies where process ids mean the same as here: the host's name, and a digest that tells apart PID namespaces
    and machines with the same name. Outside of containers, it stays the same when the machine is restarted.
    """
    try:
        where = str(_PID_NAMESPACE.stat().st_ino).encode()
    except OSError:  # not Linux
        return socket.gethostname()
    with contextlib.suppress(OSError):  # a container may have no such file
        where += _MACHINE_ID.read_bytes()
    return f"{socket.gethostname()}-{hashlib.sha256(where).hexdigest()[:8]}"


def owner_lives(label: str) -> bool:
    """Whether the process in a label is alive; True for other hosts' labels, which includes those of versions that
    named only the host. Once started, such containers end by themselves.
    """
    host, _, pid = label.rpartition(":")
    if host != _owner_host() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def folders(spec: SandboxSpec, uid: int, keeper_uid: int | None = None) -> dict[str, str]:
    """The mount options of a container's writable folders, which are all in memory.

    Together they are smaller than the container's memory, so that the warden can still work when they are full. Without
    `keeper_uid`, the keeper's id is the one after that of the sandbox's user, `uid`.
    """
    keeper_uid = uid + 1 if keeper_uid is None else keeper_uid
    agent, keeper = f"uid={uid},gid={uid}", f"uid={keeper_uid},gid={keeper_uid}"
    scoring = spec.role == "scoring"
    flags = f"rw,exec,nosuid,nodev,mode=755,nr_inodes={MAX_INODES}"
    tmpfs = {
        WORK_DIR: f"{flags},{agent},size={spec.disk}",
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,nr_inodes={MAX_INODES},size={spec.disk}",
        "/home/agent": f"{flags},{agent},size={64 << 20}",
        "/rundir": f"{flags},{agent},size={spec.disk}",
        NAMES: f"rw,noexec,nosuid,nodev,mode=755,nr_inodes=16,{keeper if scoring else agent},size={64 << 10}",
    }
    if scoring:
        tmpfs |= dict.fromkeys(spec.keeper_folders, f"{flags},{keeper},size={64 << 20}")
    return tmpfs


def process_limits(spec: SandboxSpec) -> dict[str, int]:
    """The limits of each process of a sandbox, by their names for ``ulimit``."""
    return {"fsize": spec.file_size, "core": 0, "nofile": MAX_FILES}


def host_config(
    api: Any,
    info: Mapping[str, Any],
    spec: SandboxSpec,
    uid: int,
    volumes: Sequence[str] | None = None,
    parent: str | None = None,
) -> Any:
    """The limits of a sandbox's container, in Docker's format.

    Args:
        api, info: The daemon's client, and its description of itself.
        spec, uid: The limits, and the id of the sandbox's user.
        volumes: On Podman, what to mount for `folders`.
        parent: The control group above the container's; None for the daemon's default.
    """
    limits = process_limits(spec) | ({"nproc": PROCESSES} if volumes is not None else {})
    mounts = []
    if spec.programs:
        mounts.append(docker.types.Mount(PLACE, str(programs_folder(spec.programs)), type="bind", read_only=True))
    return api.create_host_config(
        network_mode=spec.network or "none",
        cgroup_parent=parent,
        cpu_shares=CPU_SHARES[spec.room],
        cap_drop=["ALL"],
        cap_add=["SETUID", "SETGID"] if spec.role == "scoring" else None,
        security_opt=["no-new-privileges:true"],
        read_only=True,
        auto_remove=True,
        init=False,  # the warden is process 1, whatever the daemon's default is
        cgroupns="private" if info.get("CgroupVersion") == "2" else None,  # lets the warden find its own group
        tmpfs=folders(spec, uid) if volumes is None else None,
        binds=volumes,
        mounts=mounts,
        mem_limit=spec.memory,
        memswap_limit=spec.memory,
        shm_size=64 << 20,
        # Before Linux 6.9, only the machine's root may set it. If it is not set, the warden refuses shared memory.
        sysctls=None if uid in MAPPED_UIDS else {"kernel.shmall": str(SHARED_PAGES)},
        nano_cpus=int(min(spec.cpus, info.get("NCPU") or spec.cpus) * 1e9),  # more than the machine has is an error
        pids_limit=spec.pids,
        ulimits=[docker.types.Ulimit(name=name, soft=limit, hard=limit) for name, limit in limits.items()],
        log_config=docker.types.LogConfig(type="none"),
    )


def make_volumes(api: Any, container: str, tmpfs: Mapping[str, str], label: Mapping[str, str]) -> list[str]:
    """Create the volumes for a container's folders in memory, with a label for `sweep`. `container` is its name.

    `tmpfs` has the options by folder, as for Docker. Returns the mounts, in the format of Docker's ``binds``.
    """
    binds = []
    for number, (folder, text) in enumerate(sorted(tmpfs.items())):
        options = dict(part.partition("=")[::2] for part in text.split(","))
        kept = {name: value for name, value in options.items() if name in _KEPT}
        kept["nr_blocks"] = str(int(options["size"]) // _PAGE)  # Podman uses `size` for its own quota
        name = f"{container}-{number}"
        words = ",".join(f"{key}={value}" for key, value in kept.items())
        api.create_volume(name, "local", {"type": "tmpfs", "device": "tmpfs", "o": words}, dict(label))
        mounting = ",".join(word for word in options if word in ("rw", "exec", "noexec", "nosuid", "nodev"))
        binds.append(f"{name}:{folder}:{mounting}")
    return binds


def remove_volumes(api: Any, container: str) -> None:
    """Remove the volumes of a container that has been removed, or whose removal is under way."""
    api_error, not_found = docker.errors.APIError, docker.errors.NotFound
    removing = _repeating(lambda error: isinstance(error, api_error) and not isinstance(error, not_found))
    for volume in api.volumes(filters={"name": f"{container}-"})["Volumes"] or []:
        with contextlib.suppress(api_error):  # it is gone, or still in use
            removing(api.remove_volume, volume["Name"])


def _repeating(temporary: Callable[[BaseException], bool]) -> Retrying:
    """Retries a call for up to `REMOVAL` seconds while its error is temporary."""
    retry = retry_if_exception(temporary)
    return Retrying(retry=retry, stop=stop_after_delay(REMOVAL), wait=wait_fixed(0.05), reraise=True)
