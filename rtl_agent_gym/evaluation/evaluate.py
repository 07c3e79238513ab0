"""Many episodes at once, each result kept as soon as it is there.

::

    for every (sample, problem) without a result: Episode ── play ──► results.jsonl

A killed run leaves whole lines. The same configuration on the same folder plays what is missing, each episode with the
seed that it would have had, so the results are those of a run that was never killed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..episodes.episode import Episode, EpisodeConfig, Grader
from ..errors import SandboxError, UsageError
from ..policies import Policy
from ..problems import Problem
from ..renderers import Renderer
from ..sandboxes import SandboxProvider
from ..scoring.scorable import scorable as scorable
from ..scoring.score import Score
from .play import Played, Watcher, play, rules_for
from .results import EpisodeResult, ResultsFile, episode_seed

FAULTS_IN_A_ROW = 8
"""Episodes that fail by the machine, without one that works between them, after which a run gives up."""


@dataclass(frozen=True)
class Limits:
    """How much is done at once, and how often again."""

    concurrency: int = 8
    """Episodes at the same time."""
    gradings: int = os.cpu_count() or 2
    """Of these, gradings: more than there are processors would only push simulations into their time limits."""
    attempts: int = 3
    """How often an episode is begun while the machine fails."""
    longest_pause: float = 30.0
    """Seconds between two tries, at most."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "gradings", "attempts"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass
class Observer:
    """Told how a run goes. Every part may be left out."""

    begun: Callable[[Problem, int], None] | None = None
    """An episode begins: problem and sample."""
    faulted: Callable[[Problem, int, SandboxError], None] | None = None
    """The machine failed in one; it is tried again, or given up when its tries are used up."""
    finished: Callable[[EpisodeResult], None] | None = None
    """A result is on disk."""
    watcher: Watcher = field(default_factory=Watcher)
    """Of every episode's turns; of use with a concurrency of 1."""
    output: Callable[[bytes], None] | None = None
    """Of every episode's commands, as they print it."""


class _Bounded:
    """A grader that few may use at once."""

    def __init__(self, grader: Grader, limit: int) -> None:
        self._grader, self._turn = grader, asyncio.Semaphore(limit)
        self.weights = getattr(grader, "weights", None)

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, **options: Any
    ) -> Score:
        async with self._turn:
            return await self._grader.score(problem, files, timeout=timeout, **options)


class Evaluation:
    """Runs the episodes that a results file has not got yet.

    Args:
        problems: In order; every problem's first episode comes before any one's second.
        policy: Who acts.
        renderer: The model dialect.
        provider: Where sandboxes come from.
        grader: Who scores.
        file: Where results go.
        samples: Episodes a problem.
        seed: What every episode's own seed is made of.
        rules: Of the episodes; its transcript folder is replaced by the run's.
        limits: How much at once.
        observer: Told how it goes.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        policy: Policy,
        renderer: Renderer,
        *,
        provider: SandboxProvider,
        grader: Grader,
        file: ResultsFile,
        samples: int,
        seed: int = 0,
        rules: EpisodeConfig | None = None,
        limits: Limits | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.problems, self.policy, self.renderer, self.file = list(problems), policy, renderer, file
        self.samples, self.seed, self.limits = samples, seed, limits or Limits()
        self.observer = observer or Observer()
        self._provider, self._grader = provider, _Bounded(grader, self.limits.gradings)
        self._rules = replace(rules or EpisodeConfig(), transcript_dir=file.folder / "transcripts")
        self._faults_in_a_row = 0

    def missing(self) -> Iterator[tuple[Problem, int]]:
        """The episodes without a verdict, in the order in which they are played."""
        for sample in range(self.samples):
            for problem in self.problems:
                known = self.file.done.get((problem.id, sample))
                if known is None or known.score is None:
                    yield problem, sample

    def known(self) -> list[EpisodeResult]:
        """The episodes of this evaluation with a verdict."""
        return [result for result in self._mine() if result.score is not None]

    def _mine(self) -> list[EpisodeResult]:
        wanted = {problem.id for problem in self.problems}
        return [result for (name, sample), result in self.file.done.items() if name in wanted and sample < self.samples]

    async def run(self) -> list[EpisodeResult]:
        """Play what is missing; gives all results.

        Raises:
            UsageError: The policy cannot play one of the problems; found before any is played.
            SandboxError: The machine fails again and again. What is finished is on disk.
        """
        for problem in self.problems:
            self.policy.player(problem, self.renderer, 0)
        todo = self.missing()  # one iterator for all workers: each episode is taken once
        workers = [asyncio.ensure_future(self._work(todo)) for _ in range(self.limits.concurrency)]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)  # their sandboxes are closed then
            raise
        return self._mine()

    async def _work(self, todo: Iterator[tuple[Problem, int]]) -> None:
        for problem, sample in todo:
            result = await self._episode(problem, sample)
            self.file.append(result)
            if self.observer.finished:
                self.observer.finished(result)

    async def _episode(self, problem: Problem, sample: int) -> EpisodeResult:
        seed = episode_seed(self.seed, problem.id, sample)
        if self.observer.begun:
            self.observer.begun(problem, sample)
        for attempt in range(self.limits.attempts):
            episode = Episode(
                problem,
                provider=self._provider,
                grader=self._grader,
                renderer=self.renderer,
                config=rules_for(self.policy, problem, self._rules),
                seed=seed,
                on_output=self.observer.output,
            )
            try:
                played = await play(episode, self.policy, self.observer.watcher, seed=seed)
            except SandboxError as error:
                if self.observer.faulted:
                    self.observer.faulted(problem, sample, error)
                if attempt + 1 < self.limits.attempts:
                    await asyncio.sleep(random.uniform(0, min(self.limits.longest_pause, 2.0**attempt)))
                    continue
                self._count_fault(error)
                return self._result(problem, sample, seed, attempt, fault=f"{type(error).__name__}: {error}")
            self._faults_in_a_row = 0
            return self._result(problem, sample, seed, attempt, played)
        raise AssertionError("unreachable")

    def _count_fault(self, error: SandboxError) -> None:
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= FAULTS_IN_A_ROW:
            raise type(error)(
                f"{FAULTS_IN_A_ROW} episodes in a row failed by the machine, the last with: {error}. What is finished "
                f"is in {self.file.folder}; the same command goes on from there"
            ) from error

    def _result(
        self,
        problem: Problem,
        sample: int,
        seed: int,
        retries: int,
        played: Played | None = None,
        fault: str | None = None,
    ) -> EpisodeResult:
        place: dict[str, Any] = {
            "problem_id": problem.id,
            "sample": sample,
            "category": problem.category,
            "difficulty": problem.difficulty,
            "seed": seed,
            "retries": retries,
        }
        if played is None:
            return EpisodeResult(**place, fault=fault)
        usage, transcript = played.usage, played.transcript
        return EpisodeResult(
            **place,
            score=played.score,
            stop_reason=played.stop_reason,
            turns=played.turns,
            malformed=played.malformed,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            seconds=usage.seconds,
            acting_seconds=usage.acting_seconds,
            transcript=str(transcript.relative_to(self.file.folder)) if transcript is not None else None,
        )
