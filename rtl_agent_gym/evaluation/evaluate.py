"""Play many episodes at once, and save each result when its episode ends.

::

    for every (sample, problem) without a result: Episode ── play ──► results.jsonl

A killed run loses only unfinished episodes. The same configuration with the same folder plays these, each with the
seed that it would have had, so the results are the same as without the interruption.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tenacity import stop_after_attempt

from ..engines.catalogue import renderer_for
from ..episodes.episode import Episode, EpisodeConfig, Grader
from ..episodes.prompt import episode_renderer, open_prompt
from ..episodes.rules import FunctionGrader, read_reward
from ..episodes.runtime import WAITING, Runtime, acquire
from ..errors import (
    DaemonError,
    ImageError,
    LimitReached,
    ModelError,
    RequestRefused,
    SandboxError,
    ServiceDown,
    UsageError,
    near_matches,
    writing,
)
from ..logs import LOGS, logging_as, logging_to
from ..policies import Closable, Inhabitant, ModelOptions, Policy, make_policy
from ..policies.judge import ChatJudge, NamedJudges
from ..problems import Problem, load_problems
from ..problems.compose import TEMPLATES
from ..problems.model import JUDGED
from ..problems.notes import Note, note_of
from ..renderers import Renderer, renderer_named
from ..retries import EPISODE, START
from ..sandboxes import SandboxProvider
from ..sandboxes.admission import queueing_as, set_limits
from ..sandboxes.choice import set_kind
from ..scoring import Scorer
from ..scoring.cache import default_cache_dir
from ..scoring.compose import HarnessImages, read_services
from ..scoring.harness import scoring_sandbox
from ..scoring.judging import rate
from ..scoring.scorer import scorable
from .config import EvaluationConfig, EvaluationRecord, default_folder, make_record
from .fairness import Unstated, find_unstated
from .outcome import EpisodeResult, Summary, episode_seed, summarise
from .play import Observer, play, rules_for
from .results import ResultsFile, read_spending, write_official
from .spending import STOPPED, Ledger, Spent, Tally

FAULTS_IN_A_ROW = 8
"""Consecutive episodes with a machine fault after which an evaluation gives up."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation."""

    record: EvaluationRecord
    """Its configuration. `samples` is the highest number that was ever requested for the folder."""
    results: list[EpisodeResult]
    folder: Path | None
    """The folder of the results; None if they were not saved."""
    spent: Spent | None = None
    """What was spent on the model in total, including earlier runs in the folder."""
    stopped: str = ""
    """Which limit stopped it before every episode had a verdict; empty if none did."""
    notes: Mapping[str, Note] = field(default_factory=dict)
    """What is known about the problems that are rows of CVDP, by id."""

    @cached_property
    def summary(self) -> Summary:
        """The summary of the results."""
        episodes = self.record.samples * len(self.record.digests)
        return summarise(self.results, episodes=episodes, spent=self.spent)

    @cached_property
    def unstated(self) -> list[Unstated]:
        """The failed episodes that an unstated demand explains."""
        return find_unstated(self.results, self.notes, self.folder)

    def as_json(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        return self.summary.as_json() | {"unstated": [asdict(episode) for episode in self.unstated]}


async def evaluate(
    config: EvaluationConfig,
    policy: Policy | None = None,
    *,
    observer: Observer | None = None,
    provider: SandboxProvider | None = None,
    grader: Grader | None = None,
) -> Evaluation:
    """Play the episodes of an evaluation that have no verdict in its folder yet.

    Args:
        config: What to play, and how.
        policy: Plays the episodes; None for the policy that `config` names, which is closed at the end.
        observer: Its functions are called as episodes proceed.
        provider: Creates sandboxes; None for the event loop's own.
        grader: Scores the files; None for a `Scorer` with `EvaluationConfig.reward`, closed at the end.

    Returns:
        All results, including those of earlier runs in the same folder. Also writes ``summary.json`` and the official
        runner's files into the folder.

    Raises:
        UsageError: No problem can be scored, the policy cannot play one of them, a prompt does not fit its limit, or
            the folder contains something else. Raised before any episode is played.
        SandboxError: The machine fails repeatedly. Finished results are on disk.
    """
    observer = observer or Observer()
    set_kind(config.sandbox)
    if config.sandbox_limits:
        set_limits(config.sandbox_limits)
    problems = scorable_problems(config, observer)
    async with AsyncExitStack() as owned:
        player = policy
        if player is None:
            player = make_policy(config.policy, _within(config.model, config.episode))
            if isinstance(player, Closable):
                owned.push_async_callback(player.close)
        renderer = config.renderer
        if isinstance(renderer, str):
            if base_model := getattr(player, "base_model", ""):
                renderer = renderer_for(base_model, renderer, model_option="policy", option="renderer")
            renderer = renderer_named(renderer, getattr(player, "tokenizer", None))
        prices = getattr(player, "prices", None)
        if config.max_cost is not None and prices is None:
            raise UsageError(
                f"--max-cost: the price of {player.name} is unknown; give --price-input and --price-output, in US "
                "dollars per million tokens"
                if hasattr(player, "prices")
                else f"--max-cost: {player.name} has no price, as only chat: policies do; use --max-tokens-total"
            )
        record = make_record(config, problems, player, renderer, named=policy is None)
        rules, inside = rules_for(player, config.episode), False
        for problem in problems:  # raises for a problem that it cannot play
            made = player.player(problem, episode_renderer(config.episode, renderer), 0)
            inside = inside or isinstance(made, Inhabitant)
            if rules.prompt_limit is not None:
                await asyncio.to_thread(open_prompt, problem, rules, renderer)
        if inside and rules.harness_feedback:
            raise UsageError(f"harness_feedback: {player.name} works inside the sandbox, so it cannot submit; use 0")
        file: ResultsFile | None = None
        if config.keep:
            file = owned.enter_context(
                ResultsFile(config.folder or default_folder(record), record, resume=config.resume)
            )
            owned.enter_context(logging_to(file.folder / LOGS))
            rules = rules.with_options(transcript_dir=file.folder / "transcripts")
        runtime: Runtime | None = None
        if provider is None:
            lease = await owned.enter_async_context(acquire(sandbox=config.episode.sandbox.kind))
            runtime = lease.runtime
            provider = runtime.agents
        if inside and not getattr(provider, "can_spawn", True):
            raise UsageError(f"{player.name} works inside the sandbox, which the sandboxes of a cluster do not support")
        if grader is None:
            grader = await make_grader(config, provider, runtime, len(problems), owned)
        unpooled = provider if runtime is None else runtime.provider
        done = file.done if file else {}
        run = _Run(config, rules, problems, player, renderer, provider, unpooled, grader, observer, file, done)
        spent = read_spending(file.folder, prices) if file else Spent()
        run.ledger = Ledger(config.max_cost, config.max_tokens_total, spent)
        with queueing_as(f"evaluation {id(run)}"):
            await run.play()
        return _conclude(run, record)


def _within(model: ModelOptions, rules: EpisodeConfig) -> ModelOptions:
    """The options of a policy that is made for episodes with these rules."""
    return model.with_options(
        tools=model.tools and rules.workspace != "answer",
        max_tokens=min(model.max_tokens, rules.max_tokens or model.max_tokens),
        max_context=min(model.max_context, rules.max_trajectory_tokens or model.max_context),
    )


def _conclude(run: _Run, record: EvaluationRecord) -> Evaluation:
    notes = {problem.id: note for problem in run.problems if (note := note_of(problem)) is not None}
    if (file := run.file) is None:
        return Evaluation(record, list(run.done.values()), None, run.ledger.total, run.stopped, notes)
    found = [result for result in run.done.values() if result.problem_id in file.record.digests]
    evaluation = Evaluation(file.record, found, file.folder, run.ledger.total, run.stopped, notes)
    with writing("the results", file.folder):
        summary = json.dumps(evaluation.as_json(), indent=2) + "\n"
        (file.folder / "summary.json").write_text(summary, encoding="utf-8")
        write_official(file.folder, found, file.record)
    return evaluation


@dataclass
class _Run:
    config: EvaluationConfig
    rules: EpisodeConfig
    problems: list[Problem]
    policy: Policy
    renderer: Renderer
    provider: SandboxProvider
    unpooled: SandboxProvider
    """Makes the same sandboxes, without keeping any ready."""
    grader: Grader
    observer: Observer
    file: ResultsFile | None
    done: dict[tuple[str, int], EpisodeResult] = field(default_factory=dict)
    """The results so far, by `EpisodeResult.key`; those of `file`, if there is one."""
    faults_in_a_row: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    stopped: str = ""
    """Which limit is reached, so that no further request is made; empty if none is."""
    last_result: float | None = None
    """When an episode last got a result, by the monotonic clock."""
    away_since: float | None = None
    """When the latest outage of the daemon or the model since then was first noticed; None if there was none."""
    outages: int = 0
    """The number of outages that began since then."""

    async def play(self) -> None:
        # First sample 0 of every problem, then sample 1, and so on.
        wanted = [(problem, sample) for sample in range(self.config.samples) for problem in self.problems]
        known = [self.done.get((problem.id, sample)) for problem, sample in wanted]
        kept = [result for result in known if result is not None and result.score is not None]
        self.observer.started(self.file.folder if self.file else None, len(wanted), kept)
        done = {result.key for result in kept}
        todo = [(problem, sample) for problem, sample in wanted if (problem.id, sample) not in done]
        await require_judge(self.config, (problem for problem, _ in todo))
        await require_images(self.config, {problem.id: problem for problem, _ in todo}.values(), self.unpooled)
        queue = iter(todo)
        workers = [asyncio.ensure_future(self._work(queue)) for _ in range(self.config.concurrency)]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)  # so that their sandboxes are closed
            raise
        if self.stopped:  # pending answers have arrived since
            self.stopped = self.ledger.reached or self.stopped

    async def _work(self, todo: Iterator[tuple[Problem, int]]) -> None:
        """Play episodes until all are taken. All workers share the iterator, so each episode is taken once."""
        for problem, sample in todo:
            with logging_as(f"{problem.id}/{sample}"):
                result = await self._unless_stopped(problem, sample)
                if result is None:
                    return
                verdict = "passed" if result.score and result.score.passed else "not passed"
                logger.info("ended, %s", f"a machine fault: {result.fault}" if result.fault else verdict)
            if self.file is not None:
                result = await self.file.append_when_there_is_room(result)
            self.done[result.key] = result
            self.observer.finished(result)

    async def _unless_stopped(self, problem: Problem, sample: int) -> EpisodeResult | None:
        """The result of an episode; None if a limit stops it. What it spent is saved, however the run ends."""
        tally = Tally(self.ledger)
        try:
            self.ledger.check()
            return await self._episode(problem, sample, tally)
        except BaseException as error:
            if self.file is not None and tally.spent != Spent():
                seed = episode_seed(self.config.seed, problem.id, sample)
                line = EpisodeResult.of(problem, seed, sample=sample, stop_reason=STOPPED, spent=tally.spent)
                if isinstance(error, LimitReached):
                    await self.file.append_when_there_is_room(line)
                else:
                    with contextlib.suppress(SandboxError, UsageError):  # `error` is raised instead
                        self.file.append(line)
            if not isinstance(error, LimitReached):
                raise
            self.stopped = str(error)
            return None

    async def _episode(self, problem: Problem, sample: int, tally: Tally) -> EpisodeResult:
        seed = episode_seed(self.config.seed, problem.id, sample)
        self.observer.begun(problem, sample)
        faults = counted = 0
        while counted < self.config.attempts:
            begun = time.monotonic()
            episode = Episode(
                problem,
                provider=self.provider,
                grader=self.grader,
                renderer=self.renderer,
                config=self.rules,
                seed=seed,
                on_output=self.observer.output,
            )
            try:
                result = await play(episode, self.policy, self.observer, seed=seed, tally=tally)
            except ServiceDown:
                raise  # no other episode would get an answer either
            except SandboxError as error:
                fault = error
                logger.info("machine fault: %s: %s", type(error).__name__, error)
                self.observer.faulted(problem, sample, error)
                faults += 1
                counted += not self._is_outage(error, begun)
                if counted < self.config.attempts:
                    await asyncio.sleep(EPISODE._replace(longest=self.config.longest_pause).pause(faults))
            else:
                self.faults_in_a_row, self.last_result, self.away_since, self.outages = 0, time.monotonic(), None, 0
                path = result.transcript
                if path is not None and self.file is not None:
                    path = str(Path(path).relative_to(self.file.folder))
                return result.model_copy(update={"sample": sample, "retries": faults, "transcript": path})
        self._count_fault(fault)
        reason = f"{type(fault).__name__}: {fault}"
        return EpisodeResult.of(problem, seed, sample=sample, retries=faults - 1, fault=reason, spent=tally.spent)

    def _is_outage(self, error: SandboxError, begun: float) -> bool:
        """Whether an attempt that began at `begun` failed because of an outage, so that it does not count against its
        episode: the daemon or the model does not answer, and no episode has got a result since.

        A fault that ends an attempt longer than an outage may last starts a new outage. The number of outages is
        limited, as a model may fail late in every attempt.
        """
        if not isinstance(error, (DaemonError, ModelError)) or isinstance(error, RequestRefused):
            return False
        now, longest = time.monotonic(), self.config.longest_outage
        if self.away_since is None or (
            min(now - begun, now - self.away_since) > longest and self.outages < self.config.attempts
        ):
            self.away_since, self.outages = now, self.outages + 1
        return self.last_result is not None and self.last_result < begun and now - self.away_since < longest

    def _count_fault(self, error: SandboxError) -> None:
        self.faults_in_a_row += 1
        if self.faults_in_a_row >= FAULTS_IN_A_ROW:
            message = f"{FAULTS_IN_A_ROW} episodes in a row failed by a machine fault, the last with: {error}"
            if self.file is not None:
                message += f". Finished results are in {self.file.folder}; the same command continues from there"
            raise type(error)(message) from error


