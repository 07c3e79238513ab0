"""Grades files into a `Score`, and determines before any episode which problems can be scored here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..errors import ProblemError, UsageError
from ..metrics import CACHED, GRADING_OOMS, GRADING_TIMEOUTS, GRADINGS, VIOLATIONS
from ..problems.model import Problem
from ..problems.validation import data_faults, missing_here
from ..retries import Retries, retrying
from ..sandboxes import SandboxProvider, WaitingSandboxes
from ..sandboxes.choice import make_provider
from .cache import ScoreCache
from .compose import HarnessImages, Service, read_services
from .frontend import Frontend, frontend_version
from .grading import Grading, judge_run
from .harness import (
    TIME_LIMIT,
    Defences,
    HarnessRun,
    run_harness,
    scoring_limits,
    scoring_sandbox,
    source_paths,
    top_modules,
)
from .judging import Judge
from .options import GradingOptions, HarnessOptions
from .outcomes import account
from .score import RewardWeights, Score
from .static_stages import Build, Demand, demands, judge_interface, judge_syntax, readable
from .submission import SubmittedFiles, is_given, sift
from .texts import grade_text, text_score
from .trials import with_trials

_MOST_PROBLEMS = 4096
"""Maximum problems whose digests a scorer remembers."""


class Scorer(contextlib.AbstractAsyncContextManager["Scorer"]):
    """Grades files by the hidden tests of a problem.

    An async context manager that can grade any number of submissions at once. Faults of a design are in the `Score`;
    machine faults raise `SandboxError` after retries.

    Args:
        provider: Creates sandboxes; None for a new one of the chosen kind, which `close` closes.
        weights: Weights of the stages; None for the default.
        cache: Stores gradings; None for no cache, a path for a folder.
        defences: For tests of the defences only.
        waiting: Number of unused sandboxes that are kept ready, each for one submission; useful up to the number of
            simultaneous gradings. In each, a Python process has imported pytest. 0 starts each sandbox on demand.
        judge: Rates the texts of categories 9 and 10; None if there are no such problems.
        harness: Images and variables for commercial simulators; None for none.
        attempts: Maximum attempts per grading if the machine fails; None for `retries.GRADING`. Use 1 if the caller
            retries elsewhere.

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
        waiting: int = 0,
        judge: Judge | None = None,
        harness: HarnessOptions | None = None,
        attempts: int | None = None,
    ) -> None:
        self.weights = weights or RewardWeights()
        self._provider, self._owns_provider = provider, provider is None
        self._cache = cache if isinstance(cache, ScoreCache) or cache is None else ScoreCache(cache)
        self._defences = defences or Defences()
        self._harness = harness or HarnessOptions()
        self._frontend, self._images = Frontend(), HarnessImages(options=self._harness)
        self._demands: dict[str, list[Demand]] = {}
        self._waiting, self._judge, self._attempts = waiting, judge, attempts
        self._pool: WaitingSandboxes | None = None
        self._closed = False
        self._digests: dict[int, tuple[Problem, str]] = {}

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what the scorer started. A provider passed to the scorer stays open."""
        self._closed = True
        await self._frontend.close()
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._owns_provider and self._provider is not None:
            await self._provider.close()
            self._provider = None

    async def score(
        self,
        problem: Problem,
        files: Mapping[str, str | bytes],
        timeout: float = TIME_LIMIT,
        *,
        seed: int | None = None,
    ) -> Score:
        """Grade files.

        Args:
            problem: The problem, with its hidden tests.
            files: The agent's files, by path relative to the work folder.
            timeout: Seconds for each service of the harness.
            seed: For the tests' random stimuli, unless their harness sets one; None for the problem's own.

        Raises:
            ProblemError: The problem has no tests that can be run here, or needs a judge.
            SandboxError: The machine or the judge failed, also in all retries, which its `retries` counts.
        """
        begun = time.monotonic()
        if problem.asks_text:
            rated, cached = await grade_text(problem, files, weights=self.weights, judge=self._judge, cache=self._cache)
            CACHED.inc(cached)
            return text_score(rated, self.weights, seconds=time.monotonic() - begun, cached=cached)
        submission = sift(problem, files, defended=self._defences.files)
        retries = Retries(attempts=self._attempts)

        def score(grading: Grading, cached: bool = False) -> Score:
            seconds = time.monotonic() - begun
            return grading.score(self.weights, submission, seconds=seconds, retries=retries.count, cached=cached)

        # A grading in the cache proves that the problem can be scored, so its harness need not be read again.
        # No digest covers the caller's own images and licences, so their gradings are not cached.
        foreign = bool(self._harness.images) and any(service.image for service in read_services(problem, self._harness))
        cache = self._cache if self.weights.simulate and not foreign else None
        key = await self._key(submission, timeout, seed, retries) if cache else ""
        if cache and (known := cache.get(key)) is not None:
            CACHED.inc()
            return score(known, cached=True)
        grading = await self._grade(submission, timeout, seed, retries)
        GRADINGS.observe(time.monotonic() - begun)
        VIOLATIONS.inc(bool(grading.violations))
        if cache and grading.repeatable:
            cache.put(key, grading)
        return score(grading)

    async def _key(self, submission: SubmittedFiles, timeout: float, seed: int | None, retries: Retries) -> str:
        parts = {
            "problem": self._digest(submission.problem),
            "files": submission.digest,
            "image": await retrying(lambda: self._images.digest(self._sandboxes()), retries),
            "timeout": timeout,
            "limits": scoring_limits(),
            "frontend": frontend_version(),
            "defences": vars(self._defences),
        }
        if seed is not None:
            parts["seed"] = seed
        if missing := await retrying(lambda: self._sandboxes().missing_limits(), retries):
            parts["missing_limits"] = sorted(missing)
        return ScoreCache.key(parts)

    def _digest(self, problem: Problem) -> str:
        """The problem's digest, computed once per object; the cache holds the object, so that its id is not reused."""
        if id(problem) not in self._digests:
            if len(self._digests) >= _MOST_PROBLEMS:
                self._digests.clear()
            self._digests[id(problem)] = (problem, problem.digest)
        return self._digests[id(problem)][1]

    async def _grade(self, submission: SubmittedFiles, timeout: float, seed: int | None, retries: Retries) -> Grading:
        services = read_services(submission.problem, self._harness)
        if submission.fault:
            return Grading(reason=submission.fault, violations=list(submission.violations))
        expected = Build.of(submission, source_paths(services))
        if not self.weights.simulate:
            static = await retrying(lambda: self._static(submission, services, expected), retries)
            reason = "; ".join(part for part in ("the hidden tests were not run", static.reason) if part)
            return static.model_copy(update={"reason": reason})

        async def run() -> tuple[HarnessRun, bool]:
            sandboxes, images, network = self._sandboxes(), self._images, self._harness.network
            async with sandboxes.grading():
                tried, late = await with_trials(submission, sandboxes)
                run_all = partial(run_harness, timeout=timeout, defences=self._defences, seed=seed, network=network)
                return await run_all(tried, services, sandboxes, images), late

        running = asyncio.ensure_future(retrying(run, retries))
        try:
            static = await retrying(lambda: self._static(submission, services, expected), retries)
        except BaseException:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)  # which closes its sandbox
            raise
        ran, late = await running
        GRADING_TIMEOUTS.inc(any(service["code"] is None for service in ran.services))
        GRADING_OOMS.inc(ran.memory.out)
        accounts = [account(service["messages"]) for service in ran.services]
        builds = [build for found in accounts for build in found.builds]
        if builds:
            sources, folders, defines = (
                list(dict.fromkeys(word for build in builds for word in build[part]))
                for part in ("sources", "folders", "defines")
            )
            seen = Build.of(submission, sources, folders, defines)
            good = sources if all(ok for found in accounts for ok in found.compiled) else []
            if seen != expected or (good and static.syntax < 1.0):
                static = await retrying(lambda: self._static(submission, services, seen, good), retries)
        grading = judge_run(static, submission, ran, self._defences)
        grading = grading.model_copy(update={"repeatable": False}) if late else grading
        return self._without_secrets(grading) if any(service.image for service in services) else grading

    def _without_secrets(self, grading: Grading) -> Grading:
        """A grading without the values of the caller's variables, which a test may print."""
        hide = self._harness.hide
        tests = [test.model_copy(update={"name": hide(test.name)}) for test in grading.tests]
        lists = {name: [hide(text) for text in getattr(grading, name)] for name in ("violations", "notes")}
        return grading.model_copy(update={"reason": hide(grading.reason), "tests": tests, **lists})

    async def _static(
        self, submission: SubmittedFiles, services: Sequence[Service], build: Build, compiled: Sequence[str] = ()
    ) -> Grading:
        tops = top_modules(services)
        files = await asyncio.to_thread(readable, submission.tree)
        written = (pair for pair in submission.files.items() if not is_given(submission.problem, *pair))
        own = sum(len(content) for path, content in written if path in files)
        reading = await self._frontend.read(
            files, build.sources, list(tops), own, folders=build.folders, defines=build.defines
        )
        syntax, complaint = judge_syntax(submission, reading, compiled)
        interface, differences = judge_interface(await self._asked(submission.problem, tops), reading)
        ports = f"interface: {', '.join(differences)}" if differences else ""
        return Grading(
            format=submission.format,
            syntax=syntax,
            interface=interface,
            violations=list(submission.violations),
            reason="; ".join(part for part in (complaint, ports) if part),
            repeatable=reading.repeatable,
        )

    async def _asked(self, problem: Problem, tops: Mapping[str, Sequence[str]]) -> list[Demand]:
        digest = self._digest(problem)
        if digest not in self._demands:
            self._demands[digest] = await demands(problem, tops, self._frontend)
        return self._demands[digest]

    def _sandboxes(self) -> SandboxProvider:
        if self._closed:
            raise UsageError("this Scorer is closed; create a new one")
        if self._provider is None:
            self._provider = make_provider()
        if self._waiting > 0 and self._pool is None:
            self._pool = WaitingSandboxes(self._provider, size=self._waiting)
        return self._pool or self._provider

    async def prepare(self, problem: Problem) -> None:
        """Start the waiting sandboxes for a problem's gradings, and return when they are ready.

        Does nothing if `waiting` is 0. Without this call, they start with the first grading.

        Raises:
            ProblemError: As in `score`.
            SandboxError: No sandbox can be started.
        """
        sandboxes = self._sandboxes()
        if problem.asks_text:
            return
        services = read_services(problem, self._harness)
        images = {
            await self._images.image(problem, service, sandboxes) for service in services if service.image is None
        }
        for image in images:
            await sandboxes.prepare(scoring_sandbox(image, checkout=bool(problem.checkout)))


