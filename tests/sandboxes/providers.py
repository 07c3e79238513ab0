"""Providers that meddle with the sandboxes of a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import docker
import pytest

from rtl_agent_gym.sandboxes import Process, Sandbox, SandboxProvider, SandboxSpec


def on_both_providers(metafunc: pytest.Metafunc) -> None:
    """The hook ``pytest_generate_tests`` of files whose `shared_sandbox` is one of each provider."""
    if "_shared" in metafunc.fixturenames:
        metafunc.parametrize("_shared", ["docker", "namespaces"], indirect=True, scope="module")


@contextlib.contextmanager
def docker_api() -> Iterator[docker.APIClient]:
    """The daemon's low-level client."""
    with contextlib.closing(docker.from_env()) as client:
        yield client.api


def containers(name: str = "rtl-gym-", **options: Any) -> set[str]:
    """The names of the containers whose name begins so."""
    with docker_api() as api:
        return {item["Names"][0].lstrip("/") for item in api.containers(filters={"name": name}, **options)}


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