# ---- what is needed before the first episode: the problems, and their graders


def scorable_problems(config: EvaluationConfig, observer: Observer) -> list[Problem]:
    """The problems of an evaluation. Raises `UsageError` if none can be scored here, and as `load_problems`."""
    found, names = config.problems, ("ids", "categories", "difficulties")
    source = str(found) if isinstance(found, (str, Path)) else "the given list"
    found = load_problems(found, rows=config.rows, **{name: getattr(config, name) or None for name in names})
    problems, left_out = scorable(found, source, config.episode.grading)
    for problem, reason in left_out:
        observer.left_out(problem, reason)
    for name, _ in config.episode.grading.harness.images:
        if not any(name in text for problem in problems for text in problem.harness.values()):
            raise UsageError(
                f"--harness-image {name}: the harness of no selected problem names this image "
                f"({near_matches(name, TEMPLATES)})"
            )
    return problems


async def require_judge(config: EvaluationConfig, problems: Iterable[Problem]) -> None:
    """Test the judge that the options name with one rating, if any of the problems needs it.

    Raises:
        UsageError: The service will never answer, such as for a wrong key or model, or refuses even this question.
        ModelError: The service does not answer.
        HarnessError: The answer contains no rating.
    """
    name, (weights, _) = config.episode.grading.judge, read_reward(config.reward)
    rated = weights is None or weights.simulate
    judged = (problem for problem in problems if problem.asks_text and problem.category in JUDGED)
    if not isinstance(name, str) or not rated or next(judged, None) is None:
        return
    judge = ChatJudge(name, strict=True)
    try:
        answer = "It has 8 bits."
        await rate(judge, "How many bits has an 8-bit register?", answer, answer)  # every judge can rate it
    finally:
        await judge.close()


