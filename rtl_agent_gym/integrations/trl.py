"""TRL 1.16: `RTLEnvironment` for `GRPOTrainer`'s ``environment_factory``, its dataset, and its only reward function.

::

    environment = partial(RTLEnvironment, "bundled", config=EpisodeConfig(max_turns=20))
    trainer = GRPOTrainer(
        model, train_dataset=make_dataset(environment), environment_factory=environment, reward_funcs=[hidden_tests]
    )

TRL resets and calls environments one after another, and shows the model the text of any exception that a tool raises.
So sandboxes start in the background, a machine fault is kept until the end, and `hidden_tests` grades all episodes of
the batch in parallel. It returns None for those with a fault, which TRL excludes from the loss and the baseline.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..envs.gym_env import read_problems
from ..episodes.prompt import ToolOpening, tool_opening
from ..episodes.rules import EpisodeConfig, Reward
from ..episodes.runtime import background_loop, run_sync
from ..episodes.turn_rewards import refuse_turn_rewards
from ..errors import SandboxError, UsageError
from ..problems import Problem, find_problem
from ..renderers import ToolCall
from ..renderers.protocol import TOOL_NAME
from ..sandboxes.admission import given_limits
from ..scoring.scorer import require_scorable
from .session import FAULT, OVER, Result, ToolSession, counted_by_caller, read_source, require_shell, sandboxes_at_once

if TYPE_CHECKING:
    from datasets import Dataset

_log = logging.getLogger(__name__)
_open: WeakSet[RTLEnvironment] = WeakSet()
"""Environments with a sandbox. TRL opens those of a whole batch before it grades any."""


def _any_arguments(declared: Callable[..., str]) -> Callable[..., str]:
    """The tool with its declared signature, but accepting any arguments: wrong names get the reply of all adapters."""

    @functools.wraps(declared)
    def call(self: RTLEnvironment, /, **arguments: Any) -> str:
        return run_sync(self._play(arguments))

    return call


class RTLEnvironment:
    """An episode driven by `GRPOTrainer`. It opens nothing until `reset`; its sandbox ends with the grading, or at the
    latest with this object or the process.

    Args:
        problems: A source, as for `load_problems`, or a list of problems.
        config: The rules; None for the defaults. TRL counts the turns, so also set its
            ``max_tool_calling_iterations`` to ``max_turns``.
        reward: How the score becomes a reward; see `read_reward`.
        cache: Folder of cached gradings; None for no cache.

    Raises:
        UsageError: The workspace of the rules is not ``"shell"``, or they have ``turn_rewards``.
    """

    def __init__(
        self,
        problems: str | Path | Sequence[Problem] = "bundled",
        *,
        config: EpisodeConfig | None = None,
        reward: Reward = None,
        cache: Path | None = None,
    ) -> None:
        self._source, self._config = problems, require_shell(config or EpisodeConfig())
        refuse_turn_rewards(self._config.turn_rewards, "TRL")
        self._reward, self._cache = reward, cache
        self._session: ToolSession | None = None
        self._started: Future[ToolOpening]

    def reset(self, problem_id: str, **_: Any) -> None:
        """Begin the episode of a row of the dataset. The sandbox starts in the background.

        Raises:
            UsageError: There is no such problem, it cannot be scored here, or the machine has too little memory for
                the sandboxes of a whole batch.
        """
        run_sync(self._end())
        problem = find_problem(self._problems(), problem_id)
        require_scorable(problem, self._config.grading, texts=False)
        room = run_sync(sandboxes_at_once(self._config, _processes()))
        if len(_open) >= room:
            raise UsageError(
                f"a generation batch needs a sandbox for each of its episodes, and there is memory for {room:.0f}: "
                "lower per_device_train_batch_size or steps_per_generation, or raise the limits of sandboxes"
            )
        # If the session ended at its own turn limit, it would be graded at once, while all other episodes wait.
        rules = counted_by_caller(self._config, problem)
        self._session = ToolSession(problem, rules, reward=self._reward, cache=self._cache)
        _open.add(self)
        self._started = asyncio.run_coroutine_threadsafe(self._session.start(), background_loop())

    @_any_arguments
    def execute_bash(self, command: str) -> str:
        """Run a command in the persistent bash shell and return what it printed.

        Args:
            command: The bash command to run; several lines and here-documents are fine.

        Returns:
            What the command printed.
        """
        raise AssertionError("replaced by its decorator")

    async def _play(self, arguments: dict[str, Any]) -> str:
        session = self._session
        if session is None or session.over:
            return OVER
        try:
            await self._wait()
            return await session.call(ToolCall(TOOL_NAME, json.dumps(arguments)))
        except SandboxError:  # kept by `_started` or by the session, for `_grade`
            return FAULT

    async def _grade(self, completion: Any) -> Result | None:
        """The result, or None after a machine fault. The sandbox ends."""
        session = self._session
        if session is None:
            raise UsageError("hidden_tests grades each episode once, after reset()")
        try:
            await self._wait()
            answer = _answer(completion)
            if answer is not None and not session.over:
                await session.act(answer)
            turns = sum(message["role"] == "assistant" for message in completion)
            return await session.finish("max_turns" if turns >= self._config.max_turns else "max_tokens")
        except SandboxError as fault:
            _log.warning("an episode of %s is left out: %s", session.problem.id, fault)
            return None
        finally:
            await self._end()

    async def _end(self) -> None:
        session, self._session = self._session, None
        _open.discard(self)
        if session is not None:
            self._started.cancel()  # it may still wait for memory
            await asyncio.shield(asyncio.ensure_future(session.close()))  # even if this task is cancelled

    async def _wait(self) -> None:
        """Wait until the sandbox has started. The start continues if the caller is cancelled."""
        await asyncio.shield(asyncio.wrap_future(self._started))

    def _problems(self) -> Sequence[Problem]:
        return read_source(str(self._source)) if isinstance(self._source, (str, Path)) else self._source


def _processes() -> int:
    """The number of trainer processes that share this machine's memory; 1 if this process has its own limit."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if number.isdecimal() and "memory" not in given_limits() else 1


