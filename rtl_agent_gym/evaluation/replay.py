"""Run a recorded episode again and compare it with the record.

The recorded completions are played in a fresh sandbox under the recorded rules and prompt. For each turn, the parsed
action, exit codes, submissions and observation are compared with the record, and at the end the score; values that
`VOLATILE` lists are ignored. Submissions are graded again.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ..episodes.episode import Episode, EpisodeConfig, Grader, StopReason, Turn
from ..episodes.recording import command_record
from ..episodes.submissions import COMMAND
from ..errors import SandboxError, TranscriptError, UsageError
from ..policies import Completion, Outside
from ..problems import Problem
from ..renderers import RENDERER_NAMES, Renderer, get_renderer
from ..sandboxes import Sandbox, SandboxProvider
from ..scoring import RewardWeights, rules_digest
from ..transcripts import CommandRecord, Transcript, TurnRecord
from .recorded import Data


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
    compared_turns: int = 0
    """Turns that were replayed and compared."""
    score_compared: bool = False
    """Whether a score was recorded and compared."""
    divergence: Divergence | None = None
    notes: list[str] = field(default_factory=list)
    """Conditions that differ from the recorded run, and missing parts of the record."""

    @property
    def identical(self) -> bool:
        """Whether everything that was compared is equal."""
        return self.divergence is None


def recorded_weights(transcript: Transcript) -> RewardWeights | None:
    """The reward weights of the recorded run, or None. Raises `TranscriptError` if they are invalid."""
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
        provider: Creates the fresh sandbox.
        grader: Scores the files, like the recorded run's grader.
        renderer: The recorded dialect; it needs no vocabulary. None for the built-in dialect that the record names.

    Raises:
        UsageError: The transcript is of another problem, or names no built-in dialect.
        SandboxError: The machine failed.
    """
    async with _started(transcript, problem, provider, grader, renderer) as (episode, report):
        turns, recorded, end = transcript.turns, transcript.score, transcript.end
        ignored = _ignored(transcript, grader)
        broken = recorded is not None and "nothing was left to grade: " in str(recorded.score.get("reason"))
        if broken and turns and turns[-1].outside:
            report.notes.append(
                "the agent's own program ended the sandbox, which is not repeated: its last turn and the score are not "
                "compared"
            )
            turns, recorded = turns[:-1], None
        if recorded is not None and (why := _other_weights(transcript, grader)) is not None:
            report.notes.append(f"the recorded rewards were computed with {why}, so rewards are not compared")
        for record in turns:
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
            stop = end.stop_reason if end is not None else "max_tokens"
            score = await episode.finish(stop if stop in get_args(StopReason) else "max_tokens")  # type: ignore[arg-type]
        report.score_compared = True
        scores = _comparable(recorded.score, score.model_dump(mode="json"), ignored)
        before, after = (mask_volatile(_pretty(fields)) for fields in scores)
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
    """Replay up to a turn; yields the comparison so far and the sandbox in that state. See `replay`.

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
            if record is not transcript.turns[-1]:
                await _step(episode, record, report, _ignored(transcript, grader))
                continue
            # The last turn may end the episode and grade the files; here only its commands are needed.
            if record.outside:
                await restore(sandbox, record)
            for command in [] if record.outside else record.commands:
                if rules.harness_feedback and command.command.strip() == COMMAND:
                    continue  # a submission leaves nothing in the sandbox
                await sandbox.run(command.command, timeout=rules.command_timeout, max_output=rules.max_output)
        yield report, sandbox


@asynccontextmanager
async def _started(
    transcript: Transcript,
    problem: Problem,
    provider: SandboxProvider,
    grader: Grader,
    renderer: Renderer | None = None,
) -> AsyncIterator[tuple[Episode, Replay]]:
    """A started episode with the recorded rules, prompt and seed; the report notes conditions that differ."""
    header, end, rules = transcript.header, transcript.end, _rules(transcript, problem)
    if renderer is None and header.renderer not in RENDERER_NAMES:  # a file may not choose what is imported
        raise UsageError(
            f"{transcript.path} was recorded with the renderer {header.renderer!r}, which is not one of this "
            "package's; give it with --renderer module:Class"
        )
    renderer = renderer or get_renderer(header.renderer)
    report = Replay(transcript.path, problem.id, len(transcript.turns))
    note = report.notes.append
    if problem.digest != header.problem_digest:
        note(
            f"problem {problem.id} has changed since the recording: its texts, files or hidden tests are not the same, "
            "so answers and score may differ"
        )
    if header.rules_digest not in ("", rules_digest()):
        note("the grader has changed since the recording, so the score may differ")
    if any(record.outside for record in transcript.turns):
        note("an agent's own program ran tools in the sandbox: their files are restored, the tools are not run again")
    if any(record.outside and record.left_out for record in transcript.turns):
        note("files that were too large, too many or not text are not in the record, so they are not restored")
    if not transcript.complete:
        note(f"the record was cut off after turn {len(transcript.turns)}, such as by a crash; its turns are compared")
    elif end is not None and end.error:
        note(f"the recorded episode ended with a machine fault and has no score: {end.error}")
    async with Episode(
        problem, provider=provider, grader=grader, renderer=renderer, config=rules, seed=header.seed
    ) as episode:
        await episode.start()
        recorded = header.image_digest
        now = getattr(episode.sandbox, "image_id", "") if rules.workspace == "shell" else ""
        if recorded and now and recorded != now:
            note(
                f"recorded on image {recorded[:19]}, replayed on {now[:19]}: other versions of tools may print "
                "something else"
            )
        yield episode, report


def _rules(transcript: Transcript, problem: Problem) -> EpisodeConfig:
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
    return {"seconds", "cached", "retries"} | ({"reward"} if _other_weights(transcript, grader) else set())


async def _step(episode: Episode, record: TurnRecord, report: Replay, ignored: set[str]) -> None:
    outside = None
    if record.outside:
        await restore(episode.sandbox, record)
        outside = Outside(tuple(one.output or "" for one in record.commands), record.action == "final")
    completion = Completion(record.completion, cut_off=record.cut_off, native=record.native, outside=outside)
    turn = await episode.step(completion)
    report.compared_turns += 1
    report.divergence = report.divergence or compare_turn(record, turn, ignored)


async def restore(sandbox: Sandbox, record: TurnRecord) -> None:
    """Restore the files to their state after a turn of an agent's own program, which is not run again.

    Raises `SandboxError` if that is not possible.
    """
    if gone := [path for path, text in record.files.items() if text is None]:  # first: such a path may be a folder now
        names = "\0".join(gone).encode(errors="surrogateescape")
        removed = await sandbox.exec(["xargs", "-0", "rm", "-rf", "--"], stdin=names)  # argument lists are limited
        if removed.exit_code != 0:
            raise SandboxError(
                f"files that turn {record.turn} removed are still there: {removed.output.strip()[-400:]}"
            )
    await sandbox.write_files({path: text for path, text in record.files.items() if text is not None})


def compare_turn(record: TurnRecord, turn: Turn, ignored: set[str]) -> Divergence | None:
    """The first difference between a turn and its record, without the `ignored` fields of scores."""
    ran = zip(turn.action.commands, turn.results, turn.outputs, strict=True)
    before = _views(record.action, record.commands)
    after = _views(turn.action.kind, [command_record(*result) for result in ran])
    for sent, again in zip(before["submission"], after["submission"], strict=False):
        sent["score"], again["score"] = _comparable(sent["score"], again["score"], ignored)
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
    """The fields that both scores have (versions measure different fields), without those in `ignored`."""
    both = [name for name in was if name not in ignored and name in now]
    return {name: was[name] for name in both}, {name: now[name] for name in both}


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "replayed", lineterm="")
    return "\n".join(lines)


# ---- ratings of a judge, which are reused


@dataclass(frozen=True)
class RecordedJudge:
    """A `Judge` that repeats the rating of a record."""

    name: str
    rating: float
    reasoning: str

    async def ask(self, system: str, user: str) -> str | None:
        """The recorded rating, in the form that the prompt asks for."""
        code = re.findall(r'"code": "(\w+)"', user)[-1]
        return json.dumps({"code": code, "score": self.rating, "reasoning": self.reasoning})


def recorded_judge(transcript: Transcript) -> RecordedJudge | None:
    """The judge that a transcript's score names; None if there was no judge."""
    score = transcript.score.score if transcript.score is not None else {}
    name, rating, reason = score.get("judge"), score.get("rating", 0.0), str(score.get("reason", ""))
    if not (isinstance(name, str) and name and isinstance(rating, int | float)):
        return None
    # The reason is the judge's name and its words, to which the episode may have added notes.
    words = reason.removeprefix(f"rated {rating:g} by {name}").removeprefix(": ")
    return RecordedJudge(name, float(rating), words)


