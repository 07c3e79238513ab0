"""Reads the episodes of supervised training: transcripts, and files that ``rtl-agent-gym export`` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ... import strict_json
from ...errors import TranscriptError, UsageError
from ...evaluation.export import ExportConfig, LeftOut, export_rows
from ...evaluation.recorded import read_episode, transcript_files
from ...problems.paths import expand_home
from ...renderers import ModelTurn, ToolCall, get_renderer
from ..options import SftOptions

MALFORMED = "malformed turns"


@dataclass(frozen=True)
class DemonstratedTurn:
    """A turn of the model, and the reply."""

    turn: ModelTurn
    outputs: tuple[str, ...]
    """The outputs of its commands as the model read them; empty if it had none, or if it is the last turn."""
    completion: str = ""
    """What the model wrote, as text of its dialect; empty if it is not known."""
    token_ids: tuple[int, ...] | None = None
    """The sampled ids; None if they were not recorded."""


@dataclass(frozen=True)
class Demonstration:
    """An episode to imitate."""

    problem: str
    """The problem's id; empty if it is not known."""
    renderer: str
    """The dialect in which it was played; empty if it is not known."""
    system: str
    user: str
    turns: tuple[DemonstratedTurn, ...]


class _Function(BaseModel):
    name: str
    arguments: str


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    role: str
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _TokenTurn(BaseModel):
    completion: str
    observation: str = ""
    cut_off: bool = False
    token_ids: list[int] | None = None


class _Metadata(BaseModel):
    problem_id: str = ""
    renderer: str = ""
    passed: bool | None = None
    reward: float | None = None


class _Row(BaseModel):
    """A line of an export: ``sft`` has messages, ``tokens`` has turns."""

    messages: list[_Message] | None = None
    tools: list[Any] | None = None
    turns: list[_TokenTurn] | None = None
    system: str = ""
    user: str = ""
    metadata: _Metadata | None = None


def read_demonstrations(options: SftOptions, left_out: LeftOut) -> Iterator[Demonstration]:
    """The episodes that the options name and choose, one at a time, in the order of the files.

    Args:
        options: ``episodes``, and which of them.
        left_out: Counts the episodes that are left out, by reason.

    Raises:
        UsageError: A source does not exist, or a line is not of an export that can be trained on.
    """
    for source in options.episodes:
        try:
            files = transcript_files(expand_home(source), evaluations=False)
        except (UsageError, ValueError) as error:  # ValueError: a path with a NUL character
            raise UsageError(f"episodes: {error}") from error
        for file in files:
            yield from _read(file, options, left_out)


def _read(file: Path, options: SftOptions, left_out: LeftOut) -> Iterator[Demonstration]:
    try:
        with file.open("rb") as stream:
            first = strict_json.loads(stream.readline() or b"null")
    except OSError as error:
        raise UsageError(f"episodes: {file} cannot be read: {error.strerror}") from error
    except ValueError:
        first = None
    if isinstance(first, dict) and ("messages" in first or "turns" in first or "chosen" in first):
        yield from _read_export(file, options, left_out)
        return
    try:
        transcript = read_episode(file)
    except TranscriptError as error:
        if file in map(Path, options.episodes):
            raise UsageError(f"episodes: {error}") from error
        left_out["cannot be read"] += 1
        return
    config = ExportConfig(passed_only=options.passed_only, min_reward=options.min_reward)
    for row in export_rows("sft", [transcript], config, left_out):
        chat = _Row.model_validate(row)
        assert chat.messages is not None
        yield _of_chat(chat, chat.messages, [(turn.completion, turn.token_ids) for turn in transcript.turns])


def _read_export(file: Path, options: SftOptions, left_out: LeftOut) -> Iterator[Demonstration]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = _Row.model_validate(strict_json.loads(line))
                if reason := _why_left_out(row, options):
                    left_out[reason] += 1
                    continue
                demonstration = _of_row(row, single_turn=options.env == "single_turn")
            except ValidationError as error:
                place = ".".join(str(part) for part in error.errors()[0]["loc"])
                raise UsageError(f"episodes: {file}:{number}: {place}: {error.errors()[0]['msg']}") from error
            except ValueError as error:  # UsageError is one, too
                raise UsageError(f"episodes: {file}:{number}: {error}") from error
            if demonstration is None:
                left_out[MALFORMED] += 1
            else:
                yield demonstration


