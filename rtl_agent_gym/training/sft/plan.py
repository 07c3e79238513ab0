"""Plans a supervised run, including its data: the number of steps depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ...episodes.prompt import episode_renderer
from ...episodes.rules import EpisodeConfig
from ...errors import UsageError
from ..options import SftOptions
from ..plan import ModelRecipe, Plan, local_recipe, plan_options
from .data import Prompts, SupervisedData, read_demonstrations

FROM_RECIPE = {
    "student_model", "max_turns", "max_tokens", "max_trajectory_tokens", "lora_rank", "timeout_seconds",
    "grad_clip_norm", "max_concurrent",
}  # fmt: skip
"""The defaults of a recipe's models that also apply to supervised training."""


def plan_sft(given: Mapping[str, Any], *, recipes: Sequence[ModelRecipe] = ()) -> Plan:
    """Plan a supervised run, and read its episodes.

    Args:
        given: Options of `SftOptions` by name, with values as text or with their type.
        recipes: Models that can be built on this machine.

    Raises:
        UsageError: An option is wrong, or there is no episode to train on; the message begins with the option's name.
    """
    defaults: dict[str, Any] = {}
    if chosen := local_recipe(given, recipes):
        defaults = {name: value for name, value in chosen.defaults.items() if name in FROM_RECIPE}
    o = SftOptions.build(given, defaults)
    if not o.episodes:
        raise UsageError("episodes: none are given; name transcripts, a run or a file of rtl-agent-gym export")
    plan = plan_options(o, given, recipes)
    for recipe in plan.recipes:
        plan = recipe.make(plan)
    data = load_data(plan, o)
    if not data.train:
        raise UsageError(f"episodes: none is left to train on; {data.reasons()}")
    return replace(
        plan,
        options=o.model_copy(update={"num_steps": data.steps(o.batch_size, o.epochs)}),
        problems=plan.problems if o.eval_episodes else [],
        supervised=data,
    )


def load_data(plan: Plan, o: SftOptions) -> SupervisedData:
    """The episodes of a run in the student's tokens. Raises like `plan_sft`."""
    from ...envs.tinker_config import TinkerEnvConfig, load_renderer

    dialect = load_renderer(TinkerEnvConfig(plan.student, plan.renderer))
    single_turn = o.env == "single_turn"
    left_out = Counter[str]()
    return SupervisedData.collect(
        read_demonstrations(o, left_out),
        episode_renderer(EpisodeConfig(workspace="answer" if single_turn else "shell"), dialect),
        prompts=Prompts(plan.system_prompt, plan.user_prompt),
        held_out={problem.id for problem in chain(plan.held_out, *plan.extra_held_out.values())},
        single_turn=single_turn,
        max_tokens=o.max_trajectory_tokens,
        left_out=left_out,
    )
