"""Run a recorded episode again and compare it with the record.

The recorded completions are played in a fresh sandbox under the recorded rules and prompt. For each turn, the parsed
action, exit codes, submissions and observation are compared with the record, and at the end the score; values that
`volatile` lists are ignored. Submissions are graded again.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ..episodes.episode import Episode, EpisodeConfig, Grader, StopReason, Turn
from ..episodes.recording import submission_record
from ..episodes.submissions import COMMAND
from ..errors import TranscriptError, UsageError
from ..policies import Completion
from ..problems import Problem
from ..renderers import Renderer
from ..sandboxes import CommandResult, Sandbox, SandboxProvider
from ..scoring import RewardWeights
from ..scoring.score import Score
from ..transcripts import CommandRecord, Transcript, TurnRecord
from .volatile import mask_volatile


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
    renderer: Renderer,
) -> Replay:
    """Run a recorded episode again and compare, up to the first difference.

    Args:
        transcript: The record.
        problem: The recorded episode's problem.
        provider: Creates the fresh sandbox.
        grader: Scores the files, like the recorded run's grader.
        renderer: The recorded dialect; it needs no vocabulary.

    Raises:
        UsageError: The transcript is of another problem.
        SandboxError: The machine failed.
    """
    async with _started(transcript, problem, provider, grader, renderer) as (episode, report):
        rewards = _rewards_compare(report, transcript, grader)
        for record in transcript.turns:
            if episode.over:
                report.divergence = _ended_early(record.turn, episode.turns[-1])
            else:
                await _step(episode, record, report)
            if report.divergence is not None:
                return report
        if (recorded := transcript.score) is None:
            return report
        score = episode.turns[-1].score if episode.turns else None
        if score is None:
            # The recorded episode was ended early after this turn, for example by a token budget.
            stop = transcript.end.stop_reason if transcript.end is not None else "max_tokens"
            score = await episode.finish(stop if stop in get_args(StopReason) else "max_tokens")  # type: ignore[arg-type]
        report.score_compared = True
        report.divergence = compare_scores(recorded.score, score, rewards=rewards)
        return report


@asynccontextmanager
async def replayed_to(
    transcript: Transcript,
    problem: Problem,
    turn: int,
    *,
    provider: SandboxProvider,
    grader: Grader,
    renderer: Renderer,
) -> AsyncIterator[tuple[Replay, Sandbox]]:
    """Replay up to a turn; gives the comparison so far and the sandbox in that state. See `replay`.

    Args:
        turn: 1-based; its own commands are not run. The number of turns plus one gives the state at the end.

    Raises:
        UsageError: The record has no such turn, or is of a single-turn episode.
    """
    if _rules(transcript, problem).workspace == "answer":
        raise UsageError(f"{transcript.path} is a single-turn episode, which has no shell to hand over")
    last = len(transcript.turns)
    if not 1 <= turn <= last + 1:
        raise UsageError(f"--to-turn {turn}: {transcript.path} has {last} turns; give 1 to {last + 1}")
    async with _started(transcript, problem, provider, grader, renderer) as (episode, report):
        sandbox = episode.sandbox
        for record in transcript.turns[: turn - 1]:
            if episode.over:
                break
            if record is transcript.turns[-1] and transcript.end is not None:
                # The last turn would end the episode and grade the files; here only its commands are needed.
                await _run_commands(sandbox, record, episode.config)
                break
            await _step(episode, record, report)
        yield report, sandbox


@asynccontextmanager
async def _started(
    transcript: Transcript, problem: Problem, provider: SandboxProvider, grader: Grader, renderer: Renderer
) -> AsyncIterator[tuple[Episode, Replay]]:
    """A started episode with the recorded rules, prompt and seed; the report notes conditions that differ."""
    header, end, rules = transcript.header, transcript.end, _rules(transcript, problem)
    report = Replay(transcript.path, problem.id, len(transcript.turns))
    if problem.digest != header.problem_digest:
        report.notes.append(
            f"problem {problem.id} has changed since the recording: its texts, files or hidden tests are not the same, "
            "so answers and score may differ"
        )
    if end is None:
        report.notes.append(
            f"the file was cut off after turn {len(transcript.turns)}, for example by a crash; the rest is compared"
        )
    elif end.error:
        report.notes.append(f"the recorded episode ended with a machine fault and has no score: {end.error}")
    async with Episode(
        problem, provider=provider, grader=grader, renderer=renderer, config=rules, seed=header.seed
    ) as episode:
        await episode.start()
        recorded, now = header.image_digest, ""
        if rules.workspace == "shell":
            now = getattr(episode.sandbox, "image_id", "")
        if recorded and now and recorded != now:
            report.notes.append(
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


def _rewards_compare(report: Replay, transcript: Transcript, grader: Grader) -> bool:
    """Whether the grader uses the recorded weights. If not, or if they are unknown, the report gets a note."""
    recorded = recorded_weights(transcript)
    if transcript.score is None or (recorded is not None and recorded == getattr(grader, "weights", recorded)):
        return True
    why = "other weights" if recorded is not None else "weights that were not recorded"
    report.notes.append(f"the recorded rewards were computed with {why}, so rewards are not compared")
    return False


async def _step(episode: Episode, record: TurnRecord, report: Replay) -> None:
    """Replay a recorded turn and compare it."""
    turn = await episode.step(Completion(record.completion, cut_off=record.cut_off, native=record.native))
    report.compared_turns += 1
    report.divergence = report.divergence or compare_turn(record, turn)


async def _run_commands(sandbox: Sandbox, record: TurnRecord, rules: EpisodeConfig) -> None:
    for command in record.commands:
        if command.command.strip() == COMMAND and rules.harness_feedback:
            continue  # a submission leaves nothing in the sandbox
        await sandbox.run(command.command, timeout=rules.command_timeout, max_output=rules.max_output)


def compare_turn(record: TurnRecord, turn: Turn) -> Divergence | None:
    """The first difference between a turn and its record."""
    before, after = mask_volatile(record.observation), mask_volatile(turn.observation)
    views = {
        "reading": (
            _pretty({"action": record.action, "commands": [command.command for command in record.commands]}),
            _pretty({"action": turn.action.kind, "commands": list(turn.action.commands)}),
        ),
        "exit": (
            _pretty([_end(command, command.truncated_output) for command in record.commands]),
            _pretty([_end(result, result.truncated) for result in turn.results]),
        ),
        "submission": _submissions(record, turn),
        "observation": (before, after),
    }
    for what, (was, now) in views.items():
        if was != now:
            shown = _diff(f"{was}\n{before}", f"{now}\n{after}") if what == "exit" else _diff(was, now)
            return Divergence(record.turn, what, shown)
    return None


def _end(command: CommandRecord | CommandResult, truncated: bool) -> dict[str, Any]:
    """How a command ended."""
    return {
        "exit_code": command.exit_code,
        "timed_out": command.timed_out,
        "truncated_output": truncated,
        "restarted": command.restarted,
    }


def _submissions(record: TurnRecord, turn: Turn) -> tuple[str, str]:
    """The submissions of a turn: recorded, and now."""
    was = [command.submission for command in record.commands if command.submission is not None]
    now = [submission_record(submission) for submission in turn.submissions]
    before, after = ([submission.model_dump(mode="json") for submission in found] for found in (was, now))
    for one, other in zip(before, after, strict=False):
        one["score"], other["score"] = _comparable(one["score"], other["score"])
    return mask_volatile(_pretty(before)), mask_volatile(_pretty(after))


def compare_scores(recorded: dict[str, Any], score: Score, *, rewards: bool = True) -> Divergence | None:
    """The difference of two scores, without times and retries, and without rewards if `rewards` is false."""
    was, now = _comparable(recorded, score.model_dump(mode="json"))
    if not rewards:
        for score_fields in (was, now):
            score_fields.pop("reward", None)
    before, after = mask_volatile(_pretty(was)), mask_volatile(_pretty(now))
    return Divergence(None, "score", _diff(before, after)) if before != after else None


def _comparable(was: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of two scores that can be compared."""
    ignored = {"seconds", "cached", "retries"}
    # Fields that only one of two versions measures are skipped.
    both = [name for name in was if name not in ignored and name in now]
    return {name: was[name] for name in both}, {name: now[name] for name in both}


def _ended_early(number: int, last: Turn) -> Divergence:
    was = f"turn {number} follows"
    now = f"the episode is over after turn {last.number}: {last.stop_reason}"
    return Divergence(number, "length", _diff(was, now))


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "replayed", lineterm="")
    return "\n".join(lines)