def score_files(
    problem: Problem,
    files: Mapping[str, str | bytes],
    *,
    weights: RewardWeights | None = None,
    cache: ScoreCache | str | os.PathLike[str] | None = None,
    timeout: float = TIME_LIMIT,
) -> Score:
    """Grade files with a new `Scorer`, for scripts and notebooks. Arguments and errors are those of `Scorer.score`.
    In a notebook, this blocks the event loop until the end; for several gradings at once, await a `Scorer`.
    """

    async def once() -> Score:
        async with Scorer(weights=weights, cache=cache) as scorer:
            return await scorer.score(problem, files, timeout)

    if asyncio._get_running_loop() is None:
        return asyncio.run(once())
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # as in a notebook
    loop, thread = runner.get_loop(), ThreadPoolExecutor(1)
    task = loop.create_task(once())
    try:
        return thread.submit(loop.run_until_complete, task).result()
    finally:
        loop.call_soon_threadsafe(task.cancel)  # for Ctrl-C
        thread.submit(runner.close)  # runs after the task
        thread.shutdown(wait=False)


NO_TEXTS = "its answer is text; only run, eval, and the Gymnasium and tinker environments play such problems"


def why_unscorable(problem: Problem, options: GradingOptions | None = None, *, texts: bool = True) -> str | None:
    """Why a problem cannot be scored here, with these options; None if it can.

    Args:
        options: The available judge and images; None for none.
        texts: Whether text answers reach the grader.
    """
    options = options or GradingOptions()
    if problem.asks_text and not texts:
        return NO_TEXTS
    reason = None
    if problem.asks_text:
        reason = problem.unscorable if options.judge is not None else missing_here(problem)
    else:
        try:
            read_services(problem, options.harness)
        except ProblemError as error:
            reason = problem.unscorable or (f"{error.field}: {error.message}" if error.field else error.message)
    return reason or next(data_faults(problem), None)


