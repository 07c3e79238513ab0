"""A turn as parts: thinking, text and calls, with their positions in the turn.

Every dialect parses a turn into parts and writes parts as a turn. Each part also records where its framing (tags,
headers) opens and ends it, and whether the turn stops there. So one model's turn can be written in another's dialect
and compared with it token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from .codec import Control, Piece
from .protocol import TOOL_NAME, ModelTurn

Kind = Literal["thinking", "text", "call"]

_BLANKS = " \t\n\r\x0b\x0c"


@dataclass(frozen=True)
class Part:
    """One part of a turn.

    Offsets count from the beginning of the turn: characters while it is parsed, bytes in results of a renderer's token
    side.
    """

    kind: Kind
    body: str
    """The text, with bytes that are not UTF-8 as lone surrogates. For a call, its arguments in JSON."""
    place: int
    """Offset of the body."""
    opens: tuple[int, int] | None = None
    """Begin and end of the framing that determines the kind; None if only the body's first token does, or if the prompt
    determined it."""
    ends: int | None = None
    """Offset after the framing that ends it; None if it was cut off, or if only the next part ends it."""
    stops: bool = False
    """Whether this framing also ends the turn."""

    @property
    def data(self) -> bytes:
        """The body in bytes."""
        return self.body.encode("utf-8", "surrogateescape")

    @property
    def readable(self) -> bool:
        """Whether the body is UTF-8."""
        try:
            self.body.encode()
        except UnicodeEncodeError:
            return False
        return True

    def stripped(self) -> Iterator[Part]:
        """The part without the white space around it; nothing if it is blank."""
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
    """Begin and end in `before` of what determines the kind; see `Part.opens`."""
    ends: int = 0
    """How many pieces of `after` end the part; 0 if only the next part ends it."""
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
