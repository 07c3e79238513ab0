"""Providers that meddle with the sandboxes of a real one; sandboxes as they are seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import docker

from rtl_agent_gym.sandboxes import NamespaceSandbox, Process, Sandbox, SandboxProvider, SandboxSpec
from rtl_agent_gym.sandboxes.choice import resolved_kind
from rtl_agent_gym.sandboxes.client import OWNER_LABEL, owner_label
from rtl_agent_gym.sandboxes.daemon import daemon_host

if TYPE_CHECKING:
    import pytest  # which not every environment that ends sandboxes has


def on_both_providers(metafunc: pytest.Metafunc, *slow: Callable[..., object]) -> None:
    """The hook ``pytest_generate_tests`` of files whose `shared_sandbox` is one of each provider.

    Args:
        metafunc: As pytest has it.
        slow: Tests of what is the same program on both, the warden: with Docker they are slow tests.
    """
    import pytest

    if "_shared" in metafunc.fixturenames:
        docker = pytest.param("docker", marks=[pytest.mark.slow] if metafunc.function in slow else [])
        metafunc.parametrize("_shared", [docker, "namespaces"], indirect=True, scope="module")


@contextlib.contextmanager
def docker_api() -> Iterator[docker.APIClient]:
    """The daemon's low-level client."""
    with contextlib.closing(docker.from_env()) as client:
        yield client.api


def containers(name: str = "rtl-gym-", **options: Any) -> set[str]:
    """The names of the sandboxes whose name begins so: all containers, or those of namespaces of this process."""
    if resolved_kind() == "namespaces":
        return {made.id for made in _of_namespaces() if made.id.startswith(name)}
    with docker_api() as api:
        return {item["Names"][0].lstrip("/") for item in api.containers(filters={"name": name}, **options)}


def owned(pid: int | None = None, *, every: bool = False) -> set[str]:
    """The sandboxes of a process (None: this one): ids of containers, or of the processes that are process 1 in them.

    Args:
        pid: The process.
        every: Also containers that were created and never started.
    """
    owner = str(os.getpid() if pid is None else pid)
    if resolved_kind() != "namespaces":
        label = f"label={OWNER_LABEL}={owner_label(pid)}"
        command = ["docker", "-H", daemon_host(), "ps", "-q", *(["-a"] if every else []), "--filter", label]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    processes = _processes()
    firsts = {process for process in _descendants({owner}, processes) if processes[process].first}
    # Bubblewrap starts what becomes sandboxes. Other programs, such as browsers, have PID namespaces, too.
    zygotes = {process for process in firsts if processes[processes[process].parent].name == "bwrap"}
    return {process for process in firsts if processes[process].parent in zygotes}


def running(found: set[str]) -> set[str]:
    """Those of `owned` that still run, when their owner does not."""
    if resolved_kind() != "namespaces":
        return set()  # a container's owner is its label, which stays
    return {process for process, about in _processes().items() if process in found and about.first}


def programs(owner: int) -> list[str]:
    """The names of what runs in the sandboxes of a process."""
    if resolved_kind() == "namespaces":
        processes = _processes()
        inside = owned(owner)
        return [processes[process].name for process in inside | _descendants(inside, processes) if process in processes]
    tops = [subprocess.run(["docker", "top", name], capture_output=True, text=True) for name in owned(owner)]
    return [line for top in tops for line in top.stdout.splitlines()]


def processes_of(sandbox: NamespaceSandbox) -> dict[int, tuple[int, str]]:
    """The processes of a sandbox: their numbers outside of it, with {number: (parent's, program)}."""
    processes, first = _processes(), str(sandbox.pid)
    inside = {first, *_descendants({first}, processes)} & processes.keys()
    return {int(pid): (int(processes[pid].parent), processes[pid].name) for pid in inside}


class _Process(NamedTuple):
    parent: str
    name: str
    first: bool
    """Whether it is process 1 of a namespace, and no zombie."""


def _processes() -> dict[str, _Process]:
    """The machine's processes by id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
            numbers = lines.get("NSpid", "").split()
            first = len(numbers) > 1 and numbers[-1] == "1" and "Z" not in lines["State"].split()[0]
            found[path.parent.name] = _Process(lines["PPid"].strip(), lines["Name"].strip(), first)
    return found


def _descendants(ancestors: set[str], processes: Mapping[str, _Process]) -> set[str]:
    found: set[str] = set()
    ahead = set(ancestors)
    while ahead:
        ahead = {process for process, about in processes.items() if about.parent in ahead}
        found |= ahead
    return found


def kill(*sandboxes: Sandbox | str) -> None:
    """End sandboxes from outside, as the machine might: themselves, by their names, or as `owned` has them.

    To find one by its name can take longer than what it does.
    """
    for sandbox in sandboxes:
        if isinstance(sandbox, NamespaceSandbox):
            assert sandbox.pid, "it has ended"
            os.kill(sandbox.pid, signal.SIGKILL)
        elif resolved_kind() == "namespaces":
            name = sandbox if isinstance(sandbox, str) else sandbox.id
            pids = {made.id: made.pid for made in _of_namespaces()} if not name.isdecimal() else {}
            os.kill(pids.get(name) or int(name), signal.SIGKILL)
        else:
            with docker_api() as api:
                api.kill(sandbox if isinstance(sandbox, str) else sandbox.id)


def _of_namespaces() -> list[NamespaceSandbox]:
    """Those of this process that run."""
    made = [found for found in gc.get_objects() if type(found) is NamespaceSandbox]  # `isinstance` runs others' code
    return [found for found in made if found.pid and os.path.exists(f"/proc/{found.pid}")]


class ProviderAround(SandboxProvider):
    """A provider that passes everything to another, which stays open; tests change what they are about."""

    def __init__(self, provider: SandboxProvider) -> None:
        self.provider: Any = provider

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        return await self.provider.create(spec)

    async def image(self) -> str:
        return await self.provider.image()

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        return await self.provider.build_image(files, dockerfile=dockerfile)

    async def close(self) -> None: ...


def act_beside(sandbox: Any, act: Callable[[], Awaitable[None]]) -> None:
    """Do something to a sandbox while its process works."""

    def around(process: Any) -> Process:
        inner = process.communicate

        async def communicate(*args: Any, **options: Any) -> Any:
            running = asyncio.ensure_future(inner(*args, **options))
            await act()
            return await running

        process.communicate = communicate
        return process

    if sandbox.standby is not None:
        around(sandbox.standby)
    else:
        spawn = sandbox.spawn

        async def spawned(*args: Any, **options: Any) -> Process:
            return around(await spawn(*args, **options))

        sandbox.spawn = spawned
