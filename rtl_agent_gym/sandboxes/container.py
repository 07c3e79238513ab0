"""A sandbox in a Docker container.

A `DockerSandbox` owns its container and the socket to the warden in it. The container runs only while that socket is
open: when this process closes it or ends, even by SIGKILL, the warden reads the end of its stdin, and Docker removes
the container.

When a sandbox is lost after an agent's commands, `own_doing` finds out whether they or the machine ended it.
The kernel protects a container's process 1 from signals of the container's other processes, and the warden's filter
protects its limits. So a sandbox can end only in the following ways, which the daemon and the warden can distinguish:

- The warden reported that it could not continue: the commands' fault.
- The kernel's out-of-memory killer ended it after the warden reported that half of the container's own memory or more
  was in use: the commands' fault. Without such a report, the machine was out of memory.
- Something outside killed, stopped or paused the container, or the daemon or the connection is gone: the machine's
  fault.
- The warden is silent while the container uses all its memory, or all its processors at the end or during the whole
  silence: the commands starve it. In an idle container, it is starved or frozen from outside.

In case of doubt the machine is to blame.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import itertools
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import docker.errors

from ..errors import RTLGymError, SandboxBroken, SandboxError, SandboxLost
from .channel import Channel, Reply, Request
from .client import OWNER_LABEL, DockerClient, folders, host_config, make_volumes, owner_label, process_limits
from .daemon import attach
from .image import find_image
from .process import Process
from .protocol import OutputSink, Sandbox, SandboxSpec
from .results import WORK_DIR, CommandResult, FoundFiles, ReadRequest, cut
from .warden import program

_ENVIRONMENT = {"HOME": "/home/agent", "USER": "agent", "TERM": "dumb", "PAGER": "cat", "RTL_GYM_CWD": WORK_DIR}
START_PATIENCE = 60.0
READ_PATIENCE = 60.0
GRACE = 15.0
"""Seconds after a command's time-out when a silent sandbox counts as lost."""
LATE = 3.0
"""Seconds by which a reply is late when the use of processors is noted, as evidence if there will be none."""
_KILLED = "137"
_WAIT = 3
"""Seconds, by the daemon's clock, within which it reports a container's end."""
_BUSY, _FULL = 0.85, 0.97
"""Share of its processors, and of its memory, from which on a container starves its own warden."""


class CpuTime(NamedTuple):
    """The processor time that a container had used at some moment."""

    seconds: float
    at: float
    """By the daemon's clock."""