async def require_images(config: EvaluationConfig, problems: Iterable[Problem], provider: SandboxProvider) -> None:
    """Build the images that harnesses base on the caller's, and test that a sandbox starts in each of both kinds.

    Raises:
        SandboxError: A sandbox does not start within `EpisodeConfig.start_attempts`; an `ImageError`, at once, if there
            is no such image or its build fails.
    """
    starting = START.retrying(
        lambda error: isinstance(error, SandboxError) and not isinstance(error, ImageError),
        stop=stop_after_attempt(config.episode.start_attempts),
    )
    options, (weights, _) = config.episode.grading.harness, read_reward(config.reward)
    images, started = HarnessImages(options=options), set[str]()
    for problem in problems if options.images and (weights is None or weights.simulate) else ():
        for service in [] if problem.asks_text else read_services(problem, options):
            if service.image is None or (image := await images.image(problem, service, provider)) in started:
                continue
            started.add(image)
            checkout = bool(problem.checkout)
            spec = scoring_sandbox(image, checkout=checkout, foreign=True, network=options.network)
            async for attempt in starting:
                with attempt:
                    await (await provider.create(spec)).close()


async def make_grader(
    config: EvaluationConfig, provider: SandboxProvider, runtime: Runtime | None, problems: int, owned: AsyncExitStack
) -> Grader:
    """The runtime's grader; a new one for a provider that the caller gave."""
    weights, function = read_reward(config.reward)
    gradings = config.samples * problems * (1 + config.episode.harness_feedback)
    waiting = min(WAITING, config.concurrency, gradings - 1)  # for the first grading, none is waiting
    cache, options = default_cache_dir() if config.cache else None, config.episode.grading
    scorer: Grader
    if runtime is not None:
        scorer = runtime.scorer(weights, cache, waiting=waiting, options=options)
    else:
        judges = NamedJudges()
        owned.push_async_callback(judges.close)
        judge = judges.judge_of(options)
        made = Scorer(provider, weights=weights, cache=cache, waiting=waiting, judge=judge, harness=options.harness)
        scorer = await owned.enter_async_context(made)
    return scorer if function is None else FunctionGrader(scorer, function)
