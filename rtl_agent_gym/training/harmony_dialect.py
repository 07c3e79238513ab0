"""gpt-oss's turns, taken apart and put together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..renderers import TOOL_NAME, Renderer
from ..renderers.codec import Control, Piece
from ..renderers.gpt_oss import GptOssRenderer
from ..renderers.vocabularies import harmony_encoding
from .dialects import Content, Framed, Kind, runs_between, stripped, text_of

START, CHANNEL, CONSTRAIN, BODY = (
    Control(name) for name in ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>")
)
END, CALL, RETURN = (Control(name) for name in ("<|end|>", "<|call|>", "<|return|>"))

_DECISION = re.compile(rb"[a-z]+(?:\s+to(?==))?")


class HarmonyDialect:
    """See `Dialect`."""

    def __init__(self, renderer: GptOssRenderer) -> None:
        self.renderer: Renderer = renderer
        self.thinks = True
        self._encoding = harmony_encoding()
        controls = (START, CHANNEL, CONSTRAIN, BODY, END, CALL, RETURN)
        self._ids = {name: self._encoding.encode(name, allowed_special={name})[0] for name in controls}
        self._names = {id_: name for name, id_ in self._ids.items()}
        self._bytes: dict[int, bytes] = {}

    def token_bytes(self, id_: int) -> bytes:
        """See `Dialect.token_bytes`."""
        if id_ not in self._bytes:
            self._bytes[id_] = bytes(self._encoding._inner.decode_bytes([id_]))
        return self._bytes[id_]

    def kinds(self, ids: Sequence[int]) -> list[Kind | None]:
        """See `Dialect.kinds`."""
        found: list[Kind | None] = []
        header, kind = b"", None
        for id_ in ids:
            name = self._names.get(id_)
            if name == BODY and kind is None:
                kind = _kind(header)
                found.append(None)
            elif name in (END, CALL, RETURN):
                header, kind = b"", None
                found.append(None)
            else:
                header += b"" if kind else self.token_bytes(id_)
                found.append(kind)
        return found

    def contents(self, ids: Sequence[int]) -> list[Content]:
        """See `Dialect.contents`."""
        found: list[Content] = []
        message: _Message | None = None
        header, begun, place = b"", 0, 0
        for id_ in ids:
            data, name = self.token_bytes(id_), self._names.get(id_)
            place += len(data)
            if name == BODY and message is None:
                message = _Message(_kind(header), place, _opens(header, begun, place))
            elif name in (END, CALL, RETURN):
                if message is not None:
                    found += message.content(place, stops=name != END)
                header, begun, message = b"", place, None
            elif message is not None:
                message.body += data
            else:
                header += data
        if message is not None:
            found += message.content(None)
        return found

    def frame(self, contents: Sequence[Content]) -> Framed:
        """See `Dialect.frame`."""
        made = _Builder()
        for number, content in enumerate(contents):
            last = number + 1 == len(contents)
            if number:
                made.add(START)
                made.add("assistant")
            made.add(CHANNEL)
            if content.kind == "call":
                opens = made.add("commentary to")
                for piece in (f"=functions.{TOOL_NAME} ", CONSTRAIN, "json", BODY):
                    made.add(piece)
                made.say(content, opens)
                made.end(CALL, stops=last)
                continue
            channel = "analysis" if content.kind == "thinking" else "final" if last else "commentary"
            begin, end = made.add(channel)
            _, body = made.add(BODY)
            made.say(content, (begin, body if channel == "commentary" else end))
            stops = last and content.kind == "text"
            made.end(RETURN if stops else END, stops=stops)
        return Framed(self._encode(made.pieces), made.contents)

    def instead_of_text(self, first: bool) -> list[int]:
        """See `Dialect.instead_of_text`. Here each text has its channel's name before it."""
        return []

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """See `Dialect.outputs`."""
        runs = runs_between(ids, {self._ids[BODY]}, {self._ids[name] for name in (END, CALL, RETURN)})
        return [b"".join(map(self.token_bytes, run)).decode("utf-8", "replace") for run in runs]

    def _encode(self, pieces: Sequence[Piece]) -> list[int]:
        ids: list[int] = []
        text = ""
        for piece in [*pieces, Control("")]:
            if not isinstance(piece, Control):
                text += piece
                continue
            ids += self._encoding.encode(text, disallowed_special=()) if text else []
            ids += [self._ids[piece]] if piece else []
            text = ""
        return ids


@dataclass
class _Message:
    """A message whose body is being read."""

    kind: Kind
    start: int
    opens: tuple[int, int] | None
    body: bytes = b""

    def content(self, ends: int | None, stops: bool = False) -> list[Content]:
        return list(stripped(Content(self.kind, self.body, self.start, self.opens, ends, stops)))


class _Builder:
    """Pieces of a turn, and where its contents stand in it."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.contents: list[Content | None] = []
        self._size = 0

    def add(self, piece: Piece) -> tuple[int, int]:
        """A piece of framing; gives where it begins and ends."""
        begin = self._size
        self.pieces.append(piece)
        self._size += len(piece.encode())
        return begin, self._size

    def say(self, content: Content, opens: tuple[int, int]) -> None:
        """A content, in place of what cannot be said a replacement character."""
        text = text_of(content)
        begin, _ = self.add(content.data.decode("utf-8", "replace") if text is None else text)
        self.contents.append(None if text is None else Content(content.kind, content.data, begin, opens))

    def end(self, mark: Control, stops: bool) -> None:
        """The control token that ends the last content."""
        _, behind = self.add(mark)
        last = self.contents[-1]
        if last is not None:
            self.contents[-1] = replace(last, ends=behind, stops=stops)


def _kind(header: bytes) -> Kind:
    return "call" if b"to=" in header else "thinking" if b"analysis" in header else "text"


def _opens(header: bytes, begun: int, body: int) -> tuple[int, int] | None:
    """Where a header decides what its message is.

    That is the channel's name, with the recipient's ``to`` behind it for a call, and with ``<|message|>`` behind it for
    a commentary, which could have been a call. A recipient before the channel has decided already.

    Args:
        header: Its bytes, up to ``<|message|>``.
        begun: Where it begins in the turn.
        body: Where its body begins.
    """
    before, mark, after = header.partition(CHANNEL.encode())
    if b"to=" in before:
        at = begun + before.index(b"to=")
        return at, at + len(b"to")
    name = _DECISION.match(after)
    if not mark or name is None:
        return None
    at = begun + len(before) + len(mark)
    return at, body if name[0] == b"commentary" else at + name.end()
