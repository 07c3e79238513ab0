"""Other people's agents as the policy. The agent decides; its commands run in the episode's sandbox, turn by turn.

Most run in the sandbox themselves (`inside.py`). mini-swe-agent runs in a thread of this process: its model is a
`ModelEndpoint`, and its environment hands each command to the episode and waits for the output. So limits, transcript,
replay and grading are the episode's, and what the model sampled is in `AgentPlayer.streams`.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import SandboxError, UsageError
from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer, ToolCall
from ..renderers.actions import native_action
from ..renderers.chat import check_dialect
from ..renderers.renderer import ToollessRenderer
from ..sandboxes.programs import programs_folder, programs_id
from .agents import INSIDE, Address, Program, program_of
from .endpoint import Line, ModelEndpoint
from .inside import AgentPlayer, Endpoints, InsidePlayer
from .protocol import Completion
from .sampler import TokenSamplerPolicy

AGENTS = ("mini-swe-agent", *INSIDE)
"""The agents that `HarnessPolicy` knows."""
_STATUS = re.compile(r"^\[(?:no output, )?(?:exit code (\d+)|timed out after .*)\](?:\n\[.*\])?\Z", re.MULTILINE)
_TIMED_OUT = 124
"""The status of a command that timed out, as of coreutils' ``timeout``."""


@dataclass(frozen=True)
class _Command:
    text: str


@dataclass(frozen=True)
class _Ended:
    text: str
    """The agent's last words."""
    error: BaseException | None = None


@dataclass
class _Wire:
    """Between an agent's thread and its player."""

    outputs: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    """To the agent; None ends it."""
    wants: asyncio.Queue[_Command | _Ended] = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def put(self, wanted: _Command | _Ended) -> None:
        """Tell the player, from the agent's thread. Nothing happens once its loop has ended."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.wants.put_nowait, wanted)


def check_agent(agent: str, dialect: str | None = None) -> None:
    """Raise `UsageError` for an unknown agent, one that is not installed, or a dialect that it cannot speak in.

    Raises `ImageError` for one whose programs for sandboxes are not installed.
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
    try:
        import minisweagent  # noqa: F401
    except ImportError as error:
        raise UsageError('mini-swe-agent is not installed: pip install "rtl-agent-gym[agents]"') from error


class HarnessPolicy:
    """An agent of somebody else, with a model that samples tokens.

    Args:
        agent: One of `AGENTS`; or any program that works in the sandbox, as `Program` or in its form as plain data:
            ``{"argv": […], "env": {…}, "files": {…}}``.
        model: The model. `close` closes it.
        dialect: The name of its dialect; None for that of the episode's renderer.

    Raises:
        UsageError: There is no such agent, or it is not installed.
        ImageError: Its programs for sandboxes are not installed.
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
        """What its sandboxes must have; see `SandboxSpec.programs`."""
        self.model, self._dialect = model, dialect
        self._endpoints: dict[str, ModelEndpoint] = {}
        """By dialect."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that the endpoints and the lock belong to."""
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
        return InsidePlayer(self, self._program_for, dialect, seed)

    def _program_for(self, address: Address, task: str) -> Program:
        return program_of(self.agent, address, task) if self._program is None else self._program.filled(address, task)

    async def endpoint(self, dialect: str) -> ModelEndpoint:
        """The endpoint of all episodes in this dialect on this event loop, started with the first."""
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


class HarnessPlayer(AgentPlayer):
    """One episode of mini-swe-agent. Its thread ends with the agent, or with this object."""

    def __init__(self, policy: Endpoints, dialect: str, seed: int | None) -> None:
        super().__init__(policy, dialect, seed)
        self._wire: _Wire | None = None
        self._used = (0, 0)
        """Tokens that were read and written up to the last turn; malformed answers are no turns of their own."""
        self._end: Callable[[], object] = lambda: None

    def end(self) -> None:
        """End the agent's thread, if it still runs. The streams stay."""
        self._end()

    def opened(self, system: str, user: str) -> None:
        """The episode begins: nothing to do, as `act` gets the messages."""

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """Hand the output of the agent's command to it, or why the episode did not run it."""
        if self._wire is not None:  # the last line of a correction shows a tool that the agent does not have
            self._wire.outputs.put(outputs[0] if outputs else (action.correction or "").partition("\n")[0])

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The agent's next command, or its end.

        Raises:
            ModelError: The model does not answer.
            SandboxError: The agent's program failed.
            UsageError: The service refuses the key, the account or the model.
            ServiceDown: In a run: the service cannot be used any more.
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
            turn = ModelTurn(text=wanted.text)
            if native_action(turn).kind != "final":  # the episode would go on without the agent
                turn = ModelTurn(text="Done.")
        else:
            turn = ModelTurn(calls=(ToolCall.of(wanted.text),))
        last, before = self.streams.last, self._used
        read, written = self._used = self.streams.read, self.streams.written
        return Completion(
            wanted.text,
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
            wire.put(_Command(command))
            return wire.outputs.get()

        here = openai.DefaultHttpxClient(trust_env=False)  # no proxy leads to it
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=None, http_client=here) as client:
            ask = partial(client.chat.completions.create, model="policy")
            found = mini_swe_agent(ask, run).run(task)
        wire.put(_Ended(str(found.get("submission") or found.get("exit_status") or "")))
    except BaseException as error:  # whatever ends the thread, the player must hear of it
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
        """Its model without LiteLLM's client and its retries; what can be repeated, the policy repeats."""

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
        """Run a command in the episode, and return what it printed and its status."""
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
        """What the agent's prompts may name: the sandbox's system."""
        return {"system": "Linux", "release": "", "version": "", "machine": "x86_64", **kwargs}

    def serialize(self) -> dict[str, Any]:
        """What the agent saves of its environment."""
        return {"info": {"config": {"environment_type": "rtl_agent_gym"}}}
