"""The interface between renderers and the rest of the package: the tool, turns and their parts, and actions.

Every dialect parses a turn into parts (thinking, text and calls) and writes parts as a turn. Each part also records
where its framing (tags, headers) opens and ends it, and whether the turn stops there. This makes it possible to write
one model's turn in another model's dialect and to compare the two token by token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from .vocabularies import Control, Piece

TOOL_NAME = "execute_bash"
TOOL_DESCRIPTION = "Run a command in the persistent bash shell and return what it printed."
TOOL_ARGUMENT = "command"
ARGUMENT_DESCRIPTION = "The bash command to run; several lines and here-documents are fine."
"""The agent's only tool, and its only argument: bash text of any number of lines."""

MAX_CALLS = 8
"""Maximum number of calls of one turn that are run; a note tells the model about the others."""
MAX_CALLS_READ = 64
"""Maximum number of calls in one turn; a turn with more is malformed, so that parsing any turn takes linear time."""

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": TOOL_DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {TOOL_ARGUMENT: {"type": "string", "description": ARGUMENT_DESCRIPTION}},
            "required": [TOOL_ARGUMENT],
        },
    },
}
"""The tool's declaration, in the form of OpenAI-style chat services and Qwen's chat template."""

Message = dict[str, str]
"""A chat message: ``role`` and ``content``."""


@dataclass(frozen=True)
class Action:
    """What one completion requests."""

    kind: Literal["command", "final", "malformed"]
    """``command``: run `commands`. ``final``: the agent is done. ``malformed``: run nothing, send `correction`."""
    commands: tuple[str, ...] = ()
    """One bash text per tool call, in order; empty unless the kind is ``command``."""
    text: str = ""
    """What the model wrote outside its calls and its thinking."""
    thinking: str = ""
    """The model's thinking, without the tags around it."""
    correction: str | None = None
    """For ``malformed``: what was wrong, where, and the right form with an example. None otherwise."""
    notes: tuple[str, ...] = ()
    """For ``command``: notes for the model, shown below the output; see `with_notes`."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as a model or a chat service wrote it."""

    name: str
    arguments: str
    """JSON text, possibly broken."""
    id: str = ""
    """The id that a chat service gave this call; its result refers to it."""

    @classmethod
    def of(cls, command: str) -> ToolCall:
        return cls(TOOL_NAME, json.dumps({TOOL_ARGUMENT: command}, ensure_ascii=False))


@dataclass(frozen=True)
class ModelTurn:
    """One turn of a model, independent of any dialect. The text is never parsed for calls."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        """Text and calls for people to read."""
        return "\n".join(filter(None, [self.text, *(f"{call.name} {call.arguments}" for call in self.calls)]))


def with_notes(outputs: Sequence[str], notes: Sequence[str]) -> list[str]:
    """The outputs of one action, with its notes below the last as lines that start with ``[note]``."""
    if not notes:
        return list(outputs)
    *others, last = outputs or [""]
    separator = "\n" if last and not last.endswith("\n") else ""
    return [*others, last + separator + "\n".join(f"[note] {note}" for note in notes)]


ANSWERED = "[not run; see the results above]"
"""The reply to calls of a turn that were not run."""


def reply_texts(action: Action, outputs: Sequence[str], calls: int) -> list[str]:
    """The replies to a turn of a model with native tool calls: one text for each call, at least one.

    `outputs` are those of the commands that were run. Calls beyond these are answered with `ANSWERED`.
    """
    texts = list(outputs) if action.kind == "command" else with_notes([action.correction or ""], action.notes)
    if len(texts) > max(calls, 1):
        texts = ["\n".join(texts)]
    return [*texts, *[ANSWERED] * (calls - len(texts))]


Kind = Literal["thinking", "text", "call"]
_BLANKS = " \t\n\r\x0b\x0c"


@dataclass(frozen=True)
class Part:
    """One part of a turn. Offsets in the turn count characters during parsing, and bytes on the token side."""

    kind: Kind
    body: str
    """The text, with lone surrogates for bytes that are not UTF-8. For a call, its arguments in JSON."""
    place: int
    """Offset of the body."""
    opens: tuple[int, int] | None = None
    """Begin and end of the framing that determines the kind; None if only the body's first token does, or if the prompt
    determined it."""
    ends: int | None = None
    """Offset after the framing that ends the part; None if it was cut off, or if only the next part ends it."""
    stops: bool = False
    """Whether this framing also ends the turn."""
    raw: bool = False
    """For a call: whether the body is the unescaped command instead of the arguments in JSON."""

    @property
    def data(self) -> bytes:
        return self.body.encode("utf-8", "surrogateescape")

    def stripped(self) -> Iterator[Part]:
        """Yield the part without surrounding white space; nothing if it is blank."""
        if inner := self.body.strip(_BLANKS):
            yield replace(self, body=inner, place=self.place + self.body.index(inner))

    def at(self, offset: Callable[[int], int]) -> Part:
        """The part with a function applied to each of its offsets."""
        opens = None if self.opens is None else (offset(self.opens[0]), offset(self.opens[1]))
        ends = None if self.ends is None else offset(self.ends)
        return replace(self, place=offset(self.place), opens=opens, ends=ends)


class Phrase(NamedTuple):
    """A part to be written."""

    kind: Kind
    text: str
    """For a call, its arguments in JSON."""
    tool: str = TOOL_NAME


def phrases_of(turn: ModelTurn) -> list[Phrase]:
    """A turn's parts in the order in which models write them."""
    prose = [Phrase("thinking", turn.thinking), Phrase("text", turn.text)]
    calls = [Phrase("call", call.arguments, call.name) for call in turn.calls]
    return [*(phrase for phrase in prose if phrase.text), *calls]


@dataclass(frozen=True)
class Frame:
    """The pieces that a dialect writes around a part's body."""

    before: Sequence[Piece] = ()
    after: Sequence[Piece] = ()
    opens: tuple[int, int] | None = None
    """Begin and end, in `before`, of the pieces that determine the kind; see `Part.opens`."""
    ends: int = 0
    """Number of pieces of `after` that end the part; 0 if only the next part ends it."""
    stops: bool = False
    """Whether these also end the turn."""


def text_until(pieces: Iterator[Piece], ends: Sequence[Control]) -> tuple[str, Control | None]:
    """Consume the pieces up to the next control token of `ends`. Returns their text, and that token if there is one."""
    text: list[str] = []
    for piece in pieces:
        if isinstance(piece, Control) and piece in ends:
            return "".join(text), piece
        text.append(piece)
    return "".join(text), None


def between(pieces: Iterable[Piece], begin: Control, ends: Sequence[Control]) -> list[str]:
    """The texts between each `begin` token and the next token of `ends`."""
    rest = iter(pieces)
    found: list[str] = []
    while text_until(rest, [begin])[1] is not None:
        text, end = text_until(rest, ends)
        found += [text] if end is not None else []
    return found
