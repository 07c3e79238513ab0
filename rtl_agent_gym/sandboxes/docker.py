"""Sandboxes in Docker containers.

Who owns what: `DockerSandboxes` owns its client and every sandbox it made; a `DockerSandbox` owns its container and the
socket to the warden in it. The container runs no longer than that socket lives: closing it, an exception, Ctrl-C or
SIGKILL of this process all close it, the warden sees the end of its stdin, and Docker removes the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import docker.errors
import requests.exceptions

from ..errors import DaemonError, ImageError, SandboxError, SandboxLost
from .container import OWNER_LABEL, DockerSandbox
from .daemon import connect
from .hosting import UIDS, draw_uid, uid_range
from .image import build_from, find_image
from .protocol import SandboxProvider, SandboxSpec

START_LIMIT = 4
"""Containers that one process creates at the same time; the daemon manages about twenty starts a second in all."""

T = TypeVar("T")


class DockerSandboxes(SandboxProvider):
    """Makes sandboxes in containers of the local (or ``DOCKER_HOST``'s) daemon.

    Args:
        image: Image for specs that name none; None for the package's own simulation image.

    Example:
        async with DockerSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self, image: str | None = None) -> None:
        self._image = image
        self._client: Any = None
        self._connecting = threading.Lock()
        self._threads = ThreadPoolExecutor(START_LIMIT, thread_name_prefix="rtl-gym-docker")
        self._enders = ThreadPoolExecutor(START_LIMIT, thread_name_prefix="rtl-gym-docker-end")
        self._sandboxes: set[DockerSandbox] = set()
        self._opening: set[asyncio.Future[None]] = set()
        self._uids: Sequence[int] = UIDS
        self._closed = False
        self._building = asyncio.Lock()

    async def __aenter__(self) -> DockerSandboxes:
        return self

    async def create(self, spec: SandboxSpec | None = None) -> DockerSandbox:
        """Start a sandbox. See `SandboxProvider.create`."""
        if self._closed:
            raise SandboxLost("this provider is closed; make another DockerSandboxes")
        spec = spec or SandboxSpec()
        sandbox = DockerSandbox(self, spec)
        self._sandboxes.add(sandbox)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening.add(opened)
        try:
            await sandbox.open()
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        finally:
            self._opening.discard(opened)
            opened.set_result(None)
        return sandbox

    async def image(self) -> str:
        """The id of the image of specs that name none. See `SandboxProvider.image`."""
        return self._image if self._image else await self.call(lambda: find_image(self.client()))

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        """The id of an image built from a folder of files. See `SandboxProvider.build_image`."""
        async with self._building:
            return await self.call(lambda: build_from(self.client(), files, dockerfile))

    async def close(self) -> None:
        """Close every sandbox that is still open. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))
        await asyncio.gather(*self._opening)  # those see that they are closed, and end
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._threads.shutdown(wait=False)
        self._enders.shutdown(wait=False)

    def abandon(self) -> None:
        """End every sandbox without its event loop, which has been closed."""
        self._closed = True
        for sandbox in list(self._sandboxes):
            sandbox.abandon()
        self._sandboxes.clear()

    # For the sandboxes.

    async def call(self, work: Callable[[], T], *, ending: bool = False) -> T:
        """Run blocking Docker work in a thread, its failures classified. Creating never waits for ending."""
        threads = self._enders if ending else self._threads
        future = asyncio.get_running_loop().run_in_executor(threads, classified, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])  # a thread cannot be cancelled; what it made is known before we go on
            raise

    def client(self) -> Any:
        """The low-level Docker client, connected at first use."""
        with self._connecting:
            if self._client is None:
                client = connect(timeout=120)
                self._client = client
                self._uids = uid_range(client.api.info())
                _sweep(client.api)
        return self._client.api

    def new_uid(self) -> int:
        """A user id for a sandbox that no other has; see `hosting.UIDS`."""
        return draw_uid(self._uids, {sandbox.uid for sandbox in list(self._sandboxes)})

    def image_of(self, spec: SandboxSpec) -> str:
        """The image's name or id for a spec."""
        return spec.image or self._image or find_image(self.client())

    def forget(self, sandbox: DockerSandbox) -> None:
        """A sandbox has closed."""
        self._sandboxes.discard(sandbox)


def classified(work: Callable[[], T]) -> T:
    """Do Docker work; its foreign exceptions become those of `rtl_agent_gym.errors`."""
    try:
        return work()
    except SandboxError:
        raise
    except docker.errors.ImageNotFound as error:
        raise ImageError(f"{error.explanation}; build it with: rtl-agent-gym image build") from error
    except docker.errors.APIError as error:
        raise DaemonError(f"Docker refused: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise DaemonError(
            f"no Docker daemon answers ({error}); start one with ./scripts/setup, then see: rtl-agent-gym doctor"
        ) from error


def _sweep(api: Any) -> None:
    """Remove what a client left that was killed between creating a container and starting it, the one moment in which
    a container's life does not hang on its owner.
    """
    host = socket.gethostname()
    for found in api.containers(all=True, filters={"label": OWNER_LABEL, "status": "created"}):
        owner, _, pid = found["Labels"][OWNER_LABEL].rpartition(":")
        if owner == host and not _is_alive(int(pid)):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_container(found["Id"], force=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
