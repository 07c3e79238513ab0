"""The code that all implementations of `Sandbox` share: requests to the warden, over a `Channel`.

An implementation starts and ends the machine. If a sandbox is lost after an agent has run commands, it decides whether
the commands or the machine caused the loss; without evidence, the machine did.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import RTLGymError, SandboxBroken, SandboxLost
from .admission import Budget
from .cgroups import SandboxGroup
from .channel import Channel, Process, Reply, Request
from .protocol import OutputSink, Sandbox, SandboxSpec
from .results import WORK_DIR, CommandResult, FoundFiles, ReadRequest, cut

ENVIRONMENT = {"HOME": "/home/agent", "USER": "agent", "TERM": "dumb", "PAGER": "cat", "RTL_GYM_CWD": WORK_DIR}
"""Environment variables of process 1, in addition to the image's and `SandboxSpec.env`."""
START_PATIENCE = 60.0
READ_PATIENCE = 60.0
GRACE = 15.0
"""Seconds after a command's time-out until a sandbox that does not reply counts as lost."""
LATE = 3.0
"""Seconds by which a reply must be late for the used processor time to be recorded, as evidence if no reply comes."""
BUSY, FULL = 0.85, 0.97
"""Shares of its processors and of its memory from which a sandbox counts as starving its own warden."""


class CpuTime(NamedTuple):
    """The processor time that a sandbox had used at one moment."""

    seconds: float
    at: float
    """The moment, in seconds by the clock of the program that reported it."""


def starving(memory: float, seen: Sequence[CpuTime | None], cpus: float) -> str:
    """How a running sandbox starves its warden; empty if it does not.

    Args:
        memory: The share of its memory limit in use.
        seen: The processor time used, at several moments in order; None where unknown.
        cpus: The number of processors that it may use.
    """
    if memory >= FULL:
        return "its processes and files take all of its memory and starve the warden"
    for first, last in itertools.combinations([found for found in seen if found is not None], 2):
        if last.seconds - first.seconds >= BUSY * cpus * (last.at - first.at) > 0:
            return "its processes take all of its processors and starve the warden"
    return ""


