"""Third-party agents as the policy. The agent decides; its commands run in the episode's sandbox, turn by turn.

The agent calls its model through a `ModelEndpoint`. So limits, transcript, replay and grading are the episode's, and
the sampled tokens are in `AgentPlayer.streams`.

Most agents run in the sandbox themselves (`InsidePlayer`), which has no network: a gateway forwards their requests to
the model. Each answer of the model is a turn: the agent's tools run its calls, and the next request contains their
results. Requests are answered one at a time, and only while the episode waits for a turn.

mini-swe-agent runs in a thread of this process (`HarnessPlayer`). Its environment hands each command to the episode and
waits for the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ..errors import ModelError, SandboxBroken, SandboxError, SandboxLost, ServiceError, UsageError, importing
from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer, ToolCall
from ..renderers.actions import native_action
from ..renderers.chat import check_dialect, text_of
from ..renderers.renderer import ToollessRenderer
from ..sandboxes import WORK_DIR, Process, Sandbox
from ..sandboxes.gateway import PORT, Gateway
from ..sandboxes.programs import programs_folder, programs_id
from ..visible import printable
from .agents import INSIDE, Address, Program
from .endpoint import Line, ModelEndpoint
from .protocol import Completion, Outside
from .sampler import TokenSamplerPolicy
from .streams import Answer, TokenStreams

AGENTS = ("mini-swe-agent", *INSIDE)
"""The agents that `HarnessPolicy` knows."""
LATE = 1.0
"""Seconds by which the end of a program's time must be noticed late for this process itself to count as stopped."""
SHOWN = 2000
"""Maximum bytes of a program's last output in messages."""
_STATUS = re.compile(r"^\[(?:no output, )?(?:exit code (\d+)|timed out after .*)\](?:\n\[.*\])?\Z", re.MULTILINE)
_TIMED_OUT = 124
"""The status of a command that timed out, as of coreutils' ``timeout``."""


def check_agent(agent: str, dialect: str | None = None) -> None:
    """Raise `UsageError` for an unknown agent, one that is not installed, or a dialect that agents cannot use.

    Raises `ImageError` if the agent's programs for sandboxes are not installed.
    """
    if agent not in AGENTS:
        raise UsageError(f"no agent {agent!r}; choose one of {', '.join(AGENTS)}")
    if dialect is not None:
        check_dialect(dialect)
    if agent in INSIDE:
        programs_folder(programs_id(agent))
        return
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or litellm downloads a list of prices
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    with importing('mini-swe-agent is not installed: pip install "rtl-agent-gym[agents]"'):
        import minisweagent  # noqa: F401


