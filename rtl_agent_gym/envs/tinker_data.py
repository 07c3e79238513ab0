"""Datasets for tinker-cookbook's own trainers: `CVDPDataset`, and `CVDPDatasetBuilder`, which makes it from options."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

from ..engines.catalogue import DEFAULT_STUDENT
from ..episodes.rules import EpisodeConfig
from ..errors import UsageError
from ..options import EpisodeRules, EvaluationOptions, Options, ProblemOptions
from ..problems import Problem, load_problems, split_problems
from ..problems.notes import Rows
from ..scoring import RewardWeights
from ..scoring.scorer import scorable
from .problem_order import Batches, Order, Schedule
from .tinker_config import TinkerEnvConfig, register_tokenizers
from .tinker_env import CVDPEnvGroupBuilder

logger = logging.getLogger(__name__)

register_tokenizers()  # the cookbook's trainers load tokenizers by name


class CVDPDataset(Batches, RLDataset):
    """`Batches` of group builders."""

    def __init__(self, problems: Sequence[Problem], config: TinkerEnvConfig, schedule: Schedule) -> None:
        super().__init__(problems, schedule)
        self.config = config

    def get_batch(self, index: int) -> list[CVDPEnvGroupBuilder]:
        """New group builders for a batch. Raises `IndexError` beyond the last batch."""
        size, seed = self.schedule.group_size, self.schedule.seed
        return [CVDPEnvGroupBuilder(problem, self.config, size, seed) for problem in self.choose(index)]


def _field(kind: type[Options], name: str) -> Any:
    field = kind.model_fields[name]
    doc = " ".join((field.description or "").replace("``", "").split())
    return chz.field(default=field.default or None if isinstance(field.default, tuple) else field.default, doc=doc)


@chz.chz
class CVDPDatasetBuilder(RLDatasetBuilder):
    """Builds the datasets to train on and to test with, for any trainer of the cookbook.

    Example:
        builder = CVDPDatasetBuilder(problems="bundled", model_name="Qwen/Qwen3.5-9B", batch_size=4, group_size=8)
        train, test = await builder()
    """

    problems: str = _field(ProblemOptions, "problems")
    ids: list[str] | None = _field(ProblemOptions, "ids")
    categories: list[str] | None = _field(ProblemOptions, "categories")
    difficulties: list[str] | None = _field(ProblemOptions, "difficulties")
    rows: Rows = _field(ProblemOptions, "rows")
    held_out: float = chz.field(default=0.0, doc="share of the problems to test with, never trained on")

    batch_size: int = chz.field(default=1, doc="problems, and so groups, in a batch")
    group_size: int = chz.field(default=1, doc="episodes of each problem in a batch")
    epochs: int = chz.field(default=1, doc="how often each problem is played")
    order: Order = chz.field(
        default="shuffled", doc="shuffled, curriculum (easy to hard in each epoch), given or difficulty"
    )
    seed: int = chz.field(default=0, doc="random seed of the shuffling and the split")

    model_name: str = chz.field(default=DEFAULT_STUDENT, doc="the model whose tokenizer is used")
    renderer_name: str | None = chz.field(default=None, doc="the dialect; None for the cookbook's choice for the model")
    single_turn: bool = chz.field(default=False, doc="one answer instead of work in a shell")
    max_turns: int = _field(EpisodeRules, "max_turns")
    command_timeout: float = _field(EpisodeRules, "command_timeout")
    max_output: int = _field(EpisodeRules, "max_output")
    max_malformed: int = _field(EpisodeRules, "max_malformed")
    scoring_timeout: float = _field(EpisodeRules, "scoring_timeout")
    harness_feedback: int = _field(EpisodeRules, "harness_feedback")
    progress_coef: float = _field(EpisodeRules, "progress_coef")
    judge: str | None = _field(EpisodeRules, "judge")
    max_tokens: int | None = _field(EpisodeRules, "max_tokens")
    max_trajectory_tokens: int | None = _field(EpisodeRules, "max_trajectory_tokens")
    max_prompt_tokens: int | None = _field(EpisodeRules, "max_prompt_tokens")
    overflow_reward: float = chz.field(default=0.0, doc="reward if even the shortened prompt does not fit")
    reward: str = _field(EvaluationOptions, "reward")
    reward_weights: RewardWeights | None = chz.field(default=None, doc="weights of your own, instead of a preset")
    transcript_dir: str | None = _field(EpisodeRules, "transcript_dir")
    score_cache: str | None = chz.field(default=None, doc="folder of cached gradings; None for no cache")

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """The dataset to train on, and the one to test with: each held-out problem once, in the order of the source.

        Raises:
            UsageError: An option is wrong, or no problem is left to train on.
            ProblemError: A row of the source is bad.
        """
        train, test = split_problems(self.load(), self.held_out, self.seed)
        if not train:
            raise UsageError(f"held_out={self.held_out:g} and seed={self.seed} leave no problem to train on; lower it")
        schedule = Schedule(self.batch_size, self.group_size, self.epochs, self.order, self.seed)
        config = self.env_config()
        testing = CVDPDataset(test, config, Schedule(self.batch_size, order="given", seed=self.seed)) if test else None
        return CVDPDataset(train, config, schedule), testing

    def load(self) -> list[Problem]:
        """The problems that meet the filters and can be scored here. Logs a warning for each that cannot."""
        problems = load_problems(
            self.problems,
            ids=self.ids,
            categories=self.categories,
            difficulties=self.difficulties,
            rows=self.rows,
        )
        kept, left_out = scorable(problems, self.problems, self.env_config().episode.grading)
        for problem, reason in left_out:
            logger.warning("%s is left out: %s", problem.id, reason)
        return kept

    def env_config(self) -> TinkerEnvConfig:
        """The options in the form that the environments take."""
        shared = EpisodeConfig.model_fields.keys() & chz.chz_fields(type(self)).keys()
        rules = {name: getattr(self, name) for name in shared}
        return TinkerEnvConfig(
            model_name=self.model_name,
            renderer_name=self.renderer_name,
            single_turn=self.single_turn,
            overflow_reward=self.overflow_reward,
            reward=self.reward_weights or RewardWeights.preset(self.reward),
            score_cache=Path(self.score_cache) if self.score_cache is not None else None,
            **rules,
        )
