"""Run a recorded episode again and compare it with the record.

The recorded completions are played in a fresh sandbox under the recorded rules and prompt. For each turn, the parsed
action, exit codes, submissions and observation are compared with the record, and at the end the score; values that
`volatile` lists are ignored. Submissions are graded again.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ..episodes.episode import Episode, EpisodeConfig, Grader, StopReason, Turn
from ..episodes.recording import command_record
from ..episodes.submissions import COMMAND
from ..errors import TranscriptError, UsageError
from ..policies import Completion
from ..problems import Problem
from ..renderers import Renderer, get_renderer
from ..sandboxes import Sandbox, SandboxProvider
from ..scoring import RewardWeights
from ..transcripts import CommandRecord, Transcript, TurnRecord
from .volatile import mask_volatile

Data = dict[str, Any]


@dataclass(frozen=True)
class Divergence:
    """The first difference between the record and the replay."""

    turn: int | None
    """1-based; None for the score."""
    what: str
    """``reading``, ``exit``, ``submission``, ``observation``, ``length`` or ``score``."""
    diff: str
    """A unified diff from the record to the replay, with placeholders for volatile values."""


@dataclass
class Replay:
    """The result of a replay."""

    path: Path
    problem_id: str
    recorded_turns: int
    """Turns in the record."""
    compared_turns: int = 0
    """Turns that were replayed and compared."""
    score_compared: bool = False
    """Whether a score was recorded and compared."""
    divergence: Divergence | None = None
    """The first difference; None if there is none."""
    notes: list[str] = field(default_factory=list)
    """Other conditions than in the recorded run, and missing parts of the record."""

    @property
    def identical(self) -> bool:
        """Whether everything that was compared is equal."""
        return self.divergence is None


def recorded_weights(transcript: Transcript) -> RewardWeights | None:
    """The reward weights of the recorded run; None if they were not recorded.

    Raises:
        TranscriptError: The recorded weights are invalid.
    """
    found = transcript.header.options.get("weights")
    if found is None:
        return None
    try:
        return RewardWeights.model_validate(found)
    except ValidationError as error:
        reason = " ".join(str(error).split())[:200]
        raise TranscriptError(f"{transcript.path}:1: the recorded weights cannot be used: {reason}") from error


async def replay(
    transcript: Transcript,
    problem: Problem,
    *,
    provider: SandboxProvider,
    grader: Grader,
    renderer: Renderer | None = None,
) -> Replay:
    """Run a recorded episode again and compare, up to the first difference.

    Args:
        transcript: The record.
        problem: The recorded episode's problem.
        provider: Creates the fresh sandbox.
        grader: Scores the files, like the recorded run's grader.
        renderer: The recorded dialect; it needs no vocabulary. None for the built-in one that the record names.

    Raises:
        UsageError: The transcript is of another problem, or names no built-in dialect.
        SandboxError: The machine failed.
    """
    async with _started(transcript, problem, provider, grader, renderer) as (episode, report):
        recorded, ignored = transcript.score, _ignored(transcript, grader)
        if recorded is not None and (why := _other_weights(transcript, grader)) is not None:
            report.notes.append(f"the recorded rewards were computed with {why}, so rewards are not compared")
        for record in transcript.turns:
            if episode.over:
                last = episode.turns[-1]
                now = f"the episode is over after turn {last.number}: {last.stop_reason}"
                report.divergence = Divergence(record.turn, "length", _diff(f"turn {record.turn} follows", now))
            else:
                await _step(episode, record, report, ignored)
            if report.divergence is not None:
                return report
        if recorded is None:
            return report
        score = episode.turns[-1].score if episode.turns else None
        if score is None:
            # The recorded episode was ended early after this turn, for example by a token budget.
            stop = transcript.end.stop_reason if transcript.end is not None else "max_tokens"
            score = await episode.finish(stop if stop in get_args(StopReason) else "max_tokens")  # type: ignore[arg-type]
        report.score_compared = True
        scores = _comparable(recorded.score, score.model_dump(mode="json"), ignored)
        before, after = (mask_volatile(_pretty(one)) for one in scores)
        if before != after:
            report.divergence = Divergence(None, "score", _diff(before, after))
        return report


@asynccontextmanager
async def replayed_to(
    transcript: Transcript,
    problem: Problem,
    turn: int,
    *,
    provider: SandboxProvider,
    grader: Grader,
    renderer: Renderer | None = None,
) -> AsyncIterator[tuple[Replay, Sandbox]]:
    """Replay up to a turn; gives the comparison so far and the sandbox in that state. See `replay`.

    Args:
        turn: 1-based; its own commands are not run. The number of turns plus one gives the state at the end.

    Raises:
        UsageError: The record has no such turn, or is of a single-turn episode.
    """
    if _rules(transcript, problem).workspace == "answer":
        raise UsageError(f"{transcript.path} is a single-turn episode, which has no shell to open")
    last = len(transcript.turns)
    if not 1 <= turn <= last + 1:
        raise UsageError(f"--to-turn {turn}: {transcript.path} has {last} turns; give 1 to {last + 1}")
    async with _started(transcript, problem, provider, grader, renderer) as (episode, report):
        rules, sandbox = episode.config, episode.sandbox
        for record in transcript.turns[: turn - 1]:
            if episode.over:
                break
            if record is not transcript.turns[-1] or transcript.end is None:
                await _step(episode, record, report, _ignored(transcript, grader))
                continue
            # The last turn would end the episode and grade the files; here only its commands are needed.
            for command in record.commands:
                if rules.harness_feedback and command.command.strip() == COMMAND:
                    continue  # a submission leaves nothing in the sandbox
                await sandbox.run(command.command, timeout=rules.command_timeout, max_output=rules.max_output)
        yield report, sandbox


@asynccontextmanager
async def _started(
    transcript: Transcript, problem: Problem, provider: SandboxProvider, grader: Grader, renderer: Renderer | None
) -> AsyncIterator[tuple[Episode, Replay]]:
    """A started episode with the recorded rules, prompt and seed; the report notes conditions that differ."""
    header, end, rules = transcript.header, transcript.end, _rules(transcript, problem)
    renderer = renderer or get_renderer(header.renderer)
    report = Replay(transcript.path, problem.id, len(transcript.turns))
    note = report.notes.append
    if problem.digest != header.problem_digest:
        note(
            f"problem {problem.id} has changed since the recording: its texts, files or hidden tests are not the same, "
            "so answers and score may differ"
        )
    if end is None:
        note(f"the file was cut off after turn {len(transcript.turns)}, for example by a crash; the rest is compared")
    elif end.error:
        note(f"the recorded episode ended with a machine fault and has no score: {end.error}")
    async with Episode(
        problem, provider=provider, grader=grader, renderer=renderer, config=rules, seed=header.seed
    ) as episode:
        await episode.start()
        recorded = header.image_digest
        now = getattr(episode.sandbox, "image_id", "") if rules.workspace == "shell" else ""
        if recorded and now and recorded != now:
            note(
                f"recorded on image {recorded[:19]}, replayed on {now[:19]}: tools of other versions may answer "
                "differently"
            )
        yield episode, report


def _rules(transcript: Transcript, problem: Problem) -> EpisodeConfig:
    """The recorded rules and prompt."""
    header = transcript.header
    if problem.id != header.problem_id:
        raise UsageError(f"{transcript.path} is an episode of {header.problem_id}, not of {problem.id}")
    try:
        return EpisodeConfig.from_record(header.options, system_prompt=header.system, user_prompt=header.user)
    except (TypeError, UsageError) as error:
        raise TranscriptError(f"{transcript.path}:1: the recorded rules cannot be used: {error}") from error


def _other_weights(transcript: Transcript, grader: Grader) -> str | None:
    """How the recorded reward weights differ from the grader's; None if they are equal."""
    recorded = recorded_weights(transcript)
    if recorded is None:
        return "weights that were not recorded"
    return "other weights" if recorded != getattr(grader, "weights", recorded) else None


