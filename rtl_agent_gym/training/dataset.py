"""Builds a run's dataset and environments from its options."""

from __future__ import annotations

from itertools import chain

from ..envs.tinker_config import TinkerEnvConfig, load_renderer
from ..envs.tinker_data import CVDPDataset, Schedule
from ..episodes.episode import EpisodeConfig
from ..episodes.prompt import PromptTooLong, open_prompt
from ..errors import UsageError
from ..scoring.cache import default_cache_dir
from .options import TrainOptions
from .plan import Plan
from .run_folder import RunFolder


def make_dataset(plan: Plan, config: TinkerEnvConfig) -> CVDPDataset:
    """The training problems in batches."""
    return CVDPDataset(plan.problems, config, schedule(plan.options))


def schedule(o: TrainOptions) -> Schedule:
    """How the problems are ordered and batched."""
    order = "shuffled" if o.curriculum == "none" else o.curriculum
    return Schedule(o.batch_size, o.group_size, order=order, seed=o.seed, batches=o.num_steps)


def env_config(plan: Plan, folder: RunFolder, context: int | None = None) -> TinkerEnvConfig:
    """The configuration of a run's environments; `context` is the student's length in tokens, if that is known."""
    o = plan.options
    return TinkerEnvConfig(
        model_name=plan.student,
        renderer_name=plan.renderer,
        episode=EpisodeConfig(
            workspace="answer" if o.env == "single_turn" else "shell",
            max_turns=o.max_turns,
            command_timeout=o.command_timeout,
            harness_feedback=o.harness_feedback,
            judge=o.judge,
            progress_coef=o.progress_coef,
            transcript_dir=folder.transcripts,
            system_prompt=plan.system_prompt,
            user_prompt=plan.user_prompt,
            max_tokens=o.max_tokens,
            max_trajectory_tokens=min(o.max_trajectory_tokens, context or o.max_trajectory_tokens),
        ),
        reward=o.reward_config(),
        score_cache=default_cache_dir(),
    )


def check_prompts(plan: Plan, config: TinkerEnvConfig) -> None:
    """Raise `UsageError` if the prompt of a problem does not fit."""
    renderer = load_renderer(config)
    for problem in (*plan.problems, *plan.held_out, *chain(*plan.extra_held_out.values())):
        try:
            open_prompt(problem, config.episode, renderer)
        except PromptTooLong as error:
            raise UsageError(
                f"max_trajectory_tokens: even shortened, the prompt of {problem.id} does not fit into the limit of "
                f"{config.episode.max_trajectory_tokens}; raise it, or leave the problem out with problem_ids"
            ) from error
