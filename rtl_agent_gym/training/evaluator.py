"""Evaluates a run's weights on new episodes of held-out problems (``test/…``) and of training problems (``train/…``).

Each evaluation has its own folder in the run's folder, such as ``evaluations/000020-test`` after step 20. If it is
interrupted, a resumed run plays only the missing episodes.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engines.protocol import Sampler
from ..envs.tinker_config import TinkerEnvConfig, load_renderer
from ..errors import RequestRefused, SandboxError, TranscriptError
from ..evaluation.config import EvaluationConfig, EvaluationRecord, make_record
from ..evaluation.evaluate import evaluate, scorable_problems
from ..evaluation.outcome import EpisodeResult, verdicts
from ..evaluation.play import Observer
from ..evaluation.results import read_config
from ..evaluation.statistics import estimate
from ..policies.harness import HarnessPolicy
from ..problems import Problem
from ..scoring.score import RewardWeights
from ..visible import plural
from .options import TrainOptions
from .progress import Progress
from .rollouts import mean, student_policy, with_retries


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the weights of a run."""

    options: TrainOptions
    problems: Mapping[str, Sequence[Problem]]
    """See `Plan.evaluated`."""
    config: TinkerEnvConfig
    """The configuration of the training environments."""
    folder: Path
    progress: Progress

    async def __call__(self, sampler: Sampler, version: int, when: str = "") -> dict[str, float]:
        """Evaluate weights that were trained for `version` steps.

        ``pass_rate`` is a mean over problems, and ``pass_rate_low`` and ``pass_rate_high`` are its 95 % interval. With
        one episode per problem, verdicts are independent and the interval is Wilson's, which is valid near 0 and 1 and
        never has width 0. With several, it is a bootstrap over problems and episodes, because episodes of one problem
        are correlated; see `estimate`.

        `when` is appended to the first part of the metrics' names, as in ``test_before/pass_rate``.
        """
        metrics: dict[str, float] = {}
        begun = time.monotonic()
        for kind, problems in self.problems.items():
            first, _, extra = kind.partition("/")
            if not problems or (extra and 0 < version < self.options.num_steps):
                continue
            samples = self.options.evaluated_episodes(len(problems))
            self.progress.begin(max(0, version - 1), "evaluating", samples * len(problems))
            folder = f"{version:06d}-{kind.replace('/', '-')}"
            results = await self.play(problems, sampler, samples, self.folder / folder)
            metrics |= self._summarise(results, f"{first}{when}/{extra}".rstrip("/"), f"{kind}: ", version)
        return metrics | {f"time/evaluate{when}": time.monotonic() - begun} if metrics else metrics

    def _summarise(self, results: Sequence[EpisodeResult], name: str, label: str, version: int) -> dict[str, float]:
        scores = [result.score for result in results if result.score is not None]
        rate = estimate(sorted((sum(passed), len(passed)) for passed in verdicts(results).values()))
        reward = mean([score.reward for score in scores])
        count = f"{plural(len(scores), 'new episode')} after {plural(version, 'step')}"
        self.progress.print(f"{label}{count}: {rate} pass, reward {reward:.3f}")
        return {
            f"{name}/episodes": float(len(scores)),
            f"{name}/pass_rate": rate.value,
            f"{name}/pass_rate_low": rate.low,
            f"{name}/pass_rate_high": rate.high,
            f"{name}/reward": reward,
        }

    async def play(
        self, problems: Sequence[Problem], sampler: Sampler, samples: int, folder: Path
    ) -> Sequence[EpisodeResult]:
        """Play `samples` episodes of each problem, of which at least one gets a score. Raises like `with_retries`.

        If the folder has results of more episodes, from before ``eval_episodes`` was lowered, they are not used: those
        that had ended when the run was interrupted are the short ones.
        """
        o, reward = self.options, self.config.reward
        if reward is not None and not reward.simulate:
            reward = RewardWeights()  # evaluations always run the hidden tests: a pass rate counts official verdicts
        renderer = await asyncio.to_thread(load_renderer, self.config)
        config = EvaluationConfig(
            problems=problems,
            renderer=renderer,
            episode=self.config.episode.with_options(turn_rewards="none"),  # these episodes are not trained on
            reward=reward,
            samples=samples,
            seed=o.seed,
            folder=folder,
            concurrency=o.max_concurrent,
            attempts=o.rollout_retries + 1,
        )
        student = student_policy(sampler, o, temperature=o.evaluation_temperature)
        policy = student if o.agent == "none" else HarnessPolicy(o.agent, student)
        faults: list[SandboxError] = []
        observer = Observer(
            faulted=lambda _, __, fault: faults.append(fault), finished=lambda _: self.progress.episode_done()
        )

        async def play_missing() -> Sequence[EpisodeResult]:
            faults.clear()
            done = await evaluate(config, policy, observer=observer)
            results = [result for result in done.results if result.sample < samples]
            if faults and all(result.score is None for result in results):  # too few for `evaluate` to give up
                others = [fault for fault in faults if not isinstance(fault, RequestRefused)]
                last = (others or faults)[-1]  # if all faults are refusals, nothing is retried
                raise type(last)(f"no episode of the evaluation has a verdict; the last fault: {last}") from last
            return results

        try:
            record = make_record(config, scorable_problems(config, observer), policy, renderer, named=False)
            await asyncio.to_thread(_set_aside, folder, record)
            return await with_retries(play_missing, self.progress.print)
        finally:
            await policy.close()


def _set_aside(folder: Path, record: EvaluationRecord) -> None:
    """Rename the folder of an evaluation that cannot be continued, such as one of another version of the package."""
    try:
        other = bool(record.differences(read_config(folder)))
    except TranscriptError:
        other = folder.exists()
    if other:
        old = folder.with_name(f"{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
