"""Shared by all adapters: an episode that a framework drives with calls of the declared tool, and problems by id.

Frameworks pass a problem's source and id instead of the problem, whose hidden tests must not reach their logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar

from .. import problems
from ..episodes.episode import Episode
from ..episodes.prompt import ToolOpening, tool_opening
from ..episodes.rules import EpisodeConfig, FunctionGrader, Reward, read_reward
from ..episodes.runtime import Lease, acquire
from ..episodes.turns import StopReason, Turn, result_numbers
from ..errors import SandboxError, UsageError
from ..problems import Problem, load_problems
from ..problems.notes import Rows
from ..problems.registry import split_whole
from ..renderers import ToolCall, get_renderer
from ..renderers.protocol import MAX_CALLS_READ
from ..sandboxes.admission import RESERVED, usage
from ..sandboxes.budgeted import BudgetedSandboxes
from ..scoring.score import Score
from ..scoring.scorer import require_scorable, scorable

T = TypeVar("T")

_log = logging.getLogger(__name__)

OVER = "[the episode is over; nothing was run]"
"""What the model reads if it calls the tool after the episode's end."""
FAULT = "[the sandbox is not available; the episode is over]"
"""What the model reads after a machine fault, where the framework must be given a text."""


def require_shell(config: EpisodeConfig) -> EpisodeConfig:
    """Return the rules if their workspace is the shell, which tool calls need. Raises `UsageError` otherwise."""
    if config.workspace != "shell":
        raise UsageError(f"tool calls need the workspace 'shell', not {config.workspace!r}")
    return config


def counted_by_caller(config: EpisodeConfig, problem: Problem) -> EpisodeConfig:
    """The session's rules if the framework counts the model's turns: each call of such a turn is a turn of the session.

    The limits are raised accordingly; the system message, as the model reads it, still states the limit of `config`.
    """
    opening = tool_opening(problem, config)
    return config.with_options(
        max_turns=config.max_turns * MAX_CALLS_READ + 1,
        max_malformed=config.max_malformed * MAX_CALLS_READ,
        system_prompt="".join(message["content"] for message in opening.messages if message["role"] == "system"),
    )


