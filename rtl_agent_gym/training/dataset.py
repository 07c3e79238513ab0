"""The problems of a run with their environments, as its options ask for them."""

from __future__ import annotations

from ..envs.tinker_config import TinkerEnvConfig, load_renderer
from ..envs.tinker_data import CVDPDataset, Schedule
from ..episodes.episode import EpisodeConfig
from ..episodes.prompt import PromptTooLong, open_prompt
from ..errors import UsageError
from ..scoring.cache import default_cache_dir
from .annotations import TokenBytes
from .options import TrainOptions
from .plan import Models, Plan
from .run_folder import RunFolder


def make_dataset(plan: Plan, folder: RunFolder, models: Models) -> CVDPDataset:
    """The problems that a run trains on, in its batches."""
    return CVDPDataset(plan.problems, env_config(plan, folder, models), schedule(plan.options))


def schedule(o: TrainOptions) -> Schedule:
    """How a run's problems become batches."""
    order = "shuffled" if o.curriculum == "none" else o.curriculum
    return Schedule(o.batch_size, o.group_size, order=order, seed=o.seed, batches=o.num_steps)


def env_config(plan: Plan, folder: RunFolder, models: Models) -> TinkerEnvConfig:
    """The environments of a run."""
    o = plan.options
    return TinkerEnvConfig(
        model_name=models.tokenizer,
        renderer_name=models.renderer,
        episode=EpisodeConfig(
            workspace="answer" if o.env == "single_turn" else "shell",
            max_turns=o.max_turns,
            command_timeout=o.timeout_seconds,
            harness_feedback=o.harness_feedback,
            progress_coef=o.progress_coef,
            transcript_dir=folder.transcripts,
            system_prompt=models.system_prompt,
            user_prompt=models.user_prompt,
            max_tokens=o.max_tokens,
            max_trajectory_tokens=o.max_trajectory_tokens,
        ),
        reward=o.reward_config(),
        score_cache=default_cache_dir(),
    )


def token_bytes_of(config: TinkerEnvConfig) -> TokenBytes:
    """The bytes of the student's tokens."""
    return load_renderer(config).codec.token_bytes


def check_prompts(plan: Plan, config: TinkerEnvConfig) -> None:
    """Raises `UsageError` that names the option and the problem where a problem's opening does not fit."""
    renderer = load_renderer(config)
    for problem in (*plan.problems, *plan.held_out):
        try:
            open_prompt(problem, config.episode, renderer)
        except PromptTooLong as error:
            raise UsageError(
                f"max_trajectory_tokens: the prompt of {problem.id} does not fit {plan.options.max_trajectory_tokens} "
                "tokens, shortened as far as it can be; give more, or leave the problem out with problem_ids"
            ) from error
