"""Evaluates a run's weights on new episodes, never trained on, of the training and the held-out problems.

Each evaluation has its own folder in the run's folder, such as ``evaluations/000020-held_out`` after step 20. If it is
interrupted, a resumed run only plays the missing episodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..engines.protocol import Sampler
from ..envs.tinker_config import TinkerEnvConfig, load_renderer
from ..evaluation.config import EvaluationConfig
from ..evaluation.evaluate import evaluate
from ..evaluation.outcome import EpisodeResult
from ..evaluation.play import Observer
from ..policies.model_options import ModelOptions
from ..policies.sampler import TokenSamplerPolicy
from ..problems import Problem
from .options import TrainOptions
from .progress import Progress
from .rollouts import mean, token_limit, with_retries


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the weights of a run."""

    options: TrainOptions
    problems: Mapping[str, Sequence[Problem]]
    """The problems by the name of their metrics: ``test`` (training problems) and ``held_out``."""
    config: TinkerEnvConfig
    """Configuration of the training environments."""
    folder: Path
    """Folder of the evaluations."""
    progress: Progress

    def is_due(self, step: int) -> bool:
        """Whether the weights after a step are evaluated."""
        o, done = self.options, step + 1
        return done == o.num_steps or (o.eval_every > 0 and done % o.eval_every == 0)

    async def __call__(self, sampler: Sampler, version: int, when: str = "") -> dict[str, float]:
        """Evaluate weights.

        Args:
            sampler: The weights.
            version: Number of steps they were trained for.
            when: Appended to the name of the metrics, as in ``test_before/pass_rate``.
        """
        metrics: dict[str, float] = {}
        for kind, problems in self.problems.items():
            if not problems:
                continue
            name, begun = f"{kind}{when}", time.monotonic()
            samples = max(1, round(self.options.eval_episodes / len(problems)))
            self.progress.begin(max(0, version - 1), "evaluating", samples * len(problems))
            results = await self.play(problems, sampler, samples, self.folder / f"{version:06d}-{kind}")
            scores = [result.score for result in results if result.score is not None]
            metrics |= {f"{name}/episodes": float(len(scores)), f"time/{name}": time.monotonic() - begun}
            if not scores:
                continue  # all episodes were lost to machine faults, which say nothing about the model
            passed, reward = mean([score.passed for score in scores]), mean([score.reward for score in scores])
            metrics |= {f"{name}/pass_rate": passed, f"{name}/reward": reward}
            what = f"{kind}: {len(scores)} new episodes after {version} steps"
            self.progress.print(f"{what}: {passed:.0%} pass, reward {reward:.3f}")
        return metrics

    async def play(
        self, problems: Sequence[Problem], sampler: Sampler, samples: int, folder: Path
    ) -> Sequence[EpisodeResult]:
        """Play `samples` episodes of each problem. Raises like `with_retries`."""
        o = self.options
        config = EvaluationConfig(
            problems=problems,
            renderer=await asyncio.to_thread(load_renderer, self.config),
            episode=self.config.episode,
            reward=self.config.reward,
            samples=samples,
            seed=o.seed,
            folder=folder,
            concurrency=o.max_concurrent,
            attempts=o.rollout_retries + 1,
        )
        policy = TokenSamplerPolicy(
            sampler,
            name="student",
            options=ModelOptions(
                temperature=o.temperature, max_tokens=o.max_tokens, max_context=token_limit(sampler, o)
            ),
        )
        observer = Observer(finished=lambda _: self.progress.episode_done())
        done = await with_retries(partial(evaluate, config, policy, observer=observer), self.progress.print)
        return done.results