async def sandboxes_at_once(config: EpisodeConfig, processes: int = 1) -> float:
    """The number of agents' sandboxes that fit into the machine's memory, at least 1; infinite if that is unknown.

    If several `processes` share the machine, this is the number for each process.
    """
    if not usage():  # unknown until this process has connected to the daemon
        async with acquire(sandbox=config.sandbox.kind) as lease:
            provider = lease.runtime.provider
            if isinstance(provider, BudgetedSandboxes):
                with contextlib.suppress(SandboxError):  # the first sandbox to start raises it again
                    await provider.budget()
    capacity = usage().get("agent/capacity")
    if capacity is None:
        return math.inf
    return max(1.0, capacity / processes // min(RESERVED["agent"], config.sandbox.memory))


@dataclass(frozen=True)
class Result:
    """How an episode ended."""

    score: Score
    stop_reason: StopReason
    numbers: dict[str, float]
    """See `result_numbers`."""
    turn_rewards: tuple[float, ...] = ()
    """See `Episode.turn_rewards`."""

    @property
    def reward(self) -> float:
        """The reward of the whole episode, submissions included."""
        return self.numbers["reward"]


class ToolSession:
    """One episode, from `start` to `close`, on one event loop.

    It leases the loop's shared Docker client and scorers (`episodes.runtime`) until `close`. The container ends with
    the grading.

    Args:
        problem: The problem to solve.
        config: The rules; None for the defaults.
        reward: How the score becomes a reward; see `read_reward`.
        cache: Folder of cached gradings; None for no cache.
        seed: Seed of the shell and of submissions; None for a random one.

    Example:
        session = ToolSession(problem)
        try:
            opening = await session.start()
            print(await session.run("cat docs/*.md"))
            print((await session.finish()).reward)
        finally:
            await session.close()
    """

    def __init__(
        self,
        problem: Problem,
        config: EpisodeConfig | None = None,
        *,
        reward: Reward = None,
        cache: Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.problem, self.config = problem, config or EpisodeConfig()
        require_shell(self.config)
        self._weights, self._function = read_reward(reward)
        self._cache, self._seed = cache, seed
        self._lease: Lease | None = None
        self._episode: Episode | None = None
        self._turns: set[asyncio.Task[Any]] = set()
        self._playing = asyncio.Lock()  # there is one shell, so turns and the grading wait for each other

    @property
    def episode(self) -> Episode:
        """The episode. Raises `UsageError` before `start`."""
        if self._episode is None:
            raise UsageError("the session has not been started")
        return self._episode

    @property
    def over(self) -> bool:
        """Whether the episode has ended, with a score or with a fault."""
        return self._episode is not None and self._episode.over

    async def start(self) -> ToolOpening:
        """Start the sandbox and return the prompt and the tools.

        Raises:
            SandboxError: No sandbox started in `EpisodeConfig.start_attempts` attempts. The session is closed.
            UsageError: The session has been started already, or the problem cannot be scored here.
        """
        if self._lease is not None:
            raise UsageError("this session has been started already; make another ToolSession")
        options = self.config.grading
        require_scorable(self.problem, options, texts=False)
        opening = tool_opening(self.problem, self.config)
        self._lease = acquire(sandbox=self.config.sandbox.kind)
        try:
            runtime = self._lease.runtime
            scorer = runtime.scorer(self._weights, self._cache, options=options)
            self._episode = Episode(
                self.problem,
                provider=runtime.agents,
                grader=scorer if self._function is None else FunctionGrader(scorer, self._function),
                renderer=get_renderer("qwen3"),
                config=self.config.with_options(teach_dialect=False),
                seed=self._seed,
                turn_budget=runtime.turn_budget(self.config.turn_grading_time, self._weights, self._function),
            )
            await self._in_turn(self._episode.start)
        except BaseException:
            await self.close()
            raise
        return opening

    async def act(self, action: Sequence[ToolCall] | str, *, cut_off: bool = False) -> Turn:
        """Play a turn of parsed calls, or of a final answer; see `Episode.act`.

        If the caller is cancelled, for example by a framework's time limit, the turn still runs to its end, so that
        `finish` can grade the files. Concurrent turns are played one after the other.
        """
        episode = self.episode
        return await self._in_turn(lambda: episode.act(action, cut_off=cut_off))

    async def run(self, command: Any) -> str:
        """Play a turn with one call, and return the reply for the model. After the episode's end, nothing is run.

        Args:
            command: The call's argument as the model wrote it. If it is not a string, the reply says what is wrong.

        Raises:
            SandboxError: The machine failed; the episode is over, without a score.
        """
        return await self.call(ToolCall.of(command))

    async def call(self, call: ToolCall) -> str:
        """Like `run`, for a whole call as the model wrote it."""
        episode = self.episode

        async def run_unless_over() -> str:
            return OVER if self.over else (await episode.act([call])).replies()[0]

        return await self._in_turn(run_unless_over)

    async def _in_turn(self, play: Callable[[], Awaitable[T]]) -> T:
        async def play_alone() -> T:
            async with self._playing:
                return await play()

        turn = asyncio.ensure_future(play_alone())
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        return await asyncio.shield(turn)

    async def finish(self, reason: StopReason = "completed") -> Result:
        """Grade the current files, unless that has been done, and return the result. Idempotent.

        Turns that still run because their caller was cancelled are awaited first. If this caller is cancelled, the
        grading still runs to its end, for the next call.

        Raises:
            SandboxError: The machine failed, now or in an earlier turn.
        """
        episode = self.episode
        score = await self._in_turn(lambda: episode.finish(reason))
        stop = self.episode.stop_reason or reason
        numbers = result_numbers(score, stop, self.episode.turns, self.episode.oom_kills)
        return Result(score, stop, numbers, tuple(self.episode.turn_rewards))

    async def close(self) -> None:
        """End the container, and release the lease. Idempotent."""
        lease, self._lease = self._lease, None
        async with contextlib.AsyncExitStack() as stack:
            if lease is not None:
                stack.push_async_callback(lease.release)
            if self._episode is not None:
                stack.push_async_callback(self._episode.close)
            if not self.over:  # otherwise they end by themselves, such as further calls of `finish`
                for turn in self._turns:
                    turn.cancel()
            if self._turns:
                await asyncio.wait(self._turns)


def choose_problems(
    source: str,
    *,
    ids: str | Sequence[str] | None = None,
    categories: str | Sequence[str] | None = None,
    difficulties: str | Sequence[str] | None = None,
    rows: Rows = "all",
    texts: bool = False,
    **rules: Any,
) -> tuple[str, list[Problem], EpisodeConfig]:
    """The source with an absolute path, the selected problems that can be scored here, and the rules.

    Args:
        source: The source of the problems; see `load_problems`.
        ids: Selects problems, as `categories`, `difficulties` and `rows` do; see `load_problems`.
        texts: Whether to keep problems whose answer is a text.
        rules: Options of `EpisodeConfig` by name. Problems that they make unscorable are left out, with a warning.

    Raises:
        ProblemError: The source cannot be read.
        UsageError: None of the selected problems can be scored here, or a rule is invalid.
    """
    source, config = absolute(source), EpisodeConfig().with_options(**rules)
    loaded = load_problems(source, ids=ids, categories=categories, difficulties=difficulties, rows=rows)
    kept, left = scorable(loaded, source, config.grading, texts=texts)
    if left:
        _log.warning(
            "%d of %d problems cannot be scored here: %s: %s, …", len(left), len(loaded), left[0][0].id, left[0][1]
        )
    return source, kept, config


def absolute(source: str) -> str:
    """The source with its path, if it has one, made absolute: ``[PREFIX:]PATH[+mutants…]``."""
    prefix, path, derived = split_whole(source)
    known = path and path != "bundled" and Path(path).exists()
    return f"{prefix}{Path(path).resolve()}{derived}" if known else source


def find_problem(source: str, id: str) -> Problem:
    """The problem with this id. Raises like `read_source`, and `UsageError` if the source has no such problem."""
    return problems.find_problem(read_source(source), id)


def read_once(read: Callable[..., T]) -> Callable[..., T]:
    """Cache a function's last four results, and let one thread call it at a time.

    Many episodes begin together; only the first one reads.
    """
    kept, reading = lru_cache(maxsize=4)(read), threading.Lock()

    @wraps(read)
    def call(*arguments: Any) -> T:
        with reading:
            return kept(*arguments)

    return call


@read_once
def read_source(source: str) -> Sequence[Problem]:
    """All problems of a source, which is read once per process. Raises like `load_problems`."""
    return load_problems(source)