class WardenSandbox(Sandbox):
    """Implements the requests of `Sandbox`.

    Args:
        spec: Limits and files.
        budget: The machine's budget, with its control groups.
        on_close: Called with the sandbox when it has ended.
    """

    def __init__(self, spec: SandboxSpec, budget: Budget, on_close: Callable[[Any], None]) -> None:
        self._name, self.spec = f"rtl-gym-{spec.role}-{os.getpid()}-{secrets.token_hex(4)}", spec
        self.budget, self._on_close, self._scoring = budget, on_close, spec.role == "scoring"
        self.uid = -1
        """The user id of its commands, inside and outside; the keeper, if any, has the next id."""
        self._group: SandboxGroup | None = None
        """The control group with its limits; None if this process neither sees nor makes one."""
        self._socket: socket.socket | None = None
        """The socket to the warden: closing it ends the sandbox."""
        self._channel: Channel | None = None
        self._starting = asyncio.Lock()
        self._standby: Process | None = None
        self._closing: asyncio.Task[None] | None = None
        self._verdict: asyncio.Task[RTLGymError] | None = None
        """The error for its loss, which says whether its commands or the machine caused it."""
        self._noted: asyncio.Task[CpuTime | None] | None = None
        """The processor time used when the last reply was late."""
        self._used = False
        """Whether a command has been run in it."""

    @property
    def id(self) -> str:
        return self._name

    async def open(self) -> None:
        """Start the machine and wait for its warden. After a failure, `close` removes it."""
        async with self._starting:
            for step in (self._connect, self._greet):
                if self._closing is not None:
                    raise SandboxLost(f"sandbox {self._name} was closed while it started")
                await step()

    async def _connect(self) -> None:
        """Start the machine and open the channel to its warden."""
        raise NotImplementedError

    def abandon(self) -> None:
        """End the sandbox without its event loop."""
        if self._socket is not None:
            self._socket.close()

    async def _greet(self) -> None:
        """Wait for the warden's first message; write the spec's files and start its standby process."""
        assert self._channel is not None
        await self._channel.wait(self._channel.greeting, START_PATIENCE)
        if self.spec.files:
            files = {path.removeprefix("/"): content for path, content in self.spec.files.items()}
            await self.write_files(files, root="/", keeper=self._scoring)
        if self.spec.standby:
            self._standby = await self.spawn(self.spec.standby, cwd="/")

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
            await self._remove()
            self._on_close(self)

    async def _remove(self) -> None:
        """Wait until the machine has ended, then release its resources."""
        raise NotImplementedError

    async def _cpu_time(self) -> CpuTime | None:
        """The processor time used so far; None if unknown. Called when a reply is late: evidence if none comes."""
        raise NotImplementedError

    async def _own_doing(self, before: CpuTime | None) -> str:
        """How the sandbox's own commands ended it; empty if they did not, or if that is unknown.

        `before` is the processor time used when the last reply was late, if known.
        """
        raise NotImplementedError

    async def _reply(self, request: Request, patience: float | None, due: float = 0.0) -> Reply:
        """Wait for a reply. Raises `SandboxBroken` (by commands) or `SandboxLost` (by the machine) if there is none.

        Callers only make valid requests, so if the warden cannot perform one, the sandbox is broken or lost. The warden
        counts as lost after `patience` seconds without a reply (None: never); the work itself may take `due` seconds.
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
        except BrokenPipeError:  # the process no longer reads its stdin
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
        self._noted = asyncio.ensure_future(self._cpu_time())

    async def _judge(self, lost: SandboxLost) -> RTLGymError:
        """The error for a loss after commands were run: theirs if there is evidence, else the machine's."""
        assert self._channel is not None
        before, broken = await self._noted if self._noted is not None else None, self._channel.broken
        why = await self._own_doing(before) if broken is None else f"the warden could not continue: {broken}"
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
        """Send a request to the warden of the commands or to the keeper's. The reply's body begins with the pieces.

        An exception of `on_piece` is raised at the end: raised when a piece arrives, it would close the channel.
        """
        assert self._channel is not None
        pieces, raised = bytearray(), list[Exception]()

        def take(piece: bytes) -> None:
            pieces.extend(piece)
            if on_piece is not None and not raised:
                try:
                    on_piece(piece)
                except Exception as error:
                    raised.append(error)

        header = {**header, "worker": self._scoring and not keeper}
        answer, rest = await self._reply(self._channel.send(kind, header, body, take), patience, due)
        if raised:
            raise raised[0]
        return answer, bytes(pieces) + rest

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
        header = {"worker": self._scoring, "argv": list(argv), "cwd": cwd, "env": dict(env or {})}
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

    async def read_files(self, paths: Sequence[str], **limits: Any) -> FoundFiles:
        request = _read_request(ReadRequest(paths, **limits))
        return _found_files(*await self._ask(b"G", request, patience=READ_PATIENCE))

    async def oom_kills(self) -> int | None:
        answer, _ = await self._ask(b"M", {}, patience=GRACE)
        return None if answer["oom_kills"] is None else int(answer["oom_kills"])

    async def lacked_memory(self) -> bool:
        return self._group is not None and self._group.lacked_memory()

    async def ping(self) -> None:
        if self._standby is not None and self._standby.exit_code is not None:
            raise SandboxLost(f"sandbox {self._name}: its standby process has ended")
        await self._ask(b"P", {}, patience=GRACE)


def _read_request(wanted: ReadRequest) -> dict[str, Any]:
    """The header of a request to read files."""
    limits = {"max_file": wanted.max_file, "max_total": wanted.max_total, "skip": list(wanted.skip)}
    return {"root": WORK_DIR, "paths": list(wanted.paths), "first": list(wanted.first), **limits}


def _found_files(answer: Mapping[str, Any], body: bytes) -> FoundFiles:
    """The files in a reply, whose body is their contents one after another."""
    contents = io.BytesIO(body)
    found = {path: contents.read(size) for path, size in answer["files"]}
    left_out = [(path, reason) for path, reason in answer["left_out"]]
    return FoundFiles(dict(sorted(found.items())), left_out, answer["left_out_count"])
