"""TRL 1.16: `RTLEnvironment` for `GRPOTrainer`'s ``environment_factory``, its dataset, and its one reward function.

::

    environment = partial(RTLEnvironment, "bundled", config=EpisodeConfig(max_turns=20))
    trainer = GRPOTrainer(
        model, train_dataset=make_dataset(environment), environment_factory=environment, reward_funcs=[hidden_tests]
    )

TRL resets and calls environments one after another, and shows the model whatever an exception in a tool says. So
sandboxes start in the background, a machine fault is kept until the end, and `hidden_tests` grades all episodes of the
batch in parallel and returns None for those with a fault, which TRL leaves out of the loss and of the baseline.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..envs.gym_options import read_problems
from ..episodes.runtime import background_loop
from ..episodes.tools import tool_opening
from .session import Result
from .trl_environment import FAULT, RTLEnvironment

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["FAULT", "RTLEnvironment", "hidden_tests", "make_dataset"]


def make_dataset(environment: Callable[[], RTLEnvironment] = RTLEnvironment) -> Dataset:
    """The problems of an environment as the trainer's dataset, with columns ``prompt`` (messages) and ``problem_id``.

    Problems that cannot be scored here are left out, with a warning.

    Args:
        environment: What the trainer gets as ``environment_factory``.

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

    Give it alone: TRL leaves an episode out only if all reward functions return None for it. Other rewards of a score
    belong into `RTLEnvironment`'s argument ``reward``. Means of `result_numbers` are logged as ``rtl/NAME``, and the
    share of episodes with a fault as ``rtl/faults``.
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