def _answer(completion: Any) -> str | None:
    """The text that ended the episode; None if the model was cut off after a call or its output."""
    last = completion[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    return str(last.get("content") or "")


def make_dataset(environment: Callable[[], RTLEnvironment] = RTLEnvironment) -> Dataset:
    """The problems of an environment as the trainer's dataset, with columns ``prompt`` (messages) and ``problem_id``.

    Problems that cannot be scored here are left out, with a warning.

    Args:
        environment: The ``environment_factory`` that the trainer gets.

    Raises:
        UsageError: There is no such source, or none of its problems can be scored here.
    """
    from datasets import Dataset

    made = environment()
    kept, _ = read_problems(made._problems(), made._config.grading, texts=False)
    prompts = [tool_opening(problem, made._config).messages for problem in kept]
    return Dataset.from_dict({"prompt": prompts, "problem_id": [problem.id for problem in kept]})


async def hidden_tests(
    completions: Sequence[Any],
    environments: Sequence[RTLEnvironment],
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """The reward of each episode, for ``reward_funcs``; None after a machine fault.

    Use it as the only reward function: TRL excludes an episode only if all of them return None for it. To compute the
    reward of a score differently, use `RTLEnvironment`'s argument ``reward``. Means of `result_numbers` are logged as
    ``rtl/NAME``, and the share of episodes with a fault as ``rtl/faults``.
    """

    async def grade() -> list[Result | None]:
        pairs = zip(environments, completions, strict=True)
        return await asyncio.gather(*(environment._grade(completion) for environment, completion in pairs))

    results = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(grade(), background_loop()))
    if log_metric is not None:
        graded = [result.numbers for result in results if result is not None]
        for name in sorted(set().union(*graded)):
            log_metric(f"rtl/{name}", statistics.fmean(numbers.get(name, 0.0) for numbers in graded))
        log_metric("rtl/faults", 1 - len(graded) / max(len(results), 1))
    return [None if result is None else result.reward for result in results]