class HarnessPolicy:
    """A third-party agent, with a model that samples tokens.

    Args:
        agent: One of `AGENTS`; or any program that runs in the sandbox, as a `Program` or as plain data:
            ``{"argv": […], "env": {…}, "files": {…}}``.
        model: The model. `close` closes it.
        dialect: The name of its dialect; None for that of the episode's renderer.

    Raises like `check_agent` and `Program.read`.
    """

    own_prompts = True
    """Agents have system prompts of their own."""

    def __init__(
        self, agent: str | Program | Mapping[str, object], model: TokenSamplerPolicy, dialect: str | None = None
    ) -> None:
        self._program = None if isinstance(agent, str) else agent if isinstance(agent, Program) else Program.read(agent)
        if isinstance(agent, str):
            check_agent(agent, dialect)
        self.agent = agent if isinstance(agent, str) else self._program.name if self._program else ""
        self.programs = programs_id(self.agent) if self._program is None and self.agent in INSIDE else ""
        """The programs that its sandboxes need; see `SandboxSpec.programs`."""
        self.model, self._dialect = model, dialect
        self._endpoints: dict[str, ModelEndpoint] = {}
        """By dialect."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the endpoints and the lock."""
        self._starting = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"harness:{self.agent} {self.model.name}"

    @property
    def base_model(self) -> str:
        """The published model whose dialect an evaluation checks; see `TokenSamplerPolicy`."""
        return "" if self._dialect else self.model.base_model

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> HarnessPlayer | InsidePlayer:
        if problem.asks_text:
            raise UsageError(f"{problem.id} asks for a text; {self.agent} works in a shell")
        if isinstance(renderer, ToollessRenderer):
            raise UsageError(f"{self.agent} works in a shell, and a single-turn episode has none")
        dialect = self._dialect or renderer.name
        if self._program is None and self.agent not in INSIDE:
            return HarnessPlayer(self, dialect, seed)
        return InsidePlayer(self, dialect, seed)

    def program_for(self, address: Address, task: str) -> Program:
        """The program that an `InsidePlayer` starts."""
        program = INSIDE[self.agent](address) if self._program is None else self._program
        return program.filled(address, task)

    async def endpoint(self, dialect: str) -> ModelEndpoint:
        """The endpoint of all episodes in this dialect on this event loop, started at the first call."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._starting, self._endpoints = loop, asyncio.Lock(), {}
        async with self._starting:
            if dialect not in self._endpoints:
                endpoint = ModelEndpoint(self.model, dialect)
                await endpoint.start()
                self._endpoints[dialect] = endpoint
            return self._endpoints[dialect]

    async def close(self) -> None:
        endpoints, self._endpoints = self._endpoints, {}
        if self._loop is asyncio.get_running_loop():
            await asyncio.gather(*(endpoint.close() for endpoint in endpoints.values()))
        await self.model.close()


class AgentPlayer:
    """One episode of a third-party agent; `dialect` is that of its model."""

    def __init__(self, policy: HarnessPolicy, dialect: str, seed: int | None) -> None:
        self._policy, self._dialect, self._seed = policy, dialect, seed
        self._line: Line | None = None
        self._end: Callable[[], object] = lambda: None
        """Releases the line; idempotent."""

    @property
    def streams(self) -> TokenStreams:
        """The tokens of the episode. Raises `UsageError` before the first turn."""
        if self._line is None:
            raise UsageError("an agent has no tokens before its first turn")
        return self._line.streams

    @property
    def started(self) -> bool:
        """Whether the agent has been started."""
        return self._line is not None

    def end(self) -> None:
        """Answer no more requests, and end the agent's thread, if it has one. The streams are kept. Idempotent."""
        self._end()

    def _check_fault(self) -> None:
        """Raise the model's exception, if it raised one instead of answering; see `TokenSamplerPolicy.request`."""
        if self._line is None or self._line.fault is None:
            return
        fault = self._line.fault
        if type(fault) in (ModelError, ServiceError):  # others keep their class: refusals are not retried
            raise type(fault)(f"{self._policy.name}: {fault}") from fault
        raise fault


@dataclass(frozen=True)
class _Ended:
    """The agent has ended."""

    text: str
    """mini-swe-agent's final answer; for a program, the reason in a sentence, empty after a normal exit."""
    error: BaseException | None = None
    """An error of the sandbox or the thread, or a bug here."""


