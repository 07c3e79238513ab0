"""Qwen's turns, taken apart and put together."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from ..renderers import TOOL_NAME, Renderer
from ..renderers.codec import Control, Piece
from ..renderers.qwen import (
    CALL_CLOSE,
    CALL_OPEN,
    END,
    RESPONSE_CLOSE,
    RESPONSE_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    QwenRenderer,
)
from .dialects import Content, Framed, Kind, runs_between, stripped, text_of

_ARGUMENTS = re.compile(r'"(?:arguments|args)"\s*:\s*')


class QwenDialect:
    """See `Dialect`."""

    def __init__(self, renderer: QwenRenderer) -> None:
        self.renderer: Renderer = renderer
        self._codec = renderer.codec
        self.thinks = renderer.name == "qwen3"
        self._marks = {
            self._codec.control(text): text for text in (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE, END)
        }

    def token_bytes(self, id_: int) -> bytes:
        """See `Dialect.token_bytes`."""
        return self._codec.decode([id_]).encode("utf-8", "surrogateescape")

    def kinds(self, ids: Sequence[int]) -> list[Kind | None]:
        """See `Dialect.kinds`."""
        found: list[Kind | None] = []
        kind: Kind = "thinking" if (unopened := self._thinks_from_the_start(ids)) else "text"
        for id_ in ids:
            mark = self._marks.get(id_)
            if mark is None or self._within_thinking(kind, unopened, mark):
                found.append(kind)
            else:
                found.append(None)
                unopened, kind = False, _begun_by(mark)
        return found

    def contents(self, ids: Sequence[int]) -> list[Content]:
        """See `Dialect.contents`."""
        found: list[Content] = []
        kind: Kind = "thinking" if (unopened := self._thinks_from_the_start(ids)) else "text"
        opens: tuple[int, int] | None = None
        run, start, place = b"", 0, 0

        def close(mark: str | None, behind: int) -> None:
            ends = behind if mark is not None and mark == _ENDS[kind] else None
            whole = Content(kind, run, start, opens, ends, stops=mark == END and ends is not None)
            here = list(_arguments(whole) if kind == "call" else stripped(whole))
            after_call = bool(found) and found[-1].kind == "call" and found[-1].ends == start
            if mark == END and not here and after_call:
                found[-1] = replace(found[-1], ends=behind, stops=True)
            found.extend(here)

        for id_ in ids:
            data = self.token_bytes(id_)
            mark = self._marks.get(id_)
            if mark is None or self._within_thinking(kind, unopened, mark):
                run += data
            else:
                close(mark, place + len(data))
                unopened, kind = False, _begun_by(mark)
                opens = (place, place + len(data)) if mark in (THINK_OPEN, CALL_OPEN) else None
                run, start = b"", place + len(data)
            place += len(data)
        close(None, place)
        return found

    def frame(self, contents: Sequence[Content]) -> Framed:
        """See `Dialect.frame`. A dialect that does not think says in plain text what was thought."""
        made = _Builder(self)
        for number, content in enumerate(contents):
            last = number + 1 == len(contents)
            if content.kind == "call":
                opens = made.add(CALL_OPEN)
                made.add(f'\n{{"name": "{TOOL_NAME}", "arguments": ')
                made.say(content, "call", opens)
                made.add("}\n")
                made.end(CALL_CLOSE)
            elif content.kind == "thinking" and self.thinks:
                opens = made.add(THINK_OPEN)
                made.add("\n")
                made.say(content, "thinking", opens)
                made.add("\n")
                made.end(THINK_CLOSE)
                made.add("\n\n")
                continue
            else:
                made.say(content, "text", None)
            if not last:
                made.add("\n")
        made.end(END, stops=True)
        return Framed(self._codec.encode(made.pieces), made.contents)

    def spelled(self, text: str) -> bytes:
        """The bytes of the tokens that a text becomes: the vocabulary normalises (NFC) before it looks up."""
        return self._codec.decode(self._codec.encode([text])).encode("utf-8", "surrogateescape")

    def instead_of_text(self, first: bool) -> list[int]:
        """See `Dialect.instead_of_text`."""
        marks = [CALL_OPEN, THINK_OPEN] if first and self.thinks else [CALL_OPEN]
        return [self._codec.control(mark) for mark in marks]

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """See `Dialect.outputs`."""
        begin, end = self._codec.control(RESPONSE_OPEN), self._codec.control(RESPONSE_CLOSE)
        texts = [self._codec.decode(run) for run in runs_between(ids, {begin}, {end})]
        return [text.removeprefix("\n").removesuffix("\n") for text in texts]

    def _within_thinking(self, kind: Kind, unopened: bool, mark: str) -> bool:
        """Whether a control token is part of what is thought, as the renderer reads it: thinking goes on to its end."""
        return mark != THINK_CLOSE if unopened else kind == "thinking" and mark not in (THINK_CLOSE, END)

    def _thinks_from_the_start(self, ids: Sequence[int]) -> bool:
        """Whether the turn closes a thinking that it did not open: the opening was part of the prompt."""
        marks = (self._marks.get(id_) for id_ in ids)
        return next((mark for mark in marks if mark in (THINK_OPEN, THINK_CLOSE)), None) == THINK_CLOSE


_ENDS: dict[Kind, str] = {"thinking": THINK_CLOSE, "call": CALL_CLOSE, "text": END}


def _begun_by(mark: str) -> Kind:
    return "thinking" if mark == THINK_OPEN else "call" if mark == CALL_OPEN else "text"


class _Builder:
    """Pieces of a turn, and where its contents stand in it."""

    def __init__(self, dialect: QwenDialect) -> None:
        self.pieces: list[Piece] = []
        self.contents: list[Content | None] = []
        self._dialect = dialect
        self._size = 0

    def add(self, piece: Piece) -> tuple[int, int]:
        """A piece of framing; gives where it begins and ends."""
        begin = self._size
        self.pieces.append(piece)
        self._size += len(piece.encode() if isinstance(piece, Control) else self._dialect.spelled(piece))
        return begin, self._size

    def say(self, content: Content, kind: Kind, opens: tuple[int, int] | None) -> None:
        """A content, in place of what cannot be said a replacement character."""
        text = text_of(content)
        begin, _ = self.add(content.data.decode("utf-8", "replace") if text is None else text)
        data = None if text is None else self._dialect.spelled(text)
        self.contents.append(None if data is None else Content(kind, data, begin, opens))

    def end(self, mark: Control, stops: bool = False) -> None:
        """A control token that ends the last content; the turn's end does so for all but thinking."""
        _, behind = self.add(mark)
        last = self.contents[-1] if self.contents else None
        if last is not None and not (stops and last.kind == "thinking"):
            self.contents[-1] = replace(last, ends=behind, stops=stops)


def _arguments(call: Content) -> list[Content]:
    """The arguments' object in the JSON of a call."""
    text = call.data.decode("utf-8", "surrogateescape")
    found = _ARGUMENTS.search(text)
    if found is None:
        return []
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, found.end())
    except (ValueError, RecursionError):
        return []
    before = len(text[: found.end()].encode("utf-8", "surrogateescape"))
    data = text[found.end() : end].encode("utf-8", "surrogateescape")
    return [replace(call, data=data, place=call.place + before)]
