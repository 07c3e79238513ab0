"""Reading recorded episodes for the viewer, the reports and the exports: finding the files and what they contain."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import TranscriptError, UsageError
from ..renderers import Action, Renderer, get_renderer
from ..renderers.actions import native_action
from ..renderers.renderer import ToollessRenderer
from ..scoring.score import Score
from ..transcripts import Transcript, TurnRecord, read_transcript
from .outcome import EpisodeResult

Data = dict[str, Any]
"""A JSON object."""

OF_A_RUN = {"checkpoints.jsonl", "metrics.jsonl", "results.jsonl"}
"""The ``.jsonl`` files of a run that are not transcripts."""
LARGEST_KL = 1e6
"""Nats per token; larger values come from numbers that are not log-probabilities."""


def transcript_files(source: Path, *, evaluations: bool = True) -> list[Path]:
    """The transcripts at `source`, sorted by name: the file itself, those of a run or an evaluation
    (``transcripts/``, also in sub-folders), or the ``.jsonl`` files of any other folder.

    Args:
        evaluations: Whether the evaluations of a training run belong to the run. They are of held-out problems, which
            must not be trained on.

    Raises:
        UsageError: `source` does not exist, or contains no transcript.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        what = "neither a file nor a folder" if source.exists() else "no such file or folder"
        raise UsageError(f"{source}: {what}; give a transcript, a folder of transcripts, or a run")
    try:
        named = [folder for folder in sorted(source.rglob("transcripts")) if folder.is_dir()]
        files = {path for folder in named or [source] for path in folder.rglob("*.jsonl")}
    except OSError as error:
        raise UsageError(f"{source}: cannot be searched: {error.filename}: {error.strerror}") from error
    left_out = set() if evaluations else set(filter(_is_of_a_run, source.rglob("evaluations")))
    found = sorted(path for path in files if path.name not in OF_A_RUN and left_out.isdisjoint(path.parents))
    closed = [folder for folder in named or [source] if not os.access(folder, os.R_OK | os.X_OK)]
    if closed and not found:
        raise UsageError(f"{closed[0]}: cannot be read: Permission denied")
    if not found:
        raise UsageError(f"{source}: contains no transcript (*.jsonl, or transcripts/*.jsonl)")
    return found


def _is_of_a_run(evaluations: Path) -> bool:
    # The last exists before anything is played, the others after the first step.
    return any((evaluations.parent / name).exists() for name in ("checkpoints.jsonl", "metrics.jsonl", "code.diff"))


def read_episode(path: Path) -> Transcript:
    """`read_transcript`, with missing fields of the score filled in. Raises `TranscriptError` also if it is invalid."""
    transcript = read_transcript(path)
    if transcript.score is not None:
        try:
            score = Score.model_validate(transcript.score.score)
        except ValidationError as error:
            reason = " ".join(str(error).split())[:200]
            raise TranscriptError(f"{path}: its score cannot be read: {reason}") from error
        complete = {**transcript.score.score, **score.model_dump(mode="json")}
        transcript.score = transcript.score.model_copy(update={"score": complete})
    return transcript


def each_readable(files: Iterable[Path], unreadable: list[str]) -> Iterator[Transcript]:
    """The transcripts in files, one at a time; `unreadable` receives an error message for each unreadable file."""
    for path in files:
        try:
            yield read_episode(path)
        except TranscriptError as error:
            unreadable.append(str(error))


def require_readable(files: Sequence[Path]) -> None:
    """Raise `TranscriptError` if none of these files is a transcript that can be read."""
    unreadable = list[str]()
    if next(each_readable(files, unreadable), None) is None:
        others = f"; nor can the other {len(files) - 1} be read" if len(files) > 1 else ""
        raise TranscriptError(unreadable[0] + others)


def short_name(problem_id: str) -> str:
    """A problem's id without the common prefix."""
    return problem_id.removeprefix("cvdp_agentic_").removeprefix("rtlgym_")


def outcome(transcript: Transcript) -> str:
    """``passed``, ``failed``, ``machine`` (a machine fault, no score) or ``cut off`` (`Transcript.complete`)."""
    if transcript.score is not None:
        return "passed" if transcript.score.score.get("passed") else "failed"
    return "machine" if transcript.complete else "cut off"


def token_kl(turn: TurnRecord) -> list[float | None] | None:
    """Student minus teacher log-probability of each sampled token, an estimate of the reverse KL in nats.

    A value is None if the teacher cannot score the token, or if the difference is not below `LARGEST_KL`; the
    result is None if log-probabilities were not recorded.
    """
    if turn.logprobs is None or turn.teacher_logprobs is None:
        return None
    pairs = zip(turn.logprobs, turn.teacher_logprobs, strict=False)
    values = (None if teacher is None else student - teacher for student, teacher in pairs)
    return [None if value is None or not abs(value) < LARGEST_KL else value for value in values]


def mean_kl(transcript: Transcript) -> float | None:
    """The mean of `token_kl` over an episode, in nats per token; None if log-probabilities were not recorded."""
    values = [value for turn in transcript.turns for value in token_kl(turn) or () if value is not None]
    return math.fsum(values) / len(values) if values else None


