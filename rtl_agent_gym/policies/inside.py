"""Agents whose programs work in the episode's sandbox, which has no network. A gateway carries the model's address.

Each answer of the model is a turn of the episode: the agent's tools run its calls, and the next request says what they
printed. Requests are answered one at a time, and only while the episode waits for a turn. So its limits hold, its
transcript has every turn, and its files are read after each.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..errors import ModelError, SandboxBroken, SandboxError, SandboxLost, ServiceError, UsageError
from ..renderers import Message, ModelTurn
from ..renderers.chat import text_of
from ..sandboxes import WORK_DIR, Process, Sandbox
from ..sandboxes.gateway import PORT, Gateway
from ..visible import printable
from .agents import Address, Program
from .endpoint import Line, ModelEndpoint
from .protocol import Completion, Outside
from .streams import Answer, TokenStreams

SHOWN = 2000
"""Bytes of a program's last output that messages show."""


class Endpoints(Protocol):
    """What players need of their policy."""

    agent: str

    @property
    def name(self) -> str:
        """In results."""
        ...

    async def endpoint(self, dialect: str) -> ModelEndpoint:
        """The endpoint of all episodes in this dialect."""
        ...


class AgentPlayer:
    """One episode of somebody else's agent.

    Args:
        policy: The episode's policy.
        dialect: Of the model.
        seed: Of the model's answers.
    """

    def __init__(self, policy: Endpoints, dialect: str, seed: int | None) -> None:
        self._policy, self._dialect, self._seed = policy, dialect, seed
        self._line: Line | None = None

    @property
    def streams(self) -> TokenStreams:
        """The tokens of the episode. Raises `UsageError` before the first turn."""
        if self._line is None:
            raise UsageError("an agent has tokens only from its first turn on")
        return self._line.streams

    @property
    def started(self) -> bool:
        """Whether the agent runs, or has run."""
        return self._line is not None

    def end(self) -> None:
        """Answer no more requests. The streams stay. Idempotent."""

    def _check_fault(self) -> None:
        """Raise what the model raised instead of an answer, if it did; see `TokenSamplerPolicy.request`."""
        if self._line is None or self._line.fault is None:
            return
        fault = self._line.fault
        if type(fault) in (ModelError, ServiceError):  # others keep what they are: refusals are not sent again
            raise type(fault)(f"{self._policy.name}: {fault}") from fault
        raise fault


@dataclass(frozen=True)
class _Ended:
    """The program has ended."""

    why: str
    """In a sentence; empty if it ended well."""
    error: BaseException | None = None
    """What happened to the sandbox, or a bug here."""


