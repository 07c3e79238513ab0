"""OpenEnv 0.10: the environment that a server offers to trainers on other machines, and its client.

Each WebSocket is one environment: `RTLClient.reset` begins an episode, each `step` is a turn, and the sandbox ends with
the connection, however that ends. Errors cross the connection as text only, so the server puts the name of the
exception in front of it, and `RTLClient` raises that exception again.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from pydantic import Field
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State as Connection

from ..episodes.rules import EpisodeConfig, Reward
from ..episodes.turns import StopReason
from ..errors import RTLGymError, SandboxError, UsageError
from ..problems import Problem, find_problem
from ..renderers import ToolCall
from .session import ToolSession

CLOSING = 60.0
"""Seconds to wait for the sandbox to end when its connection ends."""
MESSAGE_TIMEOUT = 3600.0
"""Seconds that the client waits for an answer; that of the last turn includes waiting for a processor and grading."""
KINDS: dict[str, type[RTLGymError]] = {"SandboxError": SandboxError, "UsageError": UsageError}
"""The exceptions that the server names in front of their texts."""

T = TypeVar("T")


class RTLAction(Action):
    """A turn: exactly one of the fields is set."""

    command: str | None = None
    """A command to run; equivalent to one call of the tool."""
    calls: list[dict[str, str]] | None = None
    """The model's calls: ``name``, and ``arguments`` as the JSON text that it wrote."""
    answer: str | None = None
    """The text of a final answer. It ends the episode unless it is empty or contains a tool call written as text."""
    stop: StopReason | None = None
    """Why the trainer cuts the model off, such as ``max_tokens``; the current files are graded."""


class RTLObservation(Observation):
    """What the model reads, in addition to OpenEnv's ``done`` and ``reward`` (the reward of this turn)."""

    messages: list[dict[str, str]] = Field(default_factory=list)
    """After `reset`, the prompt."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """After `reset`, the declared tools, as in OpenAI's chat completions."""
    replies: list[str] = Field(default_factory=list)
    """After a turn, the text for each call; after an answer that did not end the episode, the correction."""


def read_calls(action: RTLAction) -> list[ToolCall]:
    """The calls of a turn; none for an answer.

    Raises:
        UsageError: A call lacks its name or arguments, or the list is empty.
    """
    if action.command is not None:
        return [ToolCall.of(action.command)]
    if action.calls is None:
        return []
    if not action.calls or any({"name", "arguments"} - call.keys() for call in action.calls):
        raise UsageError("calls needs at least one call, each with a name and arguments")
    return [ToolCall(call["name"], call["arguments"], call.get("id", "")) for call in action.calls]


class ServedEnvironment(Environment):
    """The environment of one connection. It opens nothing until `reset_async`.

    Args:
        problems: Problems that can be scored here.
        config: The rules; None for the defaults.
        reward: How the score becomes a reward; see `read_reward`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, problems: Sequence[Problem], config: EpisodeConfig | None = None, reward: Reward = None) -> None:
        super().__init__()
        self._problems, self._config, self._reward = problems, config, reward
        self._session: ToolSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, problem_id: str | None = None, **_: Any
    ) -> RTLObservation:
        """Begin an episode of a problem; without an id, the seed chooses the problem."""
        return await _with_kind(self._reset(seed, problem_id))

    async def _reset(self, seed: int | None, problem_id: str | None) -> RTLObservation:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise UsageError(f"seed: got {seed!r}, must be an integer or null")
        if problem_id is not None and not isinstance(problem_id, str):
            raise UsageError(f"problem_id: got {problem_id!r}, must be a string or null")
        await self._end()
        if problem_id is None:
            problem = random.Random(seed).choice(self._problems)
        else:
            problem = find_problem(self._problems, problem_id)
        self._loop = asyncio.get_running_loop()
        self._session = ToolSession(problem, self._config, reward=self._reward, seed=seed)
        opening = await self._session.start()
        return RTLObservation(messages=opening.messages, tools=opening.tools, metadata=_facts(problem))

    async def step_async(self, action: RTLAction, timeout_s: float | None = None, **_: Any) -> RTLObservation:
        """Play a turn. After the last turn, ``metadata`` has the score, the stop reason and ``numbers``; with the rule
        ``turn_rewards``, also the reward of each turn.
        """
        try:
            return await _with_kind(self._step(action))
        except RuntimeError:
            if self._session is not None and self._session.over:
                await self._end()
            raise

    async def _step(self, action: RTLAction) -> RTLObservation:
        session = self._session
        if session is None or session.over:
            raise UsageError("the episode is over or has not begun: call reset() before step()")
        given = [name for name in ("command", "calls", "answer", "stop") if getattr(action, name) is not None]
        if len(given) != 1:
            raise UsageError(
                f"an action is one of command, calls, answer and stop; got {' and '.join(given) or 'none'}"
            )
        replies: list[str] = []
        if action.stop is not None:
            result = await session.finish(action.stop)
            reward, info = result.score.reward, {"score": result.score.model_dump(mode="json")}
        else:
            calls = read_calls(action)
            turn = await session.act(calls or action.answer or "")
            reward, info = turn.reward, turn.info()
            replies = turn.replies(len(calls)) if calls or not session.over else []
        if session.over:
            result = await session.finish()
            turns = {"turn_rewards": list(result.turn_rewards)} if result.turn_rewards else {}
            info |= {"stop_reason": result.stop_reason, "numbers": result.numbers} | turns
            await self._end()
        return RTLObservation(replies=replies, reward=reward, done=self._session is None, metadata=info)

    async def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def close(self) -> None:
        """End the sandbox. OpenEnv calls this in another thread."""
        if self._session is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSING)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> RTLObservation:
        """Not used: the server calls `reset_async`."""
        raise UsageError("this environment is asynchronous: call reset_async()")

    def step(self, action: RTLAction, timeout_s: float | None = None, **_: Any) -> RTLObservation:
        """Not used: the server calls `step_async`."""
        raise UsageError("this environment is asynchronous: call step_async()")

    @property
    def state(self) -> State:
        """The number of turns."""
        session = self._session
        return State(step_count=0 if session is None else len(session.episode.turns))

    def list_splits(self) -> list[str]:
        """One split contains all problems."""
        return ["all"]

    def num_tasks(self, split: str) -> int:
        """The number of problems."""
        return len(self._problems)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """All problems."""
        return [_facts(problem) for problem in self._problems]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A problem's id, category and difficulty."""
        return _facts(self._problems[index])