def _why_left_out(row: _Row, options: SftOptions) -> str | None:
    """Why the options leave a row out; a row without metadata is someone's own, and never left out."""
    known = row.metadata
    if known is None:
        return None
    if options.passed_only and not known.passed:
        return "did not pass"
    if options.min_reward is not None and (known.reward is None or not known.reward >= options.min_reward):
        return "too little reward"  # or an unknown one, such as NaN
    return None


def _of_row(row: _Row, *, single_turn: bool) -> Demonstration | None:
    """The episode of a row; None if it has malformed turns."""
    if row.turns is not None:
        return _of_tokens(row, row.turns, single_turn=single_turn)
    if row.messages is None:
        raise UsageError("has neither messages nor turns; export the episodes as sft or tokens")
    if row.tools is None:
        raise UsageError("was exported with --style dialect; export with --style tools, or give the transcripts")
    if any(message.role == "user" for message in row.messages[2:]):
        return None  # the reply to a malformed turn
    return _of_chat(row, row.messages)


def _of_chat(
    row: _Row, messages: Sequence[_Message], recorded: Sequence[tuple[str, list[int] | None]] | None = None
) -> Demonstration:
    """The episode of a chat. `recorded` has the text and the ids of each turn, if they are known."""
    rest = list(messages)
    system = rest.pop(0).content or "" if rest and rest[0].role == "system" else ""
    user = rest.pop(0).content or "" if rest and rest[0].role == "user" else ""
    turns: list[DemonstratedTurn] = []
    while rest:
        message = rest.pop(0)
        if message.role != "assistant":
            raise UsageError(f"a message of {message.role!r} where one of 'assistant' was expected")
        calls = tuple(ToolCall(call.function.name, call.function.arguments) for call in message.tool_calls or ())
        turn = ModelTurn(message.reasoning_content or "", message.content or "", calls)
        outputs: list[str] = []
        while rest and rest[0].role == "tool":
            outputs.append(rest.pop(0).content or "")
        completion, ids = ("", None) if recorded is None else recorded[len(turns)]
        turns.append(DemonstratedTurn(turn, tuple(outputs), completion, None if ids is None else tuple(ids)))
    if not turns:
        raise UsageError("has no message of 'assistant'")
    return _demonstration(row, system, user, turns)


def _of_tokens(row: _Row, turns: Sequence[_TokenTurn], *, single_turn: bool) -> Demonstration | None:
    """The episode of a row of sampled tokens; None if it has malformed turns."""
    renderer = get_renderer(row.metadata.renderer if row.metadata is not None else "")
    found: list[DemonstratedTurn] = []
    for turn in turns:
        action = renderer.parse_text(turn.completion, truncated=turn.cut_off)
        commands = () if single_turn else action.commands
        if action.kind == "malformed" and not single_turn:
            return None
        outputs = renderer.read_observation(turn.observation, len(commands)) if commands and turn.observation else []
        if outputs and len(outputs) != len(commands):
            raise UsageError(f"turn {len(found) + 1}: the outputs of its commands cannot be separated; use transcripts")
        model_turn = ModelTurn(action.thinking, action.text, tuple(map(ToolCall.of, commands)))
        ids = None if turn.token_ids is None else tuple(turn.token_ids)
        found.append(DemonstratedTurn(model_turn, tuple(outputs), turn.completion, ids))
    return _demonstration(row, row.system, row.user, found)


def _demonstration(row: _Row, system: str, user: str, turns: Sequence[DemonstratedTurn]) -> Demonstration:
    known = row.metadata or _Metadata()
    return Demonstration(known.problem_id, known.renderer, system, user, tuple(turns))
