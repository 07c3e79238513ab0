"""Complete runs with scripts instead of a model: the environments, vocabularies and harness are real."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinker

from rtl_agent_gym.envs.problem_order import Batches
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig, load_renderer
from rtl_agent_gym.episodes.runtime import acquire
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.training.evaluator import Evaluator
from rtl_agent_gym.training.loop import TrainingLoop
from rtl_agent_gym.training.options import TrainOptions, split_arguments
from rtl_agent_gym.training.plan import Plan
from rtl_agent_gym.training.rollouts import EpisodePlayer, rollout_name, turn_seed
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.teachers import Teacher
from tests.envs.scripted_tinker import LOGPROB, encode

from .common import answer
from .toy import opened

STEPS = 2


@dataclass
class Scripted:
    """Tinker's service with scripts instead of a model, one for each member of a group."""

    scripts: list[list[str]]
    data: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.texts = {
            turn_seed(0, rollout_name(step, 0, member), turn): text
            for step in range(STEPS)
            for member, script in enumerate(self.scripts)
            for turn, text in enumerate(script, 1)
        }

    async def save_weights_and_get_sampling_client(self) -> Scripted:
        return self

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        ids = encode(self.texts[sampling_params.seed])
        return answer(ids, [LOGPROB] * len(ids))

    async def forward_backward(self, data: list[Any], loss_fn: str) -> Any:
        self.data.append(data)
        outputs = [{"logprobs": datum.loss_fn_inputs["logprobs"]} for datum in data]
        return tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})

    async def optim_step(self, params: Any) -> Any:
        return tinker.types.OptimStepResponse()

    async def save_state(self, name: str) -> Any:
        return tinker.types.SaveWeightsResponse(path=f"state/{name}")

    async def save_weights_for_sampler(self, name: str) -> Any:
        return tinker.types.SaveWeightsForSamplerResponse(path=f"sampler/{name}")

    async def delete(self, path: str) -> None:
        pass


def make_plan(
    folder: Path,
    problems: Sequence[Problem],
    *arguments: str,
    held_out: Sequence[Problem] = (),
    extra_held_out: Mapping[str, list[Problem]] | None = None,
) -> Plan:
    """The plan of a run with Qwen3's dialect."""
    named = {argument.partition("=")[0] for argument in arguments}
    pair = {"student_model": "Qwen/Qwen3-8B", "teacher_model": "Qwen/Qwen3-32B"}
    models = [f"{option}={model}" for option, model in pair.items() if option not in named]
    o = TrainOptions.build(split_arguments([f"log_path={folder}", "eval_every=0", *models, *arguments]))
    dialects = "Qwen/Qwen3-8B", o.teacher_model, "qwen3"
    return Plan(o, "tinker", list(problems), list(held_out), *dialects, extra_held_out=extra_held_out or {})


async def no_teachers(_: TinkerEnvConfig) -> dict[str, Teacher]:
    """The reward alone."""
    return {}


async def run(
    plan: Plan,
    service: Any,
    make_teachers: Callable[[TinkerEnvConfig], Awaitable[Mapping[str, Teacher]]] = no_teachers,
    prepare: Callable[[Batches], None] = lambda _: None,
) -> RunFolder:
    """Do the run of a plan.

    Args:
        plan: From `make_plan`.
        service: Replaces the engine, its trainer and its sampler.
        make_teachers: Creates the teachers by problem.
        prepare: Called before the first step.
    """
    o, lease = plan.options, acquire()
    try:
        async with opened(Path(), o, replaced=service, tested=bool(plan.held_out)) as checkpointer:
            folder, progress = checkpointer.folder, checkpointer.progress
            config, batches = plan.env_config(folder.transcripts), plan.batches()
            teachers = await make_teachers(config)
            prepare(batches)
            evaluator = Evaluator(o, plan.evaluated(), config, folder.path / "evaluations", progress)
            renderer = load_renderer(config)
            player = EpisodePlayer(config, renderer, lease.runtime, o.seed)
            loop = (checkpointer, teachers, evaluator, folder, progress)
            await TrainingLoop(o, batches, player, *loop, renderer=renderer).run()
    finally:
        await lease.release()
    return folder