def _facts(problem: Problem) -> dict[str, Any]:
    return {"problem_id": problem.id, "category": problem.category, "difficulty": problem.difficulty}


async def _with_kind(work: Awaitable[T]) -> T:
    """Put the name of an exception (see `KINDS`) in front of its text, since the server sends only the text."""
    try:
        return await work
    except (SandboxError, UsageError) as error:
        kind = next(name for name, kind in KINDS.items() if isinstance(error, kind))
        raise RuntimeError(f"{kind}: {error}") from error


class RTLClient(GenericEnvClient):
    """OpenEnv's client for ``rtl-agent-gym serve``. Machine faults, of the server or the network, raise `SandboxError`.

    Args:
        base_url: The server's address, such as ``http://HOST:8000``.
        token: The server's token; None if it has none.
        message_timeout_s: Seconds to wait for an answer.
        **options: Options of OpenEnv's client.

    Example:
        async with RTLClient("http://localhost:8000") as env:
            opening = (await env.reset(problem_id=ID)).observation  # messages, tools
            output = (await env.step({"command": "cat docs/*.md"})).observation["replies"]
            result = await env.step({"answer": "Done."})
            print(result.reward, result.metadata["numbers"])
    """

    def __init__(
        self, base_url: str, *, token: str | None = None, message_timeout_s: float = MESSAGE_TIMEOUT, **options: Any
    ) -> None:
        headers = dict(options.pop("headers", None) or {})
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        super().__init__(base_url, message_timeout_s=message_timeout_s, headers=headers, **options)

    async def _connect_async(self) -> Any:
        try:
            connected = await super()._connect_async()
        except (OSError, TimeoutError) as error:  # ConnectionError is an OSError
            cause = error.__cause__
            if isinstance(cause, InvalidStatus) and cause.response.status_code in (401, 403):
                reason = "token is missing or wrong, or the server has none and must be called as localhost"
                raise UsageError(f"{self.base_url} refuses the connection: {reason}") from error
            raise SandboxError(f"{self.base_url} cannot be reached: {error}") from error
        # A trainer's event loop may be busy for minutes, during which it does not read the answers to pings either.
        if hasattr(self._ws, "ping_timeout"):
            self._ws.ping_timeout = None
        return connected

    async def _step_async(self, action: Any, **options: Any) -> Any:
        if self._ws is None or self._ws.state is not Connection.OPEN:  # OpenEnv would reconnect, without the episode
            raise SandboxError("there is no connection, or it was lost and the episode with it: call reset()")
        return await super()._step_async(action, **options)

    async def _send_and_receive(self, message: dict[str, Any]) -> Any:
        try:
            return await super()._send_and_receive(message)
        except RTLGymError:
            raise
        except RuntimeError as error:
            known = _read_error(str(error))
            if known is None:
                raise
            raise known from error
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == 1009:
                raise UsageError("the message is longer than the server reads") from error
            raise SandboxError(f"the connection was lost, and the episode with it: {error}") from error
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"the server does not answer: {str(error) or 'time-out'}") from error


def _read_error(text: str) -> RTLGymError | None:
    """The exception for an error text of OpenEnv's client; None for an unexpected error of the server."""
    found = re.fullmatch(r"Server error: (.*) \(code: (\w+)\)", text, re.DOTALL)
    message, code = found.groups() if found else (text, "")
    kind, _, rest = message.partition(": ")
    if code == "EXECUTION_ERROR":
        return KINDS[kind](rest) if kind in KINDS else None
    if code == "CAPACITY_REACHED":
        return SandboxError(f"the server has no free session: {message}")
    return UsageError(message) if code in ("VALIDATION_ERROR", "INVALID_JSON", "UNKNOWN_TYPE") else None
