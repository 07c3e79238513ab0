"""Builds the teachers of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ...engines.protocol import Sampler
from ...envs.tinker_config import TinkerEnvConfig, load_renderer, load_tokenizer
from ...episodes.prompt import PromptTooLong, episode_renderer, open_prompt
from ...errors import UsageError
from ...problems import Problem, category_name
from ...renderers import Renderer
from ..plan import Plan
from ..published import renderer_for
from ..services import Engine
from .base import SameTokens, Teacher
from .cross import CrossTokens


async def make_teachers(plan: Plan, engine: Engine, config: TinkerEnvConfig) -> dict[str, Teacher]:
    """The teacher of each problem that has one.

    Args:
        plan: The run.
        engine: Where the teachers run.
        config: The student's environments.
    """
    o, made, teachers = plan.options, dict[str, Teacher](), dict[str, Teacher]()
    for problem in plan.problems if o.distils else ():
        option, model = "teachers", o.teachers.get(problem.id, o.teachers.get(category_name(problem.category)))
        if model is None:
            option, model = "teacher_model", plan.teacher
        if model is None:
            continue
        if model not in made:
            sampler = await engine.published(option, model)
            made[model] = await asyncio.to_thread(_make_one, plan, option, model, sampler, config)
        teachers[problem.id] = made[model]
    return teachers


def _make_one(plan: Plan, option: str, model: str, sampler: Sampler, config: TinkerEnvConfig) -> Teacher:
    own = _teacher_config(plan, option, model, config)
    student, teacher = load_renderer(config), load_renderer(own)
    system_prompt = plan.options.text_of("teacher_system_prompt")
    if system_prompt is not None:
        own = replace(own, episode=replace(own.episode, system_prompt=system_prompt))
    if same_vocabulary(config, own):
        if system_prompt is None:
            return SameTokens(sampler)
        own = replace(own, renderer_name=config.renderer_name)
        pairs = {p.id: (_prompt_ids(p, config, student), _prompt_ids(p, own, student)) for p in plan.problems}
        return SameTokens(sampler, pairs)
    if config.single_turn:
        raise UsageError(f"{option}: {model} has another tokenizer than the student, which needs env=agentic")
    prompts = {problem.id: _prompt_ids(problem, own, teacher) for problem in plan.problems}
    return CrossTokens(sampler, student, teacher, prompts)


def _teacher_config(plan: Plan, option: str, model: str, config: TinkerEnvConfig) -> TinkerEnvConfig:
    """The student's environment with the teacher's model and dialect."""
    requested = plan.options.teacher_renderer_name
    unlimited = replace(config, episode=replace(config.episode, max_trajectory_tokens=None))
    if option == "teacher_model" and model != plan.options.teacher_model:  # built by the recipe
        return replace(unlimited, model_name=model, renderer_name=requested or config.renderer_name)
    if model.startswith("tinker://"):
        return replace(config, renderer_name=requested or config.renderer_name)  # weights of the student's base model
    name = renderer_for(model, requested, plan.engine, option, "teacher_renderer_name")
    return replace(unlimited, model_name=model, renderer_name=name)


def same_vocabulary(student: TinkerEnvConfig, teacher: TinkerEnvConfig) -> bool:
    """Whether both have the same vocabulary, so that the teacher can read the student's ids."""
    harmony = [(config.renderer_name or "").startswith("gpt_oss") for config in (student, teacher)]
    if any(harmony) or student.model_name == teacher.model_name:
        return all(harmony) or not any(harmony)
    first, second = (load_tokenizer(config.model_name).get_vocab() for config in (student, teacher))
    return bool(first == second)


def _prompt_ids(problem: Problem, config: TinkerEnvConfig, renderer: Renderer) -> list[int]:
    try:
        prompt = open_prompt(problem, config.episode, renderer)
    except PromptTooLong as error:
        raise UsageError(f"max_trajectory_tokens: the teacher's prompt of {problem.id} does not fit") from error
    return episode_renderer(config.episode, renderer).initial_ids(prompt.system, prompt.user)
