"""One sandbox in a Docker container: how it is started, talked to, and ended.

Its provider is `DockerSandboxes` (`docker.py`), which has the daemon's client, and the threads that may wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import docker
import docker.errors

from ..errors import SandboxError, SandboxLost
from .channel import Channel, Pending, Reply
from .hijack import hijack
from .observation import cut
from .protocol import WORK_DIR, CommandResult, OutputSink, SandboxSpec
from .warden import program

if TYPE_CHECKING:
    from .docker import DockerSandboxes

AGENT_UID, KEEPER_UID = 1000, 1001
OWNER_LABEL = "io.rtl-agent-gym.owner"
START_PATIENCE = 60.0
GRACE = 15.0
"""Seconds beyond a command's own time-out after which a silent sandbox counts as lost."""
STANDBY_PATIENCE = 1e6
"""Seconds that a process on standby may wait for its stdin: as long as its sandbox does."""
STANDBY_OUTPUT = 4_000_000
"""Characters that are kept of what it prints."""


class DockerSandbox:
    """One container with a warden in it; implements `Sandbox`."""

    def __init__(self, provider: DockerSandboxes, spec: SandboxSpec) -> None:
        self._provider, self._spec = provider, spec
        self._name = f"rtl-gym-{spec.role}-{os.getpid()}-{secrets.token_hex(4)}"
        self._container: str | None = None
        self._channel: Channel | None = None
        self._standby: Pending | None = None
        """The process that waits for its stdin."""
        self._raw: socket.socket | None = None
        """A connection that no channel has taken over yet."""
        self._closing: asyncio.Task[None] | None = None
        self.image_id = ""

    @property
    def id(self) -> str:
        """The container's name."""
        return self._name

    async def open(self) -> None:
        """Create and start the container and greet its warden."""
        try:
            await self._provider.call(self._start)
            self._go_on()
            raw, self._raw = self._raw, None
            assert raw is not None
            try:
                self._channel = await Channel.open(raw, self._name)
            except BaseException:
                raw.close()
                raise
            self._go_on()
            await self._channel.greeting(START_PATIENCE)
            self._go_on()
        except BaseException:
            if self._closing is not None:  # it may have ended before there was anything to end
                await asyncio.shield(self._end())
            raise
        if self._spec.standby:
            self._standby = self._begin(self._spec.standby, "/", {}, STANDBY_PATIENCE, STANDBY_OUTPUT, stdin=True)

    def _go_on(self) -> None:
        if self._closing is not None:
            raise SandboxLost(f"sandbox {self._name} was closed while it started")

    def abandon(self) -> None:
        """End it without its event loop: the container goes when its socket does."""
        if self._channel is not None:
            self._channel.abandon()

    def _start(self) -> None:
        api, spec = self._provider.client(), self._spec
        image = self._provider.image(spec)
        self.image_id = api.inspect_image(image)["Id"]
        # A scoring sandbox has two users. Its process 1 starts as root, with the right to change users and no other,
        # and gives it up before it says that it is there.
        agent = spec.role == "agent"
        words = ["shell"] if agent else [f"keeper={KEEPER_UID}", f"worker={AGENT_UID}"]
        created = api.create_container(
            image,
            name=self._name,
            command=["/usr/bin/python3", "-ISBc", program(), *words],
            entrypoint=[],
            user=str(AGENT_UID) if agent else "0",
            environment=_environment(spec),
            working_dir="/",
            hostname="rtl",
            stdin_open=True,
            tty=False,
            labels={OWNER_LABEL: f"{socket.gethostname()}:{os.getpid()}"},
            host_config=_host_config(api, spec),
        )
        self._container = created["Id"]
        self._raw = hijack(f"/containers/{self._container}/attach?stream=1&stdin=1&stdout=1&stderr=1")
        api.start(self._container)

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise SandboxLost(f"sandbox {self._name} is closed")
        return self._channel

    def _addressed(self, header: dict[str, Any]) -> dict[str, Any]:
        """To the warden whose user is not the keeper."""
        return {**header, "worker": True} if self._spec.role == "scoring" else header

    @contextlib.contextmanager
    def _classifying(self) -> Iterator[None]:
        """What a warden could not do is a lost sandbox too, as it would be asked for nothing impossible."""
        try:
            yield
        except OSError as error:
            raise SandboxLost(f"sandbox {self._name} could not do it: {error.strerror or error}") from error

    async def _ask(
        self,
        kind: bytes,
        header: dict[str, Any],
        body: bytes = b"",
        *,
        patience: float,
        keeper: bool = False,
        on_piece: OutputSink | None = None,
    ) -> Reply:
        """Ask a warden for something."""
        header = header if keeper else self._addressed(header)
        with self._classifying():
            return await self._open_channel().request(kind, header, body, patience=patience, on_piece=on_piece)

    async def run(
        self, command: str, *, timeout: float = 30.0, max_output: int = 16_000, on_output: OutputSink | None = None
    ) -> CommandResult:
        """Run a command in the persistent shell. See `Sandbox.run`."""
        header = {"timeout": timeout, "limit": 8 * max_output}
        body = command.encode("utf-8", errors="replace")
        reply = await self._ask(b"R", header, body, patience=timeout + GRACE, on_piece=on_output)
        return _result(reply.header, reply.body, max_output)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = WORK_DIR,
        env: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        max_output: int = 1_000_000,
        stdin: bytes | None = None,
    ) -> CommandResult:
        """Run a process beside the shell. See `Sandbox.exec`."""
        ready, self._standby = self._standby, None
        if (
            ready is None
            or stdin is None
            or env
            or (tuple(argv), cwd) != (self._spec.standby, "/")
            or max_output > STANDBY_OUTPUT
        ):
            self._standby = ready
            ready = self._begin(argv, cwd, dict(env or {}), timeout, max_output, stdin=stdin is not None)
        if stdin is not None:
            await self._ask(b"I", {"process": ready.number, "timeout": timeout}, stdin, patience=GRACE)
        with self._classifying():
            reply = await ready.reply(timeout + GRACE)
        return _result(reply.header, reply.body, max_output)

    def _begin(
        self, argv: Sequence[str], cwd: str, env: dict[str, str], timeout: float, max_output: int, *, stdin: bool
    ) -> Pending:
        """Start a process, without waiting for anything."""
        header = {"argv": list(argv), "cwd": cwd, "env": env, "timeout": timeout, "limit": 8 * max_output}
        with self._classifying():
            return self._open_channel().send(b"X", self._addressed({**header, "stdin": stdin}))

    async def write_files(
        self, files: Mapping[str, str | bytes], *, root: str = WORK_DIR, keeper: bool = False, mode: int = 0o644
    ) -> None:
        """Write files below `root`. See `Sandbox.write_files`."""
        contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        for path in contents:
            parts = path.split("/")
            if (
                "\0" in path
                or any(part in ("", ".", "..") for part in parts)
                or any("\ud800" <= c <= "\udfff" for c in path)
            ):
                raise ValueError(f"{path!r} is no relative file path below {root}")
        header = {"root": root, "mode": mode, "files": [[path, len(data)] for path, data in contents.items()]}
        await self._ask(b"W", header, b"".join(contents.values()), patience=60.0, keeper=keeper)

    async def read_files(
        self, paths: Sequence[str], *, root: str = WORK_DIR, max_file: int = 16 << 20, max_total: int = 64 << 20
    ) -> dict[str, bytes]:
        """Regular files at or below `paths`. See `Sandbox.read_files`."""
        header = {"root": root, "paths": list(paths), "max_file": max_file, "max_total": max_total}
        reply = await self._ask(b"G", header, patience=60.0)
        files, offset = {}, 0
        for path, size in reply.header["files"]:
            files[path] = reply.body[offset : offset + size]
            offset += size
        return files

    async def ping(self) -> None:
        """Return when every warden answers. See `Sandbox.ping`."""
        if self._standby is not None and self._standby.future.done():
            raise SandboxLost(f"sandbox {self._name}: the process on standby has ended")
        await self._ask(b"P", {}, patience=GRACE)

    async def close(self) -> None:
        """End the container. See `Sandbox.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._end()
        self._provider.forget(self)

    async def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._raw is not None:
            self._raw.close()
        if self._container is not None:
            # Docker removes it by itself once the warden ends; this only makes sure that it is gone on return.
            with contextlib.suppress(SandboxError):
                await self._provider.call(self._remove, ending=True)

    def _remove(self) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            try:
                self._provider.client().remove_container(self._container, force=True, v=True)
            except docker.errors.APIError as error:
                if error.status_code != 409:  # 409: its removal is under way
                    raise


def _result(header: Mapping[str, Any], body: bytes, max_output: int) -> CommandResult:
    text, truncated = cut(body, header["size"], header["chars"], max_output)
    return CommandResult(
        output=text,
        exit_code=header["exit_code"],
        timed_out=header["timed_out"],
        truncated=truncated,
        output_chars=header["chars"],
        seconds=header["seconds"],
        restarted=header.get("restarted"),
        cwd=header["cwd"],
    )


def _environment(spec: SandboxSpec) -> dict[str, str]:
    plain = {"HOME": "/home/agent", "USER": "agent", "TERM": "dumb", "PAGER": "cat", "RTL_GYM_CWD": WORK_DIR}
    return plain | dict(spec.env)


def _host_config(api: Any, spec: SandboxSpec) -> Any:
    agent, keeper = f"uid={AGENT_UID},gid={AGENT_UID}", f"uid={KEEPER_UID},gid={KEEPER_UID}"
    flags = "rw,exec,nosuid,nodev,mode=755"
    tmpfs = {
        WORK_DIR: f"{flags},{agent},size={spec.disk}",
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={spec.disk}",
        "/home/agent": f"{flags},{agent},size={64 << 20}",
        "/rundir": f"{flags},{agent},size={spec.disk}",
    }
    if spec.role == "scoring":
        tmpfs |= dict.fromkeys(("/src", f"{WORK_DIR}/src"), f"{flags},{keeper},size={64 << 20}")
    return api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["SETUID", "SETGID"] if spec.role == "scoring" else None,
        security_opt=["no-new-privileges:true"],
        read_only=True,
        auto_remove=True,
        tmpfs=tmpfs,
        mem_limit=spec.memory,
        memswap_limit=spec.memory,
        shm_size=64 << 20,
        nano_cpus=int(spec.cpus * 1e9),
        pids_limit=spec.pids,
        ulimits=[
            docker.types.Ulimit(name="fsize", soft=spec.file_size, hard=spec.file_size),
            docker.types.Ulimit(name="core", soft=0, hard=0),
            docker.types.Ulimit(name="nofile", soft=4096, hard=4096),
        ],
        log_config=docker.types.LogConfig(type="none"),
    )
