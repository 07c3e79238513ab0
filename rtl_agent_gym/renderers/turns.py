"""A turn as parts: what is thought, said and called, and where each part stands in the turn.

Every dialect reads a turn into parts and writes parts as a turn. What the framing between them decides, each part says
about itself: where the framing begins it, where it ends it, and whether the turn stops there. With that, one model's
turn can be written in another's dialect and compared with it token by token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal, NamedTuple

from rtl_agent_gym.renderers.codec import Control, Piece
from rtl_agent_gym.renderers.protocol import TOOL_NAME, ModelTurn

Kind = Literal["thinking", "text", "call"]

_BLANKS = " \t\n\r\x0b\x0c"


@dataclass(frozen=True)
class Part:
    """One part of a turn. Offsets count from the beginning of the turn: in characters while it is read, in bytes in
    what a renderer's token side gives.
    """

    kind: Kind
    body: str
    """As it stands, bytes that are not UTF-8 as lone surrogates. The body of a call is its arguments, in JSON."""
    place: int
    """Where the body begins."""
    opens: tuple[int, int] | None = None
    """Begin and end of the framing that decides to say something of this kind; None where nothing but its first token
    does, or where it was decided by the prompt."""
    ends: int | None = None
    """Behind the framing that ends it; None where it was cut off, or where it ends only as another part begins."""
    stops: bool = False
    """Whether the turn stops with that."""

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
        """The part without the white space around it; nothing when there is nothing else."""
        if inner := self.body.strip(_BLANKS):
            yield replace(self, body=inner, place=self.place + self.body.index(inner))

    def at(self, offset: Callable[[int], int]) -> Part:
        """The part with each of its offsets put through a function."""
        opens = None if self.opens is None else (offset(self.opens[0]), offset(self.opens[1]))
        ends = None if self.ends is None else offset(self.ends)
        return replace(self, place=offset(self.place), opens=opens, ends=ends)


def byte_offsets(text: str) -> Callable[[int], int]:
    """From offsets in characters to offsets in bytes of UTF-8 with ``surrogateescape``."""
    if text.isascii():
        return lambda offset: offset
    return list(accumulate(map(_width, text), initial=0)).__getitem__


def _width(char: str) -> int:
    return 1 if char < "\x80" or "\udc80" <= char <= "\udcff" else len(char.encode())


class Phrase(NamedTuple):
    """A part that is to be written."""

    kind: Kind
    text: str
    """For a call its arguments, in JSON."""
    tool: str = TOOL_NAME


def phrases_of(turn: ModelTurn) -> list[Phrase]:
    """A turn's parts in the order in which models say them."""
    said = [Phrase("thinking", turn.thinking), Phrase("text", turn.text)]
    called = [Phrase("call", call.arguments, call.name) for call in turn.calls]
    return [*(phrase for phrase in said if phrase.text), *called]


@dataclass
class TurnWriter:
    """Collects the pieces of a turn, and which of them belong to which part."""

    pieces: list[Piece] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """Their offsets count pieces."""

    def add(self, *pieces: Piece) -> tuple[int, int]:
        """Add framing; gives where it begins and ends."""
        begin = len(self.pieces)
        self.pieces += pieces
        return begin, len(self.pieces)

    def say(self, kind: Kind, text: str, opens: tuple[int, int] | None) -> None:
        """Add the body of a part."""
        self.parts.append(Part(kind, text, self.add(text)[0], opens))

    def end(self, mark: Control, *, stops: bool = False) -> None:
        """Add the control token that ends the last part, and the turn where it `stops`; a thought has an end before."""
        behind = self.add(mark)[1]
        if self.parts and not (stops and self.parts[-1].kind == "thinking"):
            self.parts[-1] = replace(self.parts[-1], ends=behind, stops=stops)

    def located(self, spell: Callable[[Piece], bytes]) -> Iterator[Part]:
        """The parts as a vocabulary spells them, their offsets in bytes."""
        spelled = [spell(piece) for piece in self.pieces]
        edges = list(accumulate(map(len, spelled), initial=0))
        for part in self.parts:
            yield replace(part.at(edges.__getitem__), body=spelled[part.place].decode("utf-8", "surrogateescape"))


def kinds_of(parts: Iterable[Part], starts: Sequence[int]) -> list[Kind | None]:
    """The kind of each token by the byte at which it starts; None outside the parts."""
    found: list[Kind | None] = [None] * len(starts)
    for part in parts:
        first, behind = (bisect_left(starts, edge) for edge in (part.place, part.place + len(part.data)))
        found[first:behind] = [part.kind] * (behind - first)
    return found


def between(pieces: Iterable[Piece], begin: Control, ends: Sequence[Control]) -> list[str]:
    """The texts between one control token and the next of some others."""
    found: list[str] = []
    run: list[str] | None = None
    for piece in pieces:
        mark = piece if isinstance(piece, Control) else None
        if run is None:
            run = [] if mark == begin else None
        elif mark in ends:
            found.append("".join(run))
            run = None
        else:
            run.append(piece)
    return found