# ---- values that may differ between two runs of the same commands; everything else must be equal

# Each pattern is as narrow as possible: it must never match a number in a simulation's output, a register's value or a
# count. docs/evaluation.md has an example of each, in this order, which a test checks.

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"[0-2]\d:[0-5]\d(?::[0-6]\d(?:[.,]\d+)?)?"

VOLATILE: tuple[tuple[str, str], ...] = (
    (
        "time",
        rf"\b{_DAY},? +(?:{_MONTH} +\d{{1,2}}|\d{{1,2}} +{_MONTH})(?: \d{{4}})? +{_CLOCK}(?: [AP]M)?(?: [A-Z]{{3,4}})?"
        r"(?: [12]\d{3})?\b",
    ),
    ("time", rf"\b[12]\d{{3}}-\d\d-\d\d(?:[T ]{_CLOCK}(?: ?(?:Z|[+-]\d\d:?\d\d))?)?"),
    ("time", rf"\b{_MONTH} +\d{{1,2}} +(?:{_CLOCK}|[12]\d{{3}})\b"),
    ("time", r"(?P<keep>^\[?)[0-2]\d:[0-5]\d:[0-6]\d(?:[.,]\d+)?\b"),
    ("time", r"\b1[6-9]\d{8}\.\d+\b|^1[6-9]\d{8}$"),
    ("duration", r"\b\d+m\d+[.,]\d+s\b"),
    ("duration", r"\b\d+\.\d+(?:e-\d+)? ?(?:s|sec|secs|seconds)\b"),
    (
        "duration",
        r"(?P<keep>\*\* \S+ +(?:(?:PASS|FAIL|SKIP) +)?(?:[A-Z]+=\d+ +)*\d+\.\d\d)"
        r" +\d+\.\d\d +(?:\d+\.\d\d|-\.--|inf) +(?=\*\*)",
    ),
    ("duration", r"(?P<keep>\b(?:elab|cvt|bld)=)\d+\.\d+"),
    ("duration", r"(?P<keep>^Time spent:) \d+% \d+x .*"),
    ("memory", r"(?P<keep>\b(?:alloced|MEM:) )\d+(?:\.\d+)? [KMG]?B\b"),
    ("address", r"(?<![0-9A-Fa-f])0x(?:7[ef]|5[56]|ffff|aaaa)[0-9a-f]{8,10}(?![0-9A-Fa-f])"),
    ("pid", r"(?P<keep>^\[\d+\][+-]? +)\d+\b(?! *(?:Running|Done|Exit))"),
    ("pid", r"(?P<keep>: line \d+:) +\d+(?= [A-Z])"),
    ("pid", r"(?P<keep>\b(?:pid|PID|ppid|PPID)[ =:]+)\d+\b"),
    ("pid", r"^(?P<keep>(?:[a-z]\w* )?) *\d+(?: +\d+)*(?= +(?:\?|pts/\d+) )"),
    ("seed", r"(?P<keep>\b(?:[Ss]eed(?:ing)?\b[^\n\d]{0,40}|COCOTB_RANDOM_SEED=))\d{9,}\b"),
    (
        "tmp name",
        # of mktemp, also as `ls /tmp` lists it; Python; GCC; Icarus
        r"(?P<keep>/tmp/(?:tmp\.(?=\w{10}\b)|tmp(?=\w{8}\b)|cc(?=\w{6}\b)|ivrl[a-z]?2?(?=[0-9a-f]{4,8}\b))"
        r"|^tmp\.(?=\w*[A-Z0-9])(?=\w{10}$))\w+",
    ),
    ("user id", r"(?P<keep>\b(?:[ug]id=|groups=|[UG]id: \( *))\d+(?=\(agent\)|/ +agent\))"),
    ("device", r"(?P<keep>^Device: )\S+(?= +Inode: )"),
    ("steps", r"(?P<keep>\bproved equal to the given design in the first )\d+(?= steps only)"),
    ("sandbox", r"\brtl-gym-agent-\d+-[0-9a-f]{8}\b"),
)
"""The kinds of values that change from run to run, in the order in which they are replaced: the name and a regular
expression of lines; its group ``keep``, if it has one, is kept before the placeholder."""


_READER_GONE = re.compile(r'^Unable to get version from ".*"\n', re.MULTILINE)
"""Printed by ``iverilog -V`` when its programs find that a pipe's reader has ended; with ``| head -1``, a race."""


def mask_volatile(text: str) -> str:
    """`text` with a placeholder for each volatile value, ready to be compared."""
    text = _READER_GONE.sub("", text)
    for name, pattern in VOLATILE:
        keep = r"\g<keep>" if "(?P<keep>" in pattern else ""
        text = re.sub(pattern, f"{keep}<{name}>", text, flags=re.MULTILINE)
    return text