def summary(transcript: Transcript, *, run: str = "") -> Data:
    """The episode's row in the list; `run`: name of the folder that contains its ``transcripts`` folder."""
    header, score = transcript.header, transcript.score.score if transcript.score is not None else {}
    result, how = EpisodeResult.of_transcript(transcript), outcome(transcript)
    return {
        "name": transcript.path.name,
        "run": run,
        "problem": header.problem_id,
        "category": header.category,
        "difficulty": header.difficulty,
        "renderer": header.renderer,
        "seed": header.seed,
        "outcome": how,
        "cause": how if how == "cut off" else result.cause,
        "reward": score.get("reward"),
        "tests": [score.get("tests_passed", 0), score.get("tests_total", 0)] if score else None,
        "violations": len(score.get("violations", ())),
        "turns": len(transcript.turns),
        "tokens": result.output_tokens,
        "streams": len({turn.stream for turn in transcript.turns} - {None}),
        "kl": _rounded(mean_kl(transcript)),
        "seconds": _rounded(transcript.end.seconds if transcript.end is not None else None),
        "stop": transcript.end.stop_reason if transcript.end is not None else None,
        "time": header.time,
    }


def episode(transcript: Transcript) -> Data:
    """The complete episode, as data for the viewer."""
    header = transcript.header
    renderer = renderer_of(transcript)
    end, score = transcript.end, transcript.score
    return {
        "system": header.system,
        "user": header.user,
        "options": header.options,
        "digests": {"problem": header.problem_digest, "image": header.image_digest},
        "version": header.package_version,
        "files": header.files,
        "turns": [_turn(turn, renderer) for turn in transcript.turns],
        "score": score.score if score is not None else None,
        "end": end.model_dump(mode="json") if end is not None else None,
    }


def _turn(turn: TurnRecord, renderer: Renderer | None) -> Data:
    action = read_action(turn, renderer)
    kl = token_kl(turn)
    return {
        "turn": turn.turn,
        "kind": turn.action,
        "cutOff": turn.cut_off,
        "stream": stream_name(turn) if turn.stream is not None else "",
        "raw": turn.words,
        "thinking": action.thinking,
        "text": action.text,
        "commands": [command.model_dump(mode="json", exclude={"output"}) for command in turn.commands],
        "outputs": outputs(turn, renderer),
        "seconds": _rounded(turn.seconds),
        "time": turn.time,
        "files": turn.files,
        "count": len(turn.token_ids) if turn.token_ids is not None else None,
        "tokens": token_texts(turn) if turn.logprobs is not None else None,
        "logprobs": [_rounded(value) for value in turn.logprobs] if turn.logprobs is not None else None,
        "kl": [_rounded(value) for value in kl] if kl is not None else None,
    }


def stream_name(turn: TurnRecord) -> str:
    """Which stream of tokens an agent's turn belongs to, and why it began."""
    return f"stream {turn.stream}" + (f" ({turn.stream_reason})" if turn.stream_reason else "")


def read_action(turn: TurnRecord, renderer: Renderer | None) -> Action:
    """A turn's action, parsed again for its text and thinking; without a renderer, the unparsed completion."""
    if turn.native is not None:
        return native_action(turn.native, truncated=turn.cut_off)
    if renderer is None:
        return Action(turn.action, text=turn.completion)
    return renderer.parse_text(turn.completion, truncated=turn.cut_off)


def outputs(turn: TurnRecord, renderer: Renderer | None) -> list[str]:
    """The reply to a turn: one text per command if they can be separated, otherwise one text."""
    recorded = [command.output for command in turn.commands if command.output is not None]
    if turn.commands and len(recorded) == len(turn.commands):
        return recorded
    if not turn.observation:
        return []
    if renderer is None:
        return [turn.observation]
    return renderer.read_observation(turn.observation, max(1, len(turn.commands)))


def token_texts(turn: TurnRecord) -> list[str]:
    """The text of each sampled token as recorded, otherwise its id in brackets."""
    count = len(turn.logprobs or ())
    if turn.tokens is not None and len(turn.tokens) == count:
        return turn.tokens
    return [f"[{number}]" for number in (turn.token_ids or range(count))]


def file_states(transcript: Transcript) -> list[dict[str, str]]:
    """The recorded files before the first turn and after each turn."""
    states = [dict(transcript.header.files)]
    for turn in transcript.turns:
        after = states[-1] | {path: text for path, text in turn.files.items() if text is not None}
        states.append({path: text for path, text in after.items() if turn.files.get(path, "") is not None})
    return states


def changed_paths(states: Sequence[dict[str, str]]) -> list[list[str]]:
    """The paths that differ between consecutive states of `file_states`."""
    return [
        sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        for before, after in pairwise(states)
    ]


def renderer_of(transcript: Transcript) -> Renderer | None:
    """The renderer that an episode was played with; None if it is not built in, or its package is missing."""
    header = transcript.header
    try:
        renderer = get_renderer(header.renderer)
        renderer.parse_text("")  # packages are imported at the first use
        return ToollessRenderer(renderer) if header.options.get("single_turn") else renderer
    except UsageError:  # completions are shown unparsed
        return None


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)