def _ignored(transcript: Transcript, grader: Grader) -> set[str]:
    """The fields of scores that are not compared."""
    return {"seconds", "cached", "retries"} | ({"reward"} if _other_weights(transcript, grader) else set())


async def _step(episode: Episode, record: TurnRecord, report: Replay, ignored: set[str]) -> None:
    """Replay a recorded turn and compare it."""
    turn = await episode.step(Completion(record.completion, cut_off=record.cut_off, native=record.native))
    report.compared_turns += 1
    report.divergence = report.divergence or compare_turn(record, turn, ignored)


def compare_turn(record: TurnRecord, turn: Turn, ignored: set[str]) -> Divergence | None:
    """The first difference between a turn and its record, without the `ignored` fields of scores."""
    ran = zip(turn.action.commands, turn.results, turn.outputs, strict=True)
    before = _views(record.action, record.commands)
    after = _views(turn.action.kind, [command_record(*one) for one in ran])
    for one, other in zip(before["submission"], after["submission"], strict=False):
        one["score"], other["score"] = _comparable(one["score"], other["score"], ignored)
    read, reads = mask_volatile(record.observation), mask_volatile(turn.observation)
    for what in before:
        was, now = _pretty(before[what]), _pretty(after[what])
        if what == "submission":
            was, now = mask_volatile(was), mask_volatile(now)
        if was != now:
            shown = _diff(f"{was}\n{read}", f"{now}\n{reads}") if what == "exit" else _diff(was, now)
            return Divergence(record.turn, what, shown)
    return Divergence(record.turn, "observation", _diff(read, reads)) if read != reads else None


def _views(action: str, commands: Sequence[CommandRecord]) -> dict[str, Any]:
    """What is compared of a turn besides the observation, in this order."""
    ends = {"exit_code", "timed_out", "truncated_output", "restarted"}
    return {
        "reading": {"action": action, "commands": [command.command for command in commands]},
        "exit": [command.model_dump(include=ends) for command in commands],
        "submission": [command.submission.model_dump(mode="json") for command in commands if command.submission],
    }


def _comparable(was: Data, now: Data, ignored: set[str]) -> tuple[Data, Data]:
    """The fields that both scores have (versions measure different ones), without the ignored."""
    both = [name for name in was if name not in ignored and name in now]
    return {name: was[name] for name in both}, {name: now[name] for name in both}


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "replayed", lineterm="")
    return "\n".join(lines)
