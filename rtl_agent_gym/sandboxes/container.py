"""Sandboxes in Docker containers, within the budget of the daemon's machine.

`DockerSandboxes` owns its client and every sandbox that it made.

A `DockerSandbox` owns its container and the socket to the warden in it. The container runs only while that socket is
open: when this process closes it or ends, even by SIGKILL, the warden reads the end of its stdin, and Docker removes
the container.

When a sandbox is lost after an agent's commands, `own_doing` determines whether they or the machine ended it.
The kernel protects a container's process 1 from signals of the container's other processes, and the warden's filter
protects its limits. So a sandbox can end only in the following ways, which the daemon and the warden can distinguish:

- The warden reported that it could not continue: the commands' fault.
- The kernel's out-of-memory killer ended it after the warden reported that half of the container's own memory or more
  was in use: the commands' fault. Without such a report, the machine was out of memory.
- Something outside killed, stopped or paused the container, or the daemon or the connection is gone: the machine's
  fault.
- The warden does not reply while the container uses all its memory, or all its processors at the end or during the
  whole wait: the commands' fault, since they starve it. In an idle container, something outside starves or freezes it.

Without evidence, it is the machine's fault.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import docker.errors

from ..errors import SandboxError
from ..visible import plural
from .admission import Budget, given_limits, read_limits, require_enforced
from .budgeted import BudgetedSandboxes
from .cgroups import SandboxGroup
from .channel import Channel
from .client import (
    OWNER_LABEL,
    DockerClient,
    folders,
    host_config,
    make_volumes,
    owner_label,
    owner_lives,
    process_limits,
    sweep,
)
from .daemon import attach
from .image import checked_content, connected, content_of, find_image
from .image_build import build_from
from .protocol import SandboxSpec
from .warden import program
from .warden_sandbox import ENVIRONMENT, CpuTime, WardenSandbox, starving

_KILLED = "137"
_WAIT = 3
"""Seconds, by the daemon's clock, to wait for its report of a container's end."""


class DockerSandbox(WardenSandbox):
    """One container with a warden in it. `client` is its provider's; see `WardenSandbox` for the other arguments."""

    def __init__(
        self, client: DockerClient, spec: SandboxSpec, budget: Budget, on_close: Callable[[DockerSandbox], None]
    ) -> None:
        super().__init__(spec, budget, on_close)
        self._client = client
        self._container = ""
        self.image_id = ""

    async def _connect(self) -> None:
        self._channel = await Channel.open(await self._client.call(self._start), self._name)

    def _start(self) -> socket.socket:
        """Create and start the container; return the stream to its process 1."""
        client, spec = self._client.docker(), self.spec
        api: Any = client.api
        image = spec.image or find_image(client)
        self.image_id = api.inspect_image(image)["Id"]
        # A scoring sandbox has two users. Its process 1 starts as root with only the capabilities to change users, and
        # gives them up before its first message.
        agent, self.uid = spec.role == "agent", self._client.uids.take()
        groups, label, volumes = self.budget.groups, {OWNER_LABEL: owner_label()}, None
        parent, limiting = groups.parent(spec.room) if groups else None, []
        if self._client.podman:
            # Rootless Podman ignores the limits in the request.
            limits = [f"--{name}={limit}:{limit}" for name, limit in process_limits(spec).items()]
            limiting = ["/usr/bin/prlimit", *limits, "--"]
            volumes = make_volumes(api, self._name, folders(spec, self.uid), label)
        words = ["shell"] if agent else [f"keeper={self.uid + 1}", f"worker={self.uid}"]
        self._container = api.create_container(
            image,
            name=self._name,
            command=[*limiting, "/usr/bin/python3", "-ISBc", program(), *words],
            entrypoint=[],
            user=f"{self.uid}:{self.uid}" if agent else "0:0",
            environment=ENVIRONMENT | dict(spec.env),
            working_dir="/",
            hostname="rtl",
            stdin_open=True,
            labels=label,
            use_config_proxy=False,  # a proxy's address may contain a password
            host_config=host_config(api, self._client.info, spec, self.uid, volumes, parent),
        )["Id"]
        self._socket = attach(client, self._container)
        api.start(self._container)
        if groups is not None:
            group = groups.folder(spec.room) / self._container
            if group.is_dir():
                self._group = SandboxGroup({"memory": group})
            else:
                self.budget.drop_groups("the daemon sees other control groups than this process")
        return self._socket

    async def _remove(self) -> None:
        if self.uid >= 0:  # the daemon may have created it even if it did not answer
            # Docker removes it when the warden ends; this only ensures that it is gone on return.
            await self._client.remove(self._name)
        self._client.uids.give_back(self.uid)

    async def _cpu_time(self) -> CpuTime | None:
        with contextlib.suppress(SandboxError):
            return await self._client.call(lambda: cpu_time(self._client.docker().api, self._container))
        return None

    async def _own_doing(self, before: CpuTime | None) -> str:
        full = self._channel is not None and self._channel.memory_full
        try:
            return await self._client.call(
                lambda: own_doing(self._client.docker().api, self._container, self.spec, full, before)
            )
        except SandboxError:  # the daemon does not answer
            return ""


def cpu_time(api: Any, container: str) -> CpuTime:
    """The processor time that a container has used. Raises as `own_doing` does."""
    return _read_cpu_time(api.stats(container, stream=False, one_shot=True), "cpu_stats", "read")


