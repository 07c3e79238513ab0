"""The data of supervised training: reads recorded episodes, and encodes them in the student's tokens with a mask.

Episodes are read from transcripts and from files that ``rtl-agent-gym export`` wrote.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, field_validator

from ... import strict_json
from ...errors import TranscriptError, UsageError
from ...evaluation.export import ExportConfig, LeftOut, export_rows
from ...evaluation.recorded import read_episode, transcript_files
from ...problems.paths import expand_home
from ...renderers import ModelTurn, Renderer, ToolCall, get_renderer
from ...renderers.actions import native_action
from ...renderers.transcript import TokenTranscript
from ..options import SftOptions

MALFORMED = "malformed turns"


@dataclass(frozen=True)
class DemonstratedTurn:
    """A turn of the model, and the environment's reply."""

    turn: ModelTurn
    outputs: tuple[str, ...]
    """The outputs of its commands as the model read them; empty if it had no commands, or if it is the last turn."""
    completion: str = ""
    """What the model wrote, as text of its dialect; empty if unknown."""
    token_ids: tuple[int, ...] | None = None
    """The sampled ids; None if they were not recorded."""


@dataclass(frozen=True)
class Demonstration:
    """An episode to imitate."""

    problem: str
    """The problem's id; empty if unknown."""
    renderer: str
    """The dialect in which the episode was played; empty if unknown."""
    system: str
    user: str
    turns: tuple[DemonstratedTurn, ...]


class _Function(BaseModel):
    name: str
    arguments: str

    @field_validator("arguments", mode="before")
    @classmethod
    def _text_of_object(cls, arguments: Any) -> Any:
        """Exports in the style ``transformers`` have an object here."""
        return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    role: str
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _TokenTurn(BaseModel):
    completion: str
    native: ModelTurn | None = None
    observation: str = ""
    cut_off: bool = False
    token_ids: list[int] | None = None


class _Metadata(BaseModel):
    problem_id: str = ""
    renderer: str = ""
    passed: bool | None = None
    reward: float | None = None


class _Row(BaseModel):
    """A line of an export: the format ``sft`` has messages, ``tokens`` has turns."""

    messages: list[_Message] | None = None
    tools: list[Any] | None = None
    turns: list[_TokenTurn] | None = None
    system: str = ""
    user: str = ""
    metadata: _Metadata | None = None


def read_demonstrations(options: SftOptions, left_out: LeftOut) -> Iterator[Demonstration]:
    """The episodes that the options select from their sources, one at a time, in the order of the files.

    `left_out` counts the others, by reason. Raises `UsageError` if a source does not exist, or if a line is not from
    an export that can be trained on.
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
    for row in export_rows("sft", [transcript], _chosen(options), left_out):
        yield _of_chat(_Row.model_validate(row), [(turn.completion, turn.token_ids) for turn in transcript.turns])


def _read_export(file: Path, options: SftOptions, left_out: LeftOut) -> Iterator[Demonstration]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = _Row.model_validate(strict_json.loads(line))
                known = row.metadata  # a row without metadata was not exported, and is never left out
                if known is not None and (lack := _chosen(options).lack(known.passed, known.reward)):
                    left_out[lack] += 1
                    continue
                demonstration = _of_row(row, single_turn=options.env == "single_turn")
            except ValidationError as error:
                place = ".".join(str(part) for part in error.errors()[0]["loc"])
                raise UsageError(f"episodes: {file}:{number}: {place}: {error.errors()[0]['msg']}") from error
            except ValueError as error:  # UsageError, too
                raise UsageError(f"episodes: {file}:{number}: {error}") from error
            if demonstration is None:
                left_out[MALFORMED] += 1
            else:
                yield demonstration


def _chosen(options: SftOptions) -> ExportConfig:
    return ExportConfig(passed_only=options.passed_only, min_reward=options.min_reward)


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
    return _of_chat(row)


def _of_chat(row: _Row, recorded: Sequence[tuple[str, list[int] | None]] | None = None) -> Demonstration:
    """The episode of a chat. `recorded` has the text and the ids of each turn, if known."""
    rest = list(row.messages or ())
    system = rest.pop(0).content or "" if rest and rest[0].role == "system" else ""
    user = rest.pop(0).content or "" if rest and rest[0].role == "user" else ""
    turns: list[DemonstratedTurn] = []
    while rest:
        message = rest.pop(0)
        if message.role != "assistant":
            raise UsageError(f"a message has the role {message.role!r} where 'assistant' was expected")
        calls = tuple(ToolCall(call.function.name, call.function.arguments) for call in message.tool_calls or ())
        turn = ModelTurn(message.reasoning_content or "", message.content or "", calls)
        outputs: list[str] = []
        while rest and rest[0].role == "tool":
            outputs.append(rest.pop(0).content or "")
        completion, ids = ("", None) if recorded is None else recorded[len(turns)]
        turns.append(DemonstratedTurn(turn, tuple(outputs), completion, None if ids is None else tuple(ids)))
    if not turns:
        raise UsageError("has no message with the role 'assistant'")
    return _demonstration(row, system, user, turns)


def _of_tokens(row: _Row, turns: Sequence[_TokenTurn], *, single_turn: bool) -> Demonstration | None:
    """The episode of a row of sampled tokens; None if it has malformed turns."""
    renderer = get_renderer(row.metadata.renderer if row.metadata is not None else "")
    found: list[DemonstratedTurn] = []
    for turn in turns:
        if turn.native is not None:
            action = native_action(turn.native, truncated=turn.cut_off)
        else:
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


@dataclass(frozen=True)
class EncodedEpisode:
    """An episode in the student's tokens."""

    problem: str
    tokens: list[int]
    mask: list[int]
    """1 for tokens that the model wrote, which are trained on; 0 for prompts and outputs. As long as `tokens`."""
    exact: bool
    """Whether the model's tokens are the recorded ids; if not, they were encoded from text."""


