"""OpenEnv 0.10: the environment that a server gives to trainers on other machines.

A WebSocket is an environment: `RTLClient.reset` begins an episode in it, each `step` is a turn, and its end, however it
comes, ends the sandbox. Errors cross the connection as text only, so the server writes their kind in front of it, and
`RTLClient` raises the exception of that kind again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from ..episodes.rewards import Reward
from ..episodes.rules import EpisodeConfig
from ..errors import SandboxError, UsageError
from ..problems import Problem, find_problem
from .openenv_client import KINDS, RTLClient
from .openenv_types import RTLAction, RTLObservation, read_calls
from .session import ToolSession

CLOSING = 60.0
"""Seconds that the end of a connection waits for the end of its sandbox."""

__all__ = ["RTLAction", "RTLClient", "RTLObservation", "ServedEnvironment"]

T = TypeVar("T")


class ServedEnvironment(Environment):
    """The environment of one connection. It opens nothing until `reset_async`.

    Args:
        problems: Those that can be scored here.
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
        """Begin an episode of a problem; without an id, of one that the seed chooses."""
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
        info = {"problem_id": problem.id, "category": problem.category, "difficulty": problem.difficulty}
        return RTLObservation(messages=opening.messages, tools=opening.tools, metadata=info)

    async def step_async(self, action: RTLAction, timeout_s: float | None = None, **_: Any) -> RTLObservation:
        """Play a turn. After the last one, ``metadata`` has the score, the stop reason and ``numbers``."""
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
            replies = turn.replies(len(calls)) if calls else []
        if session.over:
            result = await session.finish()
            info |= {"stop_reason": result.stop_reason, "numbers": result.numbers}
            await self._end()
        return RTLObservation(replies=replies, reward=reward, done=self._session is None, metadata=info)

    async def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def close(self) -> None:
        """End the sandbox. OpenEnv calls this in a thread of its own."""
        if self._session is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSING)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> RTLObservation:
        """Not in use: the server calls `reset_async`."""
        raise UsageError("this environment is asynchronous: call reset_async()")

    def step(self, action: RTLAction, timeout_s: float | None = None, **_: Any) -> RTLObservation:
        """Not in use: the server calls `step_async`."""
        raise UsageError("this environment is asynchronous: call step_async()")

    @property
    def state(self) -> State:
        """The number of turns."""
        session = self._session
        return State(step_count=0 if session is None else len(session.episode.turns))

    def list_splits(self) -> list[str]:
        """One split holds all problems."""
        return ["all"]

    def num_tasks(self, split: str) -> int:
        """The number of problems."""
        return len(self._problems)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """All problems."""
        return [self.get_task(split, index) for index in range(len(self._problems))]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A problem's id, category and difficulty."""
        problem = self._problems[index]
        return {"problem_id": problem.id, "category": problem.category, "difficulty": problem.difficulty}


async def _with_kind(work: Awaitable[T]) -> T:
    """Write the kind of an error in front of its text, which is all that the server sends."""
    try:
        return await work
    except (SandboxError, UsageError) as error:
        kind = next(name for name, kind in KINDS.items() if isinstance(error, kind))
        raise RuntimeError(f"{kind}: {error}") from error