def scorable(
    problems: Sequence[Problem], source: object, options: GradingOptions | None = None, *, texts: bool = True
) -> tuple[list[Problem], list[tuple[Problem, str]]]:
    """Split the problems selected from `source` into those that can be scored here, and the others with the reason
    from `why_unscorable`.

    Raises:
        UsageError: None of them can be scored here, or no problem was selected.
    """
    reasons = [(problem, why_unscorable(problem, options, texts=texts)) for problem in problems]
    if kept := [problem for problem, reason in reasons if reason is None]:
        return kept, [(problem, reason) for problem, reason in reasons if reason is not None]
    if not reasons:
        raise UsageError(f"no problem of {source} matches the requested ids, categories and difficulties")
    examples = {reason: problem.id for problem, reason in reasons}
    several = "; ".join(f"{name}: {reason}" for reason, name in list(examples.items())[:3])
    raise UsageError(f"no selected problem of {source} can be scored here: {several}")


def require_scorable(problem: Problem, options: GradingOptions | None = None, *, texts: bool = True) -> Problem:
    """Return the problem, or raise `UsageError` if it cannot be scored here."""
    reason = why_unscorable(problem, options, texts=texts)
    if reason is not None:
        raise UsageError(f"{'this' if problem.id in reason else problem.id} cannot be scored here: {reason}")
    return problem
