"""NeMo Gym 0.7: a resources server whose one tool is the episode's shell, for any of its agents that call tools.

::

    POST /seed_session   a row of `rows`   starts the episode
    POST /execute_bash   {"command": …}    plays a turn; the answer is the text that the model reads
    POST /verify         the conversation  grades the files, and ends the episode

A machine fault becomes ``mask_sample`` in the answer to ``/verify``: NeMo Gym excludes such a sample from scores, and
NeMo RL's main branch excludes it from the loss. No row contains the hidden tests, with which the files are graded.

NeMo Gym's agents post each call to the path that the model names, so the model can reach all three paths. Each row
therefore has its problem's digest, which covers the hidden tests and is never shown to the model; ``/seed_session`` and
``/verify`` refuse requests without it (403).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.failure_kinds import PROVIDER_UNAVAILABLE
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import ConfigDict, Field, PrivateAttr

from ..episodes.prompt import tool_opening
from ..episodes.rules import EpisodeConfig, read_reward
from ..errors import SandboxError
from ..problems.notes import Rows
from ..renderers import TOOL_NAME, ToolCall
from .session import FAULT, OVER, ToolSession, choose_problems, counted_by_caller, find_problem, require_shell

POLL_SECONDS = 1.0
"""The longest interval between checks for idle episodes, in seconds."""


class RTLServerConfig(BaseResourcesServerConfig):
    """The server's part of NeMo Gym's configuration."""

    rules: dict[str, Any] = Field(default_factory=dict)
    """Options of `EpisodeConfig` by name. The agent counts the turns, so set its ``max_steps`` to ``max_turns``."""
    reward: str | dict[str, Any] | None = None
    """How the score becomes a reward; see `read_reward`."""
    cache: str | None = None
    """Folder of cached gradings; None for no cache."""
    idle_seconds: float = Field(default=3600.0, gt=0)
    """Seconds without a call after which an episode is ended, because its agent must have failed."""


class RTLSeedRequest(BaseSeedSessionRequest):
    """A row of `rows`."""

    problem_id: str
    problems: str = "bundled"
    digest: str = ""
    """`Problem.digest`."""


class RTLVerifyRequest(BaseVerifyRequest):
    """A row of `rows`, and the conversation."""

    model_config = ConfigDict(extra="allow")
    digest: str = ""


class RTLVerifyResponse(BaseVerifyResponse):
    """The reward, and the numbers of the episode."""

    model_config = ConfigDict(extra="allow")
    numbers: dict[str, float] = Field(default_factory=dict)
    """See `result_numbers`; empty after a machine fault."""
    turn_rewards: list[float] = Field(default_factory=list)
    """See `Episode.turn_rewards`; one for each call."""


@dataclass
class _Running:
    session: ToolSession
    calls: int = 0
    """Calls that have not been answered yet; they may be waiting for memory or a processor."""
    used: float = 0.0
    """When the last answered call ended."""
    fault: SandboxError | None = None

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a call until it is answered."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls, self.used = self.calls - 1, time.monotonic()


class RTLResourcesServer(SimpleResourcesServer):
    """One episode per session of NeMo Gym. Each keeps its sandbox until ``/verify``, unless it is idle too long."""

    config: RTLServerConfig
    ray_enabled: ClassVar[bool] = False
    _rules: EpisodeConfig = PrivateAttr()
    _running: dict[str, _Running] = PrivateAttr(default_factory=dict)
    _digests: dict[str, str] = PrivateAttr(default_factory=dict)
    """The digest of each session's row, until `verify`. The agent's first request sets it, before the model's turn."""
    _ending: asyncio.Task[None] | None = PrivateAttr(default=None)
    """Ends idle episodes; it runs as long as there are episodes."""

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._rules = require_shell(EpisodeConfig().with_options(**self.config.rules))
        read_reward(self.config.reward)

    def setup_webserver(self) -> FastAPI:
        app: FastAPI = super().setup_webserver()
        app.post(f"/{TOOL_NAME}")(self.execute_bash)
        return app

    async def seed_session(self, request: Request, body: RTLSeedRequest) -> BaseSeedSessionResponse:
        """Begin the episode of a row. A machine fault is kept, and reported by `verify`."""
        name = request.session[SESSION_ID_KEY]
        _check_digest(body.digest, self._digests.setdefault(name, body.digest))
        problem = await asyncio.to_thread(find_problem, body.problems, body.problem_id)
        _check_digest(body.digest, problem.digest)
        cache = None if self.config.cache is None else Path(self.config.cache)
        rules = counted_by_caller(self._rules, problem)
        session = ToolSession(problem, rules, reward=self.config.reward, cache=cache)
        before = self._running.get(name)
        if before is not None and before.calls:
            raise HTTPException(409, "a call of this session's episode has no answer yet: wait for it, then seed again")
        self._running[name] = running = _Running(session)
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._end_idle())
        with running.answering():
            try:
                if before is not None:
                    await before.session.close()
                await session.start()
            except SandboxError as fault:
                running.fault = fault
        return BaseSeedSessionResponse()

    async def execute_bash(self, request: Request) -> PlainTextResponse:
        """Play a turn with one call, whose arguments are the request's body. Returns the text for the model."""
        running = self._of(request)
        with running.answering():
            if running.fault is not None:
                return PlainTextResponse(FAULT)
            if running.session.over:
                return PlainTextResponse(OVER)
            call = ToolCall(TOOL_NAME, (await request.body()).decode("utf-8", "replace"))
            try:
                said = await running.session.call(call)
            except SandboxError as fault:
                running.fault = fault
                return PlainTextResponse(FAULT)
        # the call that this one waited for may have failed
        return PlainTextResponse(said if running.fault is None else FAULT)

    async def verify(self, request: Request, body: RTLVerifyRequest) -> RTLVerifyResponse:
        """Grade the files, unless that has been done, and end the episode."""
        name, running = request.session[SESSION_ID_KEY], self._of(request)
        _check_digest(body.digest, running.session.problem.digest)
        last = body.response.output[-1] if body.response.output else None
        answered = getattr(last, "type", None) == "message"
        given = body.model_dump()
        running.calls += 1  # never idle again: the episode ends here
        try:
            if running.fault is not None:
                raise running.fault
            result = await running.session.finish("completed" if answered else "max_turns")
        except SandboxError as fault:
            settings = given.pop("instance_config", None) or {}
            return RTLVerifyResponse(
                **given,
                reward=0.0,  # NeMo Gym needs a number, and ignores it in a masked sample
                mask_sample=True,
                instance_config={**settings, "mask_sample": True},  # where NeMo RL looks for it
                failure_kind=PROVIDER_UNAVAILABLE,
                failure_reason=f"{type(fault).__name__}: {fault}",
            )
        finally:
            if self._running.get(name) is running:
                del self._running[name], self._digests[name]
            await running.session.close()
        earned = list(result.turn_rewards)
        return RTLVerifyResponse(**given, reward=result.reward, numbers=result.numbers, turn_rewards=earned)

    def _of(self, request: Request) -> _Running:
        running = self._running.get(request.session[SESSION_ID_KEY])
        if running is None:
            raise HTTPException(400, "there is no episode in this session: call /seed_session first, with its cookie")
        return running

    async def _end_idle(self) -> None:
        while self._running:
            await asyncio.sleep(min(POLL_SECONDS, self.config.idle_seconds))
            oldest = time.monotonic() - self.config.idle_seconds
            idle = [name for name, running in self._running.items() if not running.calls and running.used < oldest]
            for running in [self._running.pop(name) for name in idle]:
                await running.session.close()