def encode(
    episode: Demonstration, renderer: Renderer, system: str | None = None, user: str | None = None
) -> EncodedEpisode | None:
    """An episode in a student's tokens; None if its dialect cannot express a turn.

    `system` and `user` replace the recorded prompts; None keeps the recorded prompt.

    Recorded ids are used unchanged if they are of this dialect and the vocabulary decodes them to the recorded text.
    Otherwise all turns are encoded from their thinking (if the student thinks), text and calls. Outputs are appended as
    in an episode; nothing is rendered twice.
    """
    exact = episode.renderer == renderer.name and all(
        turn.token_ids is not None and renderer.decode(turn.token_ids) == turn.completion for turn in episode.turns
    )
    transcript = TokenTranscript(
        renderer.initial_ids(episode.system if system is None else system, episode.user if user is None else user)
    )
    for number, turn in enumerate(episode.turns, 1):
        outputs = list(turn.outputs)
        if exact:
            ids = list(turn.token_ids or ())
        else:
            ids = renderer.turn_ids(turn.turn if renderer.thinks else replace(turn.turn, thinking=""))
            action = renderer.parse_ids(ids)
            if action.kind != ("command" if turn.turn.calls else "final"):
                return None
            if len(outputs) > len(action.commands):  # a dialect with one call per turn
                outputs = ["\n".join(outputs)]
        transcript.add_action(ids)
        if number < len(episode.turns):
            if not outputs:
                return None
            transcript.append(renderer.observation_ids(outputs, ids))
    return EncodedEpisode(episode.problem, transcript.tokens, transcript.mask, exact)


@dataclass(frozen=True)
class SupervisedData:
    """The episodes of a run."""

    train: Sequence[EncodedEpisode]
    validation: Sequence[EncodedEpisode] = ()
    """Episodes of held-out problems."""
    left_out: LeftOut = field(default_factory=Counter)
    """Number of episodes in neither list, by reason."""

    @classmethod
    def read(
        cls, options: SftOptions, renderer: Renderer, prompts: tuple[str | None, str | None], held_out: Collection[str]
    ) -> SupervisedData:
        """Read and encode episodes: without calls if ``env=single_turn``, otherwise with at least one call.

        `prompts` are the student's system and user prompt, as for `encode`; `held_out` are the ids of the validation
        problems. Raises like `read_demonstrations`.
        """
        train: list[EncodedEpisode] = []
        validation: list[EncodedEpisode] = []
        left_out, max_tokens = Counter[str](), options.max_trajectory_tokens
        for demonstration in read_demonstrations(options, left_out):
            if any(turn.turn.calls for turn in demonstration.turns) == (options.env == "single_turn"):
                left_out["of another env"] += 1
                continue
            encoded = encode(demonstration, renderer, *prompts)
            if encoded is None:
                left_out["not expressible in the student's dialect"] += 1
            elif len(encoded.tokens) > max_tokens:
                left_out[f"longer than {max_tokens} tokens"] += 1
            else:
                (validation if demonstration.problem in held_out else train).append(encoded)
        return cls(train, validation, left_out)

    @cached_property
    def digest(self) -> str:
        """A digest of all tokens and masks: a run is resumed only with the same data."""
        made = hashlib.sha256()
        for episodes in (self.train, self.validation):
            for episode in episodes:
                made.update(repr((episode.problem, episode.tokens, episode.mask)).encode())
            made.update(b"|")
        return made.hexdigest()[:16]

    @property
    def longest(self) -> int:
        """Number of tokens of the longest episode."""
        return max(len(episode.tokens) for episode in (*self.train, *self.validation))

    def steps(self, batch_size: int, epochs: int) -> int:
        return math.ceil(len(self.train) * epochs / batch_size)

    def batch(self, step: int, batch_size: int, epochs: int, seed: int) -> list[EncodedEpisode]:
        """The episodes of a step. Each epoch has its own order; a batch can span two, and the last can be smaller."""
        size = len(self.train)
        found: list[EncodedEpisode] = []
        for place in range(step * batch_size, min((step + 1) * batch_size, epochs * size)):
            epoch, index = divmod(place, size)
            found.append(self.train[_order(size, seed, epoch)[index]])
        return found

    def summary(self) -> str:
        """One line: how many episodes there are, and how many were left out."""
        every = (*self.train, *self.validation)
        tokens = sum(sum(episode.mask) for episode in self.train)
        line = f"{len(self.train)} episodes to train on, with {tokens:,} tokens of the model"
        if self.validation:
            line += f"; {len(self.validation)} for validation"
        line += f"; {sum(episode.exact for episode in every)} with recorded tokens, the others encoded from text"
        return f"{line}; {self.reasons()}"

    def reasons(self) -> str:
        """How many episodes were left out for each reason, as text."""
        return "left out: " + (", ".join(f"{count} {why}" for why, count in self.left_out.most_common()) or "none")


@lru_cache(maxsize=1)  # for many episodes, it takes longer than the rest of a batch
def _order(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