class InsidePlayer(AgentPlayer):
    """One episode of an agent in the sandbox. It is the gate of its own line.

    Args:
        make: The program, for an address and a task.
    """

    def __init__(
        self, policy: Endpoints, make: Callable[[Address, str], Program], dialect: str, seed: int | None
    ) -> None:
        super().__init__(policy, dialect, seed)
        self._make = make
        self._sandbox: Sandbox | None = None
        self._seconds = 0.0
        """That the program may take between two answers of the model."""
        self._left = 0.0
        self._since = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._process: Process | None = None
        self._killing: asyncio.Task[None] | None = None
        self._silence = ""
        """That the program was killed, in a sentence, once it has been silent for too long."""
        self._wanted = asyncio.Event()
        """Set while the episode waits for a turn."""
        self._events: asyncio.Queue[Completion | _Ended | None] = asyncio.Queue()
        """Turns, the end, and None if the model did not answer."""
        self._pending: Answer | None = None
        """The last answer, until the next request says what became of its calls."""
        self._answered = False
        self._ended: _Ended | None = None
        self._over: Callable[[], None] = lambda: None
        self._watching: asyncio.Task[None] | None = None

    def enter(self, sandbox: Sandbox, turn_seconds: float) -> None:
        """See `Inhabitant`."""
        self._sandbox, self._seconds = sandbox, turn_seconds

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The next turn, once the agent has run its calls; or its end.

        Raises:
            ModelError: The model does not answer.
            UsageError: The service refuses the key, the account or the model.
            ServiceDown: In a run: the service cannot be used any more.
            SandboxError: The machine failed, or the program before it asked the model.
        """
        if self._line is None:
            await self._start(messages[-1]["content"])
        if self._ended is None:
            self._wanted.set()
            found = await self._events.get()
            self._check_fault()
            if isinstance(found, Completion):
                return found
            self._ended = found or _Ended("")
            if (answer := self._pending) is not None:
                self._pending = None
                last = not answer.turn.calls and not self._ended.why
                return _completion(answer, (), last=last)
        return await self._last(self._ended)

    async def _last(self, ended: _Ended) -> Completion | None:
        assert self._line is not None
        if ended.error is not None and not isinstance(ended.error, SandboxBroken):
            raise ended.error
        if ended.why and self._line.full:
            return None
        reason = printable(self._line.refused[:SHOWN])
        refused = f"its last request was refused ({reason}); " if reason else ""
        if not self._answered:
            what = "got no answer from" if refused else "never asked"
            raise SandboxError(f"{self._policy.agent} {what} its model: {refused}{ended.why or 'it ended at once'}")
        text = f"[{self._policy.agent}: {refused}{ended.why or 'it has ended'}]"
        return Completion(
            text,
            prompt_tokens=0,
            output_tokens=0,
            native=ModelTurn(text=text),
            outside=Outside((), True, ended.error is not None),
        )

    async def _start(self, task: str) -> None:
        if self._sandbox is None:
            raise UsageError(f"{self._policy.name} works in a sandbox, and was given none; play it with evaluate")
        endpoint = await self._policy.endpoint(self._dialect)
        line = self._line = endpoint.open(self._seed, gate=self)
        self._over = lambda: endpoint.end(line)
        try:
            await Gateway(self._sandbox, *endpoint.address).start()
            options = line.streams.policy.options
            url = f"http://127.0.0.1:{PORT}{urlsplit(line.url).path}"
            program = self._make(Address(url, options.max_context, options.max_tokens), task)
            files = {path.removeprefix("/"): text for path, text in program.files.items()}
            await self._sandbox.write_files(files, root="/")
            self._process = await self._sandbox.spawn(program.argv, cwd=WORK_DIR, env=program.env)
        except BaseException as error:
            self.end()
            if isinstance(error, SandboxBroken):  # the agent has not run yet
                raise SandboxLost(f"{self._policy.agent} cannot be started: {error}") from error
            raise
        self._left = self._seconds
        self._run_clock()
        self._watching = asyncio.ensure_future(self._watch(self._process, program.stdin))

    async def _watch(self, process: Process, stdin: str) -> None:
        """Wait for the program's end; the sandbox's end is one."""
        last = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                await process.write(stdin.encode())
                await process.close_stdin()
            while data := await process.output.read(1 << 16):
                last = (last + data)[-SHOWN:]
            status = await process.wait()
            shown = last.decode(errors="replace").strip()
            why = f"it ended with status {status}; its last output:\n{shown}" if status else ""
            ended = _Ended(self._silence or why)
        except (SandboxError, SandboxBroken) as error:
            ended = _Ended(f"its sandbox has ended: {error}", error)
        except BaseException as error:  # whatever ends this task, the episode must hear of it
            ended = _Ended(repr(error), error)
        self._events.put_nowait(ended)
        self.end()

    def end(self) -> None:
        self._over()
        self._over = lambda: None
        self._stop_clock()
        self._seconds = -1.0
        self._wanted.set()

    # ---- its requests: see `endpoint.Gate`

    @contextlib.asynccontextmanager
    async def turn(self, messages: Sequence[Mapping[str, Any]]) -> AsyncIterator[Callable[[Answer], None]]:
        """Wait until the episode wants a turn. The last one is complete now."""
        self._stop_clock()
        since = math.inf
        try:
            if (answer := self._pending) is not None:
                completed = _completion(answer, messages)  # may refuse the request: another says it
                self._pending = None
                self._events.put_nowait(completed)
            await self._wanted.wait()
            if self._seconds < 0:
                raise UsageError("the episode is over")
            since = asyncio.get_running_loop().time()
            yield self._take
        finally:
            if self._pending is None:  # a request without an answer is the program's own time
                self._left -= max(0.0, asyncio.get_running_loop().time() - since)
            self._run_clock()

    def _take(self, answer: Answer) -> None:
        self._wanted.clear()
        self._pending, self._answered = answer, True
        self._left = self._seconds

    def failed(self) -> None:
        """The model did not answer."""
        self._events.put_nowait(None)

    # ---- the time that the program takes between two answers

    def _run_clock(self) -> None:
        if self._seconds >= 0:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._alarm = loop.call_later(max(0.0, self._left), self._on_alarm)

    def _stop_clock(self) -> None:
        if self._alarm is not None:
            self._left -= asyncio.get_running_loop().time() - self._since
            self._alarm.cancel()
            self._alarm = None

    def _on_alarm(self) -> None:
        self._silence = f"it was ended, as it did not ask its model for {self._seconds:g} s"
        self.end()
        self._killing = asyncio.ensure_future(self._kill())

    async def _kill(self) -> None:
        """Kill the program; `_watch` hears of its end."""
        assert self._process is not None
        with contextlib.suppress(SandboxError, SandboxBroken):  # `_watch` tells what happened to the sandbox
            await self._process.kill()


def _completion(answer: Answer, messages: Sequence[Mapping[str, Any]], *, last: bool = False) -> Completion:
    """A turn, with what the messages of the next request say of its calls. Raises `UsageError` if that is no text."""
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    outputs = tuple(text_of(results.get(call.id, {})) for call in answer.turn.calls)
    return Completion(
        str(answer.turn),
        cut_off=answer.finish == "length",
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        native=answer.turn,
        outside=Outside(outputs, last),
        stream=answer.stream,
    )