class InsidePlayer(AgentPlayer):
    """One episode of an agent in the sandbox. It is also the `Gate` of its line."""

    def __init__(self, policy: HarnessPolicy, dialect: str, seed: int | None) -> None:
        super().__init__(policy, dialect, seed)
        self._sandbox: Sandbox | None = None
        self._seconds = 0.0
        """Time limit for the program between two answers of the model; negative after `end`."""
        self._left = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._process: Process | None = None
        self._killing: asyncio.Task[None] | None = None
        self._silence = ""
        """A sentence for messages, if the program was killed because it was silent for too long."""
        self._wanted = asyncio.Event()
        """Set while the episode waits for a turn."""
        self._events: asyncio.Queue[Completion | _Ended | None] = asyncio.Queue()
        """Turns, the end, and None if the model did not answer."""
        self._pending: Answer | None = None
        """The last answer, until the next request contains the results of its calls."""
        self._answered = False
        self._ended: _Ended | None = None
        self._watching: asyncio.Task[None] | None = None

    def enter(self, sandbox: Sandbox, turn_seconds: float) -> None:
        """See `Inhabitant`."""
        self._sandbox, self._seconds = sandbox, turn_seconds

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The next turn, once the agent has run its calls; or the agent's end.

        Raises:
            SandboxError: The machine failed, or the program ended before the model's first answer.
            ModelError, UsageError, ServiceDown: As `TokenSamplerPolicy.request`.
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
                last = not answer.turn.calls and not self._ended.text
                return _completion(answer, (), last=last)
        return await self._last(self._ended)

    async def _last(self, ended: _Ended) -> Completion | None:
        assert self._line is not None
        if ended.error is not None and not isinstance(ended.error, SandboxBroken):
            raise ended.error
        if ended.text and self._line.full:
            return None
        reason = printable(self._line.refused[:SHOWN])
        refused = f"its last request was refused ({reason}); " if reason else ""
        if not self._answered:
            what = "got no answer from" if refused else "never asked"
            raise SandboxError(f"{self._policy.agent} {what} its model: {refused}{ended.text or 'it ended at once'}")
        text = f"[{self._policy.agent}: {refused}{ended.text or 'it has ended'}]"
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
        self._end = partial(endpoint.end, line)
        try:
            await Gateway(self._sandbox, *endpoint.address).start()
            options = line.streams.policy.options
            url = f"http://127.0.0.1:{PORT}{urlsplit(line.url).path}"
            program = self._policy.program_for(Address(url, options.max_context, options.max_tokens), task)
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
        """Wait until the program or its sandbox ends."""
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
        except BaseException as error:  # however this task ends, the episode must be notified
            ended = _Ended(repr(error), error)
        self._events.put_nowait(ended)
        self.end()

    def end(self) -> None:
        super().end()
        self._stop_clock()
        self._seconds = -1.0
        self._wanted.set()

    # ---- its requests: see `endpoint.Gate`

    @contextlib.asynccontextmanager
    async def turn(self, messages: Sequence[Mapping[str, Any]]) -> AsyncIterator[Callable[[Answer], None]]:
        """Wait until the episode wants a turn. The request completes the previous turn."""
        self._stop_clock()
        since = math.inf
        try:
            if (answer := self._pending) is not None:
                completed = _completion(answer, messages)  # if it raises, another request completes the turn
                self._pending = None
                self._events.put_nowait(completed)
            await self._wanted.wait()
            if self._seconds < 0:
                raise UsageError("the episode is over")
            since = asyncio.get_running_loop().time()
            yield self._take
        finally:
            if self._pending is None:  # a request without an answer counts as the program's time
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
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, self._left), self._on_alarm)

    def _stop_clock(self) -> None:
        if self._alarm is not None:
            self._left = self._alarm.when() - asyncio.get_running_loop().time()
            self._alarm.cancel()
            self._alarm = None

    def _on_alarm(self) -> None:
        assert self._alarm is not None
        if asyncio.get_running_loop().time() - self._alarm.when() > LATE:
            # This process was stopped, and a request that came meanwhile is not read yet: the time begins again.
            self._left = self._seconds
            self._run_clock()
            return
        self._silence = f"it was ended, as it did not ask its model for {self._seconds:g} s"
        self.end()
        self._killing = asyncio.ensure_future(self._kill())

    async def _kill(self) -> None:
        """Kill the program; `_watch` notices its end."""
        assert self._process is not None
        with contextlib.suppress(SandboxError, SandboxBroken):  # `_watch` reports what happened to the sandbox
            await self._process.kill()


def _completion(answer: Answer, messages: Sequence[Mapping[str, Any]], *, last: bool = False) -> Completion:
    """A turn, with the results of its calls from the next request. Raises `UsageError` if a result is not text."""
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


# ---- mini-swe-agent


@dataclass
class _Wire:
    """The queues between an agent's thread and its player."""

    outputs: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    """To the agent; None ends it."""
    wants: asyncio.Queue[str | _Ended] = field(default_factory=asyncio.Queue)
    """From the agent: a command, or its end."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def put(self, wanted: str | _Ended) -> None:
        """Send to the player from the agent's thread; does nothing once the player's loop is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.wants.put_nowait, wanted)


