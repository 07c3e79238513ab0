"""One sandbox in a Docker container: how it is started, talked to, and ended.

Its provider is `DockerSandboxes` (`docker.py`), which has the daemon's client, and the threads that may wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import docker
import docker.errors

from ..errors import RTLGymError, SandboxBroken, SandboxError, SandboxLost
from .channel import Channel, Reply
from .evidence import own_doing
from .hijack import hijack
from .hosting import environment, host_config
from .observation import cut
from .protocol import MAX_COUNT, WORK_DIR, CommandResult, FoundFiles, OutputSink, Process, Sandbox, SandboxSpec
from .warden import program

if TYPE_CHECKING:
    from .docker import DockerSandboxes

OWNER_LABEL = "io.rtl-agent-gym.owner"
START_PATIENCE = 60.0
GRACE = 15.0
"""Seconds beyond a command's own time-out after which a silent sandbox counts as lost."""
BUFFER = 1 << 20
"""Bytes of a process's unread output that are kept here before it is held back, twice as many at most."""


class _Flow(asyncio.ReadTransport):
    """What holds a process's output back while nobody reads it: an `asyncio.StreamReader` asks for that."""

    def __init__(self, ask: Callable[[bool], None]) -> None:
        super().__init__()
        self._ask = ask

    def pause_reading(self) -> None:
        self._ask(True)

    def resume_reading(self) -> None:
        self._ask(False)


