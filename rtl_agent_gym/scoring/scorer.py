"""Files in, `Score` out."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from ..errors import SandboxError
from ..problems.model import Problem
from ..sandboxes.docker import DockerSandboxes
from ..sandboxes.protocol import SandboxProvider
from .cache import ScoreCache
from .compose import Service, read_services
from .frontend import Frontend
from .grading import Grading, judge_run
from .harness import TIME_LIMIT, Defences, HarnessRun, run_harness, source_paths, top_modules
from .images import HarnessImages
from .interface import Demand, demands, judge_interface
from .reward import RewardWeights
from .score import Score
from .submission import Submission, sift
from .syntax import SyntaxStage, disagreement, is_hdl, judge_syntax, reading_order

ATTEMPTS = 4
"""How often a grading is tried while the machine fails."""
_LONGEST_WAIT = 8.0
"""Seconds between two tries, at most."""

T = TypeVar("T")


class Scorer:
    """Grades files by the hidden tests of a problem.

    An async context manager. It may grade any number of submissions at once. A design's faults are in the `Score`; a
    machine's are a `SandboxError`, after retries.

    Args:
        provider: Where sandboxes come from; None for Docker containers of its own, which it closes.
        weights: What the stages are worth; None for the default.
        cache: Where gradings are kept; None for nowhere, a path for a folder.
        defences: For tests of the defences only.

    Example:
        async with Scorer() as scorer:
            score = await scorer.score(problem, {"rtl/top.sv": text})
    """

    def __init__(
        self,
        provider: SandboxProvider | None = None,
        *,
        weights: RewardWeights | None = None,
        cache: ScoreCache | str | os.PathLike[str] | None = None,
        defences: Defences | None = None,
    ) -> None:
        self.weights = weights or RewardWeights()
        self._provider, self._owns_provider = provider, provider is None
        self._cache = cache if isinstance(cache, ScoreCache) or cache is None else ScoreCache(cache)
        self._defences = defences or Defences()
        self._frontend, self._images = Frontend(), HarnessImages()
        self._demands: dict[str, list[Demand]] = {}

    async def __aenter__(self) -> Scorer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End what the scorer started; a provider that was given stays open."""
        await self._frontend.close()
        if self._owns_provider and self._provider is not None:
            await self._provider.close()
            self._provider = None

    async def score(self, problem: Problem, files: Mapping[str, str | bytes], timeout: float = TIME_LIMIT) -> Score:
        """Grade files.

        Args:
            problem: With its hidden tests.
            files: What an agent left, by path relative to the work folder.
            timeout: Seconds for all hidden tests together.

        Raises:
            ProblemError: The problem has no tests that can be run here.
            SandboxError: The machine failed, again and again; `retries` says how often. Never a score.
        """
        begun = time.monotonic()
        services = read_services(problem)
        submission = sift(problem, files)
        if not self.weights.simulate:
            grading, notes = await self._static(submission, services)
            why = "; ".join(part for part in ("the hidden tests were not run", grading.reason, notes) if part)
            grading = grading.model_copy(update={"reason": why})
            return grading.score(self.weights, seconds=time.monotonic() - begun)
        key = await self._key(submission, timeout) if self._cache else ""
        known = self._cache.get(key) if self._cache else None
        if known is not None:
            return known.score(self.weights, seconds=time.monotonic() - begun, cached=True)
        grading = await self._grade(submission, services, timeout)
        if self._cache and grading.repeatable:
            self._cache.put(key, grading)
        return grading.score(self.weights, seconds=time.monotonic() - begun)

    async def _key(self, submission: Submission, timeout: float) -> str:
        parts = {
            "problem": submission.problem.digest,
            "files": submission.digest,
            "image": await retrying(self._images.base),
            "timeout": timeout,
            "defences": vars(self._defences),
        }
        return ScoreCache.key(parts)

    async def _grade(self, submission: Submission, services: Sequence[Service], timeout: float) -> Grading:
        if submission.fault:
            return Grading(reason=submission.fault, violations=list(submission.violations))
        running = asyncio.ensure_future(retrying(lambda: self._run(submission, services, timeout)))
        try:
            static, notes = await self._static(submission, services)
        except BaseException:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)  # its sandbox is closed then
            raise
        run = await running
        if run.lint is not None:
            stage = SyntaxStage(static.syntax, notes if notes.startswith("syntax:") else "")
            notes = "; ".join(part for part in (notes, disagreement(stage, run.lint)) if part)
        return judge_run(static, submission, run, self._defences, notes)

    async def _static(self, submission: Submission, services: Sequence[Service]) -> tuple[Grading, str]:
        """The stages that run nothing, and their complaints in one line."""
        tops = top_modules(services)
        files = {path: content for path, content in submission.tree.items() if is_hdl(path)}
        order = reading_order(submission, source_paths(services))
        reading = await self._frontend.read(files, order, list(tops))
        syntax = judge_syntax(submission, reading)
        interface = judge_interface(await self._asked(submission.problem, tops), reading)
        notes = [syntax.reason] if syntax.reason else []
        if interface.differences:
            notes.append(f"interface: {', '.join(interface.differences)}")
        grading = Grading(
            format=submission.format,
            syntax=syntax.share,
            interface=interface.share,
            violations=list(submission.violations),
        )
        return grading, "; ".join(notes)

    async def _asked(self, problem: Problem, tops: Mapping[str, Sequence[str]]) -> list[Demand]:
        digest = problem.digest
        if digest not in self._demands:
            self._demands[digest] = await demands(problem, tops, self._frontend)
        return self._demands[digest]

    async def _run(self, submission: Submission, services: Sequence[Service], timeout: float) -> HarnessRun:
        if self._provider is None:
            self._provider = DockerSandboxes()
        return await run_harness(
            submission, services, self._provider, self._images, timeout=timeout, defences=self._defences
        )


async def retrying(work: Callable[[], Awaitable[T]]) -> T:
    """Do work that the machine may fail at; try again, ever later, before its `SandboxError` is raised."""
    retries = -1
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(SandboxError),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT),
            reraise=True,
        ):
            with attempt:
                retries += 1
                return await work()
    except SandboxError as error:
        error.retries = max(error.retries, retries)
        raise
    raise AssertionError("unreachable")


def score_files(
    problem: Problem,
    files: Mapping[str, str | bytes],
    *,
    weights: RewardWeights | None = None,
    cache: ScoreCache | str | os.PathLike[str] | None = None,
    timeout: float = TIME_LIMIT,
) -> Score:
    """Grade files, for scripts: `Scorer.score` with a scorer of its own. See there for arguments and errors."""

    async def once() -> Score:
        async with Scorer(weights=weights, cache=cache) as scorer:
            return await scorer.score(problem, files, timeout)

    return asyncio.run(once())
