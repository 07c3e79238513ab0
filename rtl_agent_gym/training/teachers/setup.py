"""Builds the teachers of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from ...engines.connect import Engine
from ...engines.protocol import Sampler
from ...envs.tinker_config import TinkerEnvConfig, load_renderer, load_tokenizer
from ...episodes.prompt import PromptTooLong, episode_renderer, open_prompt
from ...errors import UsageError
from ...problems import Problem
from ...renderers import Renderer
from ..plan import Plan, dialect_for
from ..teacher_context import SELF, TeacherContext
from . import Prompt, SameTokens, SelfTeacher, Teacher
from .cross import CrossTokens


async def make_teachers(plan: Plan, engine: Engine, config: TinkerEnvConfig) -> dict[str, Teacher]:
    """The teachers by problem; a problem may have none. `config` is the student's."""
    o, made, teachers = plan.options, dict[str, Teacher](), dict[str, Teacher]()
    context = TeacherContext.of(o)
    for problem in plan.problems if o.distils else ():
        if not context.covers(problem) or (chosen := plan.teacher_of(problem)) is None:
            continue
        option, model = chosen
        if model not in made:
            sampler = await (_start_weights(plan, engine) if model == SELF else engine.published(option, model))
            made[model] = await asyncio.to_thread(_make_teacher, plan, option, model, sampler, config, context)
        teachers[problem.id] = made[model]
    return teachers


async def _start_weights(plan: Plan, engine: Engine) -> Sampler:
    o = plan.options
    if o.load_checkpoint_path is None:
        return await engine.published("student_model", plan.student)
    # A service cannot create a sampler from a training state, but a trainer with that state can.
    trainer = await engine.trainer(plan.student, o.lora_rank, o.seed, o.load_checkpoint_path, optimizer=False)
    return await trainer.save_weights_and_get_sampling_client()


def _make_teacher(
    plan: Plan, option: str, model: str, sampler: Sampler, config: TinkerEnvConfig, context: TeacherContext
) -> Teacher:
    own = _teacher_config(plan, option, model, config)
    student, teacher = load_renderer(config), load_renderer(own)
    system_prompt = plan.options.text_of("teacher_system_prompt")
    if system_prompt is not None:
        own = replace(own, episode=own.episode.with_options(system_prompt=system_prompt))
    covered = [problem for problem in plan.problems if context.covers(problem)]
    if not same_vocabulary(config, own):
        other = f"{model} has another tokenizer than the student"
        if plan.options.agent != "none":
            raise UsageError(f"{option}: {other}, and cannot read an agent's prompts")
        if plan.options.kl_top_k:
            raise UsageError(f"kl_top_k: {other}, which cannot learn its tokens; use kl_top_k=0")
        if config.single_turn:
            raise UsageError(f"{option}: {other}, which needs env=agentic")
        return CrossTokens(sampler, student, teacher, {p.id: _prompt(p, own, teacher, context) for p in covered})
    prompts: dict[str, tuple[list[int], Prompt]] = {}
    if system_prompt is not None or context.kind != "none":
        own = replace(own, renderer_name=config.renderer_name)
        prompts = {p.id: (_student_ids(p, config, student), _prompt(p, own, student, context)) for p in covered}
    top = plan.options.kl_top_k
    if model == SELF:
        return SelfTeacher(sampler, prompts, top, plan.options.teacher_lag)
    return SameTokens(sampler, prompts, top)


def _teacher_config(plan: Plan, option: str, model: str, config: TinkerEnvConfig) -> TinkerEnvConfig:
    """The student's environment with the teacher's model and dialect."""
    if model == SELF:
        return config
    requested = plan.options.teacher_renderer_name
    unlimited = replace(config, episode=config.episode.with_options(max_trajectory_tokens=None))
    if option == "teacher_model" and model != plan.options.teacher_model:  # a folder from the recipe
        return replace(unlimited, model_name=model, renderer_name=requested or config.renderer_name)
    name = dialect_for(model, requested, plan.engine, option, "teacher_renderer_name")
    if model.startswith("tinker://"):
        return replace(config, renderer_name=name)  # weights of the student's base model
    return replace(unlimited, model_name=model, renderer_name=name)


def same_vocabulary(student: TinkerEnvConfig, teacher: TinkerEnvConfig) -> bool:
    """Whether both models have the same vocabulary, so that the teacher can read the student's ids."""
    harmony = [(config.renderer_name or "").startswith(("gpt_oss", "gpt-oss")) for config in (student, teacher)]
    if any(harmony) or student.model_name == teacher.model_name:
        return all(harmony) or not any(harmony)
    first, second = (load_tokenizer(config.model_name).get_vocab() for config in (student, teacher))
    return bool(first == second)


def _student_ids(problem: Problem, config: TinkerEnvConfig, renderer: Renderer) -> list[int]:
    opening = open_prompt(problem, config.episode, renderer)
    return episode_renderer(config.episode, renderer).initial_ids(opening.system, opening.user)


def _prompt(problem: Problem, config: TinkerEnvConfig, renderer: Renderer, context: TeacherContext) -> Prompt:
    """The teacher's prompt for a problem: the environment's prompt with the context and an episode's feedback."""
    try:
        opening = open_prompt(problem, config.episode, renderer)
    except PromptTooLong as error:
        raise UsageError(f"max_trajectory_tokens: the teacher's prompt of {problem.id} does not fit") from error
    user = context.user_message(problem, opening.user)
    encode = partial(episode_renderer(config.episode, renderer).initial_ids, opening.system)
    return lambda sampled: encode(user + sampled.feedback)