class DockerProcess(Process):
    """A process that the warden of a `DockerSandbox` runs; implements `Process`."""

    def __init__(self, sandbox: DockerSandbox, argv: Sequence[str], cwd: str, env: Mapping[str, str] | None) -> None:
        self._sandbox = sandbox
        self._channel, self._to_worker = sandbox._open_channel(), sandbox._spec.role == "scoring"
        self._output = asyncio.StreamReader(BUFFER)
        self._output.set_transport(_Flow(lambda held: self._tell(b"H", held=held)))
        self._stdin_open = True
        self._end = self._channel.send(
            b"X",
            {"worker": self._to_worker, "argv": list(argv), "cwd": cwd, "env": dict(env or {})},
            b"",
            self._output.feed_data,
        )
        self._end.future.add_done_callback(lambda _: self._output.feed_eof())

    def _tell(self, kind: bytes, **header: Any) -> None:
        with contextlib.suppress(SandboxLost):  # which `wait` tells
            self._channel.tell(kind, {"worker": self._to_worker, "process": self._end.number, **header})

    @property
    def output(self) -> asyncio.StreamReader:
        """stdout and stderr. See `Process.output`."""
        return self._output

    @property
    def exit_code(self) -> int | None:
        """The exit status. See `Process.exit_code`."""
        future = self._end.future
        if not future.done() or future.exception() is not None:
            return None
        return int(future.result().header["exit_code"])

    async def write(self, data: bytes) -> None:
        """Write to its stdin. See `Process.write`."""
        if data:
            await self._stdin(data)

    async def close_stdin(self) -> None:
        """End its stdin. See `Process.close_stdin`."""
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(BrokenPipeError):
                await self._stdin(b"")

    async def _stdin(self, data: bytes) -> None:
        header = {"worker": self._to_worker, "process": self._end.number}
        refused = None
        async with self._sandbox._classifying():
            try:
                await self._channel.request(b"I", header, data, patience=None)
            except BrokenPipeError as error:
                refused = error
        if refused is not None:
            raise refused

    async def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. See `Process.wait`."""
        async with asyncio.timeout(timeout):
            return await self._wait(None)

    async def kill(self) -> None:
        """Kill it and everything it started. See `Process.kill`."""
        self._tell(b"K")
        await self._wait(GRACE)

    async def _wait(self, patience: float | None) -> int:
        async with self._sandbox._classifying():
            reply = await self._channel.wait(self._end, patience)
        return int(reply.header["exit_code"])


class DockerSandbox(Sandbox):
    """One container with a warden in it; implements `Sandbox`."""

    def __init__(self, provider: DockerSandboxes, spec: SandboxSpec) -> None:
        self._provider, self._spec = provider, spec
        self._name = f"rtl-gym-{spec.role}-{os.getpid()}-{secrets.token_hex(4)}"
        self._container: str | None = None
        self._channel: Channel | None = None
        self._standby: DockerProcess | None = None
        self._raw: socket.socket | None = None
        """A connection that no channel has taken over yet."""
        self._closing: asyncio.Task[None] | None = None
        self._verdict: asyncio.Task[RTLGymError] | None = None
        """Why it was lost, and by whose doing."""
        self._used = False
        """Whether a command has been run in it."""
        self.image_id = ""
        self.uid = -1
        """The user of its commands, on the daemon's machine too; the keeper's is the next. No other sandbox has it."""

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
            if self._spec.files:
                files = {path.removeprefix("/"): content for path, content in self._spec.files.items()}
                await self.write_files(files, root="/", keeper=self._spec.role == "scoring")
            if self._spec.standby:
                self._standby = DockerProcess(self, self._spec.standby, "/", None)
            self._go_on()
        except BaseException:
            if self._closing is not None:  # it may have ended before there was anything to end
                await asyncio.shield(self._end())
            raise

    def _go_on(self) -> None:
        if self._closing is not None:
            raise SandboxLost(f"sandbox {self._name} was closed while it started")

    def abandon(self) -> None:
        """End it without its event loop: the container goes when its socket does."""
        if self._channel is not None:
            self._channel.abandon()

    def _start(self) -> None:
        api, spec = self._provider.client(), self._spec
        image = self._provider.image_of(spec)
        self.image_id = api.inspect_image(image)["Id"]
        # A scoring sandbox has two users. Its process 1 starts as root, with the right to change users and no other,
        # and gives it up before it says that it is there.
        agent, self.uid = spec.role == "agent", self._provider.new_uid()
        words = ["shell"] if agent else [f"keeper={self.uid + 1}", f"worker={self.uid}"]
        created = api.create_container(
            image,
            name=self._name,
            command=["/usr/bin/python3", "-ISBc", program(), *words],
            entrypoint=[],
            user=f"{self.uid}:{self.uid}" if agent else "0:0",
            environment=environment(spec),
            working_dir="/",
            hostname="rtl",
            stdin_open=True,
            tty=False,
            labels={OWNER_LABEL: f"{socket.gethostname()}:{os.getpid()}"},
            host_config=host_config(api, spec, self.uid),
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

    @contextlib.asynccontextmanager
    async def _classifying(self) -> AsyncIterator[None]:
        """Tell what a command has broken from what the machine has. Callers ask for nothing impossible, so what the
        warden could not do is one of the two as well.
        """
        if self._verdict is not None:
            raise await asyncio.shield(self._verdict)
        try:
            yield
        except (SandboxLost, OSError) as error:
            said = error if isinstance(error, SandboxLost) else None
            lost = said or SandboxLost(
                f"sandbox {self._name} could not do it: {getattr(error, 'strerror', '') or error}"
            )
            by_commands = self._used and self._spec.role == "agent" and self._closing is None
            if said is None:
                raise SandboxBroken(str(lost)) if by_commands else lost from error
            if not by_commands or self._channel is None:
                self._give_up(lost)
                raise
            if self._verdict is None:
                self._verdict = asyncio.ensure_future(self._judge(lost))
            raise (await asyncio.shield(self._verdict)) from None

    def _give_up(self, error: SandboxLost) -> None:
        if self._channel is not None:
            self._channel.give_up(str(error))

    async def _judge(self, lost: SandboxLost) -> RTLGymError:
        """What a loss is, once commands have been run: theirs where there is evidence, the machine's otherwise."""
        channel, client, container = self._channel, self._provider.client, self._container or ""
        broken, full = (channel.broken, channel.memory_full) if channel is not None else (None, False)
        try:
            why = await self._provider.call(lambda: own_doing(client(), container, self._spec, broken, full))
        except SandboxError:  # the daemon does not say
            why = ""
        self._give_up(lost)
        return SandboxBroken(f"the commands of sandbox {self._name} ended it: {why}") if why else lost

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
        async with self._classifying():
            return await self._open_channel().request(kind, header, body, patience=patience, on_piece=on_piece)

    async def run(
        self, command: str, *, timeout: float = 30.0, max_output: int = 16_000, on_output: OutputSink | None = None
    ) -> CommandResult:
        """Run a command in the persistent shell. See `Sandbox.run`."""
        self._used = True
        header = {"timeout": timeout, "limit": 8 * max_output}
        body = command.encode("utf-8", errors="replace")
        reply = await self._ask(b"R", header, body, patience=timeout + GRACE, on_piece=on_output)
        return _result(reply.header, reply.body, max_output)

    async def spawn(
        self, argv: Sequence[str], *, cwd: str = WORK_DIR, env: Mapping[str, str] | None = None
    ) -> DockerProcess:
        """Start a process beside the shell. See `Sandbox.spawn`."""
        async with self._classifying():
            return DockerProcess(self, argv, cwd, env)

    @property
    def standby(self) -> DockerProcess | None:
        """The process that was started with the sandbox. See `Sandbox.standby`."""
        return self._standby

    @property
    def idle(self) -> bool:
        """Whether nothing runs. See `Sandbox.idle`."""
        return self._channel is None or self._channel.idle

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
        self,
        paths: Sequence[str],
        *,
        root: str = WORK_DIR,
        first: Sequence[str] = (),
        max_file: int = 16 << 20,
        max_total: int = 64 << 20,
        max_count: int = MAX_COUNT,
    ) -> FoundFiles:
        """Regular files at or below `paths`. See `Sandbox.read_files`."""
        limits = {"max_file": max_file, "max_total": max_total, "max_count": max_count}
        reply = await self._ask(
            b"G", {"root": root, "paths": list(paths), "first": list(first), **limits}, patience=60.0
        )
        found: dict[str, bytes] = {}
        offset = 0
        for path, size in reply.header["files"]:
            found[path] = reply.body[offset : offset + size]
            offset += size
        left_out = [(str(path), str(reason)) for path, reason in reply.header["left_out"]]
        return FoundFiles(dict(sorted(found.items())), left_out, reply.header["left_out_count"])

    async def ping(self) -> None:
        """Return when every warden answers. See `Sandbox.ping`."""
        if self._standby is not None and self._standby.exit_code is not None:
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