class HarnessPlayer(AgentPlayer):
    """One episode of mini-swe-agent. Its thread ends with the agent, or with this object."""

    def __init__(self, policy: HarnessPolicy, dialect: str, seed: int | None) -> None:
        super().__init__(policy, dialect, seed)
        self._wire: _Wire | None = None
        self._used = (0, 0)
        """Tokens read and written up to the last turn; those of malformed answers are counted in the next turn."""

    def opened(self, system: str, user: str) -> None:
        """The episode begins: nothing to do, since `act` receives the messages."""

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """Pass the output of its command to the agent, or the reason why the episode did not run it."""
        if self._wire is not None:  # first line only: the last line of a correction shows a tool that the agent lacks
            self._wire.outputs.put(outputs[0] if outputs else (action.correction or "").partition("\n")[0])

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The agent's next command, or its end.

        Raises:
            SandboxError: The agent's program failed.
            ModelError, UsageError, ServiceDown: As `TokenSamplerPolicy.request`.
        """
        if self._wire is None:
            await self._start(messages[-1]["content"])
        assert self._wire is not None
        wanted = await self._wire.wants.get()
        self._check_fault()
        if isinstance(wanted, _Ended):
            if wanted.error is not None and self._line is not None and self._line.full:
                return None
            if wanted.error is not None:
                raise SandboxError(f"{self._policy.agent} failed: {type(wanted.error).__name__}: {wanted.error}")
            text, turn = wanted.text, ModelTurn(text=wanted.text)
            if native_action(turn).kind != "final":  # the episode would go on without the agent
                turn = ModelTurn(text="Done.")
        else:
            text, turn = wanted, ModelTurn(calls=(ToolCall.of(wanted),))
        last, before = self.streams.last, self._used
        read, written = self._used = self.streams.read, self.streams.written
        return Completion(
            text,
            native=turn,
            prompt_tokens=read - before[0],
            output_tokens=written - before[1],
            stream=last.stream if last is not None else None,
        )

    async def _start(self, task: str) -> None:
        endpoint = await self._policy.endpoint(self._dialect)
        self._line, self._wire = endpoint.open(self._seed), _Wire()
        self._end = weakref.finalize(self, _let_go, endpoint, self._line, self._wire)
        agent = threading.Thread(target=_run_mini, args=(self._wire, self._line.url, task), daemon=True)
        agent.start()


def _let_go(endpoint: ModelEndpoint, line: Line, wire: _Wire) -> None:
    endpoint.end(line)
    wire.outputs.put(None)


def _run_mini(wire: _Wire, url: str, task: str) -> None:
    """Run mini-swe-agent until it ends, in its own thread."""
    try:
        import openai

        def run(command: str) -> str | None:
            wire.put(command)
            return wire.outputs.get()

        here = openai.DefaultHttpxClient(trust_env=False)  # no proxy to this machine
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=None, http_client=here) as client:
            ask = partial(client.chat.completions.create, model="policy")
            found = mini_swe_agent(ask, run).run(task)
        wire.put(_Ended(str(found.get("submission") or found.get("exit_status") or "")))
    except BaseException as error:  # however the thread ends, the player must be notified
        wire.put(_Ended("", error))


def mini_swe_agent(ask: Callable[..., Any], run: Callable[[str], str | None]) -> Any:
    """mini-swe-agent with the prompts of its `mini.yaml`.

    Args:
        ask: Its model: returns a chat completion for ``messages`` and ``tools``, or raises OpenAI's error.
        run: Runs a command and returns the episode's output; None ends the agent with `SystemExit`.
    """
    from importlib import resources

    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.litellm_model import BASH_TOOL, LitellmModel

    class Model(LitellmModel):  # type: ignore[misc]
        """mini-swe-agent's model, without LiteLLM's client and retries: the policy retries."""

        abort_exceptions = (Exception,)

        def _query(self, messages: list[dict[str, Any]], **_: Any) -> Any:
            return ask(messages=messages, tools=[BASH_TOOL])

    config = yaml.safe_load(resources.files("minisweagent.config").joinpath("mini.yaml").read_text())
    texts = {name: config["agent"][name] for name in ("system_template", "instance_template")}
    known = ("observation_template", "format_error_template")
    model = Model(
        model_name="openai/policy",
        cost_tracking="ignore_errors",
        **{name: config["model"][name] for name in known if name in config["model"]},
    )
    return DefaultAgent(model, _SandboxEnvironment(run), **texts, cost_limit=0.0)


class _SandboxEnvironment:
    """mini-swe-agent's environment: an episode's sandbox."""

    def __init__(self, run: Callable[[str], str | None]) -> None:
        self._run = run

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run a command in the episode, and return its output and status."""
        from minisweagent.exceptions import Submitted

        output = self._run(str(action.get("command", "")))
        if output is None:
            raise SystemExit  # the episode is over
        status = _STATUS.search(output)
        code = 0 if status is None else _TIMED_OUT if status[1] is None else int(status[1])
        first, _, rest = output.lstrip().partition("\n")
        if first.strip() == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" and code == 0:
            raise Submitted(
                {"role": "exit", "content": rest, "extra": {"exit_status": "Submitted", "submission": rest}}
            )
        return {"output": output, "returncode": code, "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The variables of the agent's prompts: the sandbox's system."""
        return {"system": "Linux", "release": "", "version": "", "machine": "x86_64", **kwargs}

    def serialize(self) -> dict[str, Any]:
        """The environment's part of the agent's saved trajectory."""
        return {"info": {"config": {"environment_type": "rtl_agent_gym"}}}