def _check_digest(given: str, right: str) -> None:
    if not given or not hmac.compare_digest(given.encode(errors="replace"), right.encode(errors="replace")):
        advice = "make the rows with `rows`, and restart the server"
        raise HTTPException(403, f"the digest is not that of the session's row, or the problem has changed: {advice}")


def rows(
    problems: str = "bundled", *, agent: str = "rtl_simple_agent", kept: Rows = "all", **chosen: Any
) -> list[dict[str, Any]]:
    """The rows of NeMo Gym's data for a source of problems: messages, tool, names of problem and agent, and a digest.

    Args:
        problems: The source; a path must be the same where the server runs.
        agent: The agent that plays the rows, as NeMo Gym's configuration names it.
        kept: The option ``rows`` of `load_problems`.
        chosen: ``ids``, ``categories`` and ``difficulties`` of `load_problems`, and options of `EpisodeConfig`, as in
            the server's configuration.

    Raises like `choose_problems`.
    """
    source, found, config = choose_problems(problems, rows=kept, **chosen)
    player = {"type": "responses_api_agents", "name": agent}
    made = []
    for problem in found:
        opening = tool_opening(problem, config)
        tools = [{"type": "function", "strict": False, **tool["function"]} for tool in opening.tools]
        asked = {"input": opening.messages, "tools": tools}
        named = {"problem_id": problem.id, "problems": source, "digest": problem.digest}
        made.append({"agent_ref": player, "responses_create_params": asked, **named})
    return made


if __name__ == "__main__":
    RTLResourcesServer.run_webserver()