class DockerSandbox(Sandbox):
    """One container with a warden in it; implements `Sandbox`.

    Args:
        client: The provider's client of the daemon.
        spec: Image, limits and files.
        image: Name or id; None for the package's own simulation image.
        on_close: Called when it has ended.
    """

    def __init__(
        self,
        client: DockerClient,
        spec: SandboxSpec,
        image: str | None,
        on_close: Callable[[DockerSandbox], None],
    ) -> None:
        self._client, self.spec, self._image, self._on_close = client, spec, image, on_close
        self._name = f"rtl-gym-{spec.role}-{os.getpid()}-{secrets.token_hex(4)}"
        self._container = ""
        self._socket: socket.socket | None = None
        """To the warden: the container ends when it is closed."""
        self._channel: Channel | None = None
        self._standby: Process | None = None
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._verdict: asyncio.Task[RTLGymError] | None = None
        """Why it was lost: by its commands or by the machine."""
        self._noted: asyncio.Task[CpuTime | None] | None = None
        """What it had used when the last reply was late."""
        self._used = False
        """Whether a command has been run in it."""
        self.image_id = ""
        self.uid = -1
        """The unique user id of its commands, also on the daemon's machine; the keeper has the next one."""

    @property
    def id(self) -> str:
        """The container's name."""
        return self._name

    async def open(self) -> None:
        """Create and start the container and wait for its warden. After a failure, `close` removes the container."""
        async with self._starting:
            self._channel = await Channel.open(await self._client.call(self._start), self._name)
            if self._closing is not None:
                raise SandboxLost(f"sandbox {self._name} was closed while it started")
            await self._channel.wait(self._channel.greeting, START_PATIENCE)
            if self.spec.files:
                files = {path.removeprefix("/"): content for path, content in self.spec.files.items()}
                await self.write_files(files, root="/", keeper=self.spec.role == "scoring")
            if self.spec.standby:
                self._standby = await self.spawn(self.spec.standby, cwd="/")

    def _start(self) -> socket.socket:
        """Create and start the container; return the stream to its process 1."""
        client, spec = self._client.docker(), self.spec
        api: Any = client.api
        image = self._image or find_image(client)
        self.image_id = api.inspect_image(image)["Id"]
        # A scoring sandbox has two users. Its process 1 starts as root with only the capabilities to change users, and
        # gives them up before its first message.
        agent, self.uid = spec.role == "agent", self._client.take_uid()
        label, volumes, limiting = {OWNER_LABEL: owner_label()}, None, []
        groups = self._client.known_budget.groups
        if self._client.podman:
            # Without root, Podman ignores the limits in the request.
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
            environment=_ENVIRONMENT | dict(spec.env),
            working_dir="/",
            hostname="rtl",
            stdin_open=True,
            labels=label,
            host_config=host_config(api, spec, self.uid, volumes, groups.parent(spec.role) if groups else None),
        )["Id"]
        self._socket = attach(client, self._container)
        api.start(self._container)
        if groups is not None and not groups.holds(spec.role, self._container):
            self._client.known_budget.drop_groups("the daemon sees other control groups than this process")
        return self._socket

    def abandon(self) -> None:
        """End it without its event loop: closing the socket ends the container."""
        if self._socket is not None:
            self._socket.close()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        async with self._starting:  # a start in progress sees that it was closed
            if self._channel is not None:
                self._channel.close()
            if self._socket is not None:
                self._socket.close()
            if self.uid >= 0:  # the daemon was asked for it, and may have made it without an answer
                # Docker removes it when the warden ends; this only ensures that it is gone on return.
                await self._client.remove(self._name)
        self._client.return_uid(self.uid)
        self._on_close(self)

    async def _reply(self, request: Request, patience: float | None, due: float = 0.0) -> Reply:
        """Wait for a reply. Raises `SandboxBroken` (by commands) or `SandboxLost` (by the machine) if there is none.

        Callers only make valid requests, so an operation that the warden cannot perform is one of the two.

        Args:
            request: The request.
            patience: Seconds after which a silent warden counts as lost; None for no limit.
            due: Seconds that the operation itself may take.
        """
        assert self._channel is not None
        if self._verdict is not None:
            raise await asyncio.shield(self._verdict)
        by_commands = self._used and self.spec.role == "agent" and self._closing is None
        late = None
        if by_commands and patience is not None:
            self._noted = None
            late = asyncio.get_running_loop().call_later(due + LATE, self._note_cpu_time)
        try:
            return await self._channel.wait(request, patience)
        except BrokenPipeError:  # a process does not read its stdin
            raise
        except OSError as error:
            kind = SandboxBroken if by_commands else SandboxLost
            raise kind(f"sandbox {self._name} could not do it: {error.strerror or error}") from error
        except SandboxLost as lost:
            if not by_commands or self._closing is not None:
                self._channel.give_up(str(lost))
                raise
            if self._verdict is None:
                self._verdict = asyncio.ensure_future(self._judge(lost))
            raise (await asyncio.shield(self._verdict)) from None
        finally:
            if late is not None:
                late.cancel()

    def _note_cpu_time(self) -> None:
        async def note() -> CpuTime | None:
            with contextlib.suppress(SandboxError):
                return await self._client.call(lambda: cpu_time(self._client.docker().api, self._container))
            return None

        self._noted = asyncio.ensure_future(note())

    async def _judge(self, lost: SandboxLost) -> RTLGymError:
        """The error for a loss after commands were run: their fault if there is evidence, else the machine's."""
        assert self._channel is not None
        broken, full = self._channel.broken, self._channel.memory_full
        before = await self._noted if self._noted is not None else None
        try:
            why = await self._client.call(
                lambda: own_doing(self._client.docker().api, self._container, self.spec, broken, full, before)
            )
        except SandboxError:  # the daemon does not answer
            why = ""
        self._channel.give_up(str(lost))
        return SandboxBroken(f"the commands of sandbox {self._name} ended it: {why}") if why else lost

    async def _ask(
        self,
        kind: bytes,
        header: Mapping[str, Any],
        body: bytes = b"",
        *,
        patience: float,
        due: float = 0.0,
        keeper: bool = False,
        on_piece: OutputSink | None = None,
    ) -> Reply:
        """Send a request to the warden of the commands, or to the keeper's. The pieces are part of the reply's body."""
        assert self._channel is not None
        pieces = bytearray()

        def take(piece: bytes) -> None:
            pieces.extend(piece)
            if on_piece is not None:
                on_piece(piece)

        header = {**header, "worker": self._has_worker and not keeper}
        answer, rest = await self._reply(self._channel.send(kind, header, body, take), patience, due)
        return answer, bytes(pieces) + rest

    @property
    def _has_worker(self) -> bool:
        return self.spec.role == "scoring"

    async def run(
        self,
        command: str,
        *,
        timeout: float = 30.0,
        max_output: int = 16_000,
        on_output: OutputSink | None = None,
        then_read: ReadRequest | None = None,
    ) -> CommandResult:
        self._used = True
        header: dict[str, Any] = {"timeout": timeout, "limit": 8 * max_output, "stream": on_output is not None}
        if then_read is not None:
            header["read"] = _read_request(then_read)
        found, body = await self._ask(
            b"R",
            header,
            command.encode("utf-8", errors="replace"),
            patience=timeout + GRACE + (READ_PATIENCE if then_read is not None else 0.0),
            due=timeout,
            on_piece=on_output,
        )
        files = None
        if (read := found.pop("read", None)) is not None:
            at = len(body) - sum(size for _, size in read["files"])
            body, files = body[:at], _found_files(read, body[at:])
        output, truncated = cut(body, found.pop("size"), found["output_chars"], max_output)
        return CommandResult(output=output, truncated=truncated, files=files, **found)

    async def spawn(self, argv: Sequence[str], *, cwd: str = WORK_DIR, env: Mapping[str, str] | None = None) -> Process:
        assert self._channel is not None
        header = {"worker": self._has_worker, "argv": list(argv), "cwd": cwd, "env": dict(env or {})}
        return Process(self._channel, self._reply, header, GRACE)

    @property
    def standby(self) -> Process | None:
        return self._standby

    @property
    def idle(self) -> bool:
        return self._channel is None or self._channel.idle

    async def write_files(
        self,
        files: Mapping[str, str | bytes],
        *,
        root: str = WORK_DIR,
        keeper: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        for path in (*contents, *folders):
            if set(path.split("/")) & {"", ".", ".."} or re.search("[\0\ud800-\udfff]", path):
                raise ValueError(f"{path!r} is not a relative file path below {root}")
        sizes = [[path, len(data)] for path, data in contents.items()]
        header = {"root": root, "folders": list(folders), "files": sizes}
        await self._ask(b"W", header, b"".join(contents.values()), patience=60.0, keeper=keeper)

    async def read_files(
        self,
        paths: Sequence[str],
        *,
        first: Sequence[str] = (),
        max_file: int = 16 << 20,
        max_total: int = 64 << 20,
    ) -> FoundFiles:
        request = _read_request(ReadRequest(paths, first, max_file, max_total))
        return _found_files(*await self._ask(b"G", request, patience=READ_PATIENCE))

    async def oom_kills(self) -> int | None:
        answer, _ = await self._ask(b"M", {}, patience=GRACE)
        return None if answer["oom_kills"] is None else int(answer["oom_kills"])

    async def ping(self) -> None:
        if self._standby is not None and self._standby.exit_code is not None:
            raise SandboxLost(f"sandbox {self._name}: the process on standby has ended")
        await self._ask(b"P", {}, patience=GRACE)


def _read_request(wanted: ReadRequest) -> dict[str, Any]:
    """The header of a warden's request for files."""
    limits = {"max_file": wanted.max_file, "max_total": wanted.max_total}
    return {"root": WORK_DIR, "paths": list(wanted.paths), "first": list(wanted.first), **limits}


def _found_files(answer: Mapping[str, Any], body: bytes) -> FoundFiles:
    """The files in a warden's answer; their contents are the body, one after another."""
    contents = io.BytesIO(body)
    found = {path: contents.read(size) for path, size in answer["files"]}
    left_out = [(path, reason) for path, reason in answer["left_out"]]
    return FoundFiles(dict(sorted(found.items())), left_out, answer["left_out_count"])


def cpu_time(api: Any, container: str) -> CpuTime:
    """What a container has used. Raises as `own_doing` does."""
    return _read_cpu_time(api.stats(container, stream=False, one_shot=True), "cpu_stats", "read")


def own_doing(
    api: Any, container: str, spec: SandboxSpec, broken: str | None, memory_full: bool, before: CpuTime | None = None
) -> str:
    """How the sandbox's own commands ended it; empty if they did not, or if that is unknown. Blocks for seconds.

    Args:
        api: The daemon's client.
        container: Its id.
        spec: Its limits.
        broken: The warden's report that it could not continue, if any.
        memory_full: Whether half of the sandbox's memory was in use by the warden's last report.
        before: What it had used when its warden's silence began, if that is known.

    Raises:
        docker.errors.DockerException: The daemon does not answer; the errors of `requests` likewise.
    """
    if broken is not None:
        return f"the warden could not continue: {broken}"
    with contextlib.suppress(docker.errors.NotFound):  # it has been removed
        state = api.inspect_container(container)["State"]
        if state["Running"]:
            return "" if state.get("Paused") else _starving(api, container, spec, before)
    return _ending(api, container) if memory_full else ""


def _ending(api: Any, container: str) -> str:
    """Whether, by the daemon's events, a lack of memory ended a container: how, in a sentence, or empty."""
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
    """How a running container starves its warden, in a sentence; empty if it does not."""
    found = api.stats(container, stream=False)
    memory = found.get("memory_stats", {})
    if memory.get("limit") and memory.get("usage", 0) >= _FULL * memory["limit"]:
        return "its processes and files take all of its memory and starve the warden"
    may = min(spec.cpus, found.get("cpu_stats", {}).get("online_cpus") or spec.cpus)
    known = [_read_cpu_time(found, "precpu_stats", "preread"), _read_cpu_time(found, "cpu_stats", "read")]
    for first, last in itertools.combinations([*([before] if before else []), *known], 2):
        if last.at > first.at and last.seconds - first.seconds >= _BUSY * may * (last.at - first.at):
            return "its processes take all of its processors and starve the warden"
    return ""


def _read_cpu_time(found: Any, part: str, stamp: str) -> CpuTime:
    return CpuTime(found.get(part, {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9, _seconds(found.get(stamp, "")))


def _seconds(stamp: str) -> float:
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0