def own_doing(api: Any, container: str, spec: SandboxSpec, memory_full: bool, before: CpuTime | None = None) -> str:
    """How the sandbox's own commands ended it; empty if they did not, or if that is unknown. Blocks for seconds.

    Args:
        api, container, spec: The daemon's client, the container's id and limits.
        memory_full: Whether half of the sandbox's memory was in use, according to the warden's last report.
        before: The processor time used when the warden's reply was late, if known.

    Raises:
        docker.errors.DockerException: The daemon does not answer; exceptions of `requests` mean the same.
    """
    with contextlib.suppress(docker.errors.NotFound):  # it has been removed
        state = api.inspect_container(container)["State"]
        if state["Running"]:
            return "" if state.get("Paused") else _starving(api, container, spec, before)
    return _ending(api, container) if memory_full else ""


def _ending(api: Any, container: str) -> str:
    """How a lack of memory ended a container, according to the daemon's events; empty if it did not."""
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


def _starving(api: Any, container: str, spec: SandboxSpec, before: CpuTime | None) -> str:
    """How a running container starves its warden; empty if it does not."""
    found = api.stats(container, stream=False)
    memory = found.get("memory_stats", {})
    used = memory.get("usage", 0) / memory["limit"] if memory.get("limit") else 0.0
    may = min(spec.cpus, found.get("cpu_stats", {}).get("online_cpus") or spec.cpus)
    now = _read_cpu_time(found, "cpu_stats", "read")
    return starving(used, (before, _read_cpu_time(found, "precpu_stats", "preread"), now), may)


def _read_cpu_time(found: Any, part: str, stamp: str) -> CpuTime:
    seconds = found.get(part, {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9
    try:
        return CpuTime(seconds, datetime.datetime.fromisoformat(found.get(stamp, "")).timestamp())
    except (ValueError, OverflowError):
        return CpuTime(seconds, 0.0)


TIDY = 600.0
"""Seconds between searches for containers whose owner has ended."""
MOST_NAMED = 5
"""Maximum number of processes that a warning names."""


class DockerSandboxes(BudgetedSandboxes[DockerSandbox]):
    """Starts sandboxes in containers of the local daemon, or of the one in ``DOCKER_HOST``.

    Args:
        image: Image for specs that name none; None for the package's own simulation image.
        host: The daemon's address; None for `daemon_host`.

    Example:
        async with DockerSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self, image: str | None = None, host: str | None = None) -> None:
        super().__init__()
        self._image = image
        self._client = DockerClient(host)
        self._tidied = time.monotonic()  # the client also searches when it connects

    async def budget(self) -> Budget:
        self._require_open()
        return await self._client.budget()

    async def _require(self, spec: SandboxSpec) -> None:
        if time.monotonic() - self._tidied > TIDY:
            self._tidied = time.monotonic()
            await self._client.call(lambda: sweep(self._client.docker().api, podman=self._client.podman))
        if spec.role == "scoring":
            require_enforced(self._client.missing_limits)

    def _make(self, spec: SandboxSpec, budget: Budget) -> DockerSandbox:
        return DockerSandbox(self._client, replace(spec, image=spec.image or self._image), budget, self._ended)

    async def _started(self) -> None:
        await self._client.remove_left()

    async def image(self) -> str:
        return self._image if self._image else await self._client.call(lambda: find_image(self._client.docker()))

    async def image_digest(self) -> str:
        def read() -> str:
            client = self._client.docker()
            if self._image is None:
                return checked_content(client, find_image(client)).digest
            return content_of(client, str(client.images.get(self._image).id)).digest

        return await self._client.call(read)

    async def missing_limits(self) -> tuple[str, ...]:
        await self._client.budget()  # connects, which sets `missing_limits`
        return self._client.missing_limits

    async def _build_image(self, files: Mapping[str, bytes], dockerfile: str) -> str:
        return await self._client.call(lambda: build_from(self._client.docker(), files, dockerfile))

    async def close(self) -> None:
        await super().close()
        await self._client.remove_left()
        self._client.close()


def other_owners(host: str | None = None) -> dict[str, int]:
    """The number of running containers of each other process that uses the daemon, by ``host:pid``.

    Raises `SandboxError` if the daemon does not answer. `host` is its address; None for `daemon_host`.
    """
    with connected(host) as client:
        api: Any = client.api
        owners = [found["Labels"][OWNER_LABEL] for found in api.containers(filters={"label": OWNER_LABEL})]
    return dict(Counter(owner for owner in owners if owner != owner_label() and owner_lives(owner)))


def warning_of_others(option: str, limits: str = "", host: Callable[[], str | None] = lambda: None) -> str:
    """A warning if other processes use this Docker host and the user has not limited this one; empty otherwise.

    It is also empty if the daemon does not answer, which a run that needs the daemon reports itself.

    Args:
        option, limits: The name of the run's option for limits, and its value; `UsageError` if limits cannot be read.
        host: Returns the daemon's address, as for `other_owners`.
    """
    if {"memory", "cpus"} & (given_limits() | read_limits(limits, option)).keys():
        return ""
    try:
        owners = other_owners(host())
    except SandboxError:
        return ""
    if not owners:
        return ""
    named = ", ".join(sorted(owners)[:MOST_NAMED]) + (", …" if len(owners) > MOST_NAMED else "")
    others = "another process" if len(owners) == 1 else f"{len(owners)} other processes"
    return (
        f"{plural(sum(owners.values()), 'container')} of {others} on this Docker host ({named}), and each process "
        f"assumes that it has the whole machine; limit each one with {option}, such as memory=8G,cpus=2"
    )
