"""What a turn says, apart from how a dialect frames it: to put one model's turn into another's words.

A turn is taken apart into contents (thinking, text, the JSON arguments of a call), each a run of bytes, and put
together anew in the other dialect around the very same bytes. Framing, that is control tokens, headers and the JSON
around the arguments, belongs to the dialect and has no counterpart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import UsageError
from ..renderers import TOOL_NAME, Renderer
from ..renderers.codec import Control
from ..renderers.gpt_oss import GptOssRenderer
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
from ..renderers.vocabularies import harmony_encoding

Kind = Literal["thinking", "text", "arguments"]

_ARGUMENTS = re.compile(r'"(?:arguments|args)"\s*:\s*')


@dataclass(frozen=True)
class Content:
    """A run of bytes that a turn says."""

    kind: Kind
    data: bytes
    place: int
    """Byte offset in the turn."""


@dataclass(frozen=True)
class Framed:
    """A turn in a dialect's words."""

    ids: list[int]
    places: list[int | None]
    """For each content, the byte offset in the turn at which it stands; None where its bytes are not there."""


class Dialect(Protocol):
    """One model's side."""

    renderer: Renderer

    def token_bytes(self, id_: int) -> bytes:
        """What a token spells; a control token its name."""
        ...

    def contents(self, ids: Sequence[int]) -> list[Content]:
        """What a sampled turn says."""
        ...

    def frame(self, contents: Sequence[Content]) -> Framed:
        """A turn that says this."""
        ...

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """The texts that went back to the model in ids appended by the renderer."""
        ...


def dialect_of(renderer: Renderer) -> Dialect:
    """The dialect of a renderer that has its vocabulary. Raises `UsageError` for an unknown family."""
    if isinstance(renderer, QwenRenderer):
        return QwenDialect(renderer)
    if isinstance(renderer, GptOssRenderer):
        return HarmonyDialect(renderer)
    raise UsageError(f"the turns of renderer {renderer.name!r} cannot be put into another dialect")


def _stripped(kind: Kind, data: bytes, place: int) -> Iterator[Content]:
    inner = data.strip()
    if inner:
        yield Content(kind, inner, place + data.index(inner))


def _text(content: Content) -> str | None:
    """The content as text; None when it is not UTF-8."""
    try:
        return content.data.decode("utf-8")
    except UnicodeDecodeError:
        return None


class _Builder:
    """Pieces of a turn, with the byte offset of each content."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.places: list[int | None] = []
        self._size = 0

    def add(self, *pieces: str) -> None:
        for piece in pieces:
            self.pieces.append(piece)
            self._size += len(piece.encode("utf-8"))

    def say(self, content: Content) -> None:
        text = _text(content)
        self.places.append(self._size if text is not None else None)
        self.add(content.data.decode("utf-8", "replace") if text is None else text)


class QwenDialect:
    """Qwen's turns."""

    def __init__(self, renderer: QwenRenderer) -> None:
        self.renderer: Renderer = renderer
        self._codec = renderer.codec
        self._thinks = renderer.name == "qwen3"
        self._frames = {
            self._codec.control(text): text for text in (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE, END)
        }

    def token_bytes(self, id_: int) -> bytes:
        """See `Dialect.token_bytes`."""
        return self._codec.decode([id_]).encode("utf-8", "surrogateescape")

    def contents(self, ids: Sequence[int]) -> list[Content]:
        """See `Dialect.contents`."""
        found: list[Content] = []
        state, run, start, place = "text", b"", 0, 0
        whole, opened = b"", False

        def close() -> None:
            if state == "call":
                found.extend(_arguments(run, start))
            else:
                found.extend(_stripped("thinking" if state == "thinking" else "text", run, start))

        for id_ in ids:
            data = self.token_bytes(id_)
            mark = self._frames.get(id_)
            if mark is None or (state == "thinking" and mark not in (THINK_CLOSE, END)):
                run += data
            else:
                if mark == THINK_CLOSE and not opened:  # as the prompt opened it, all up to here was thinking
                    found.clear()
                    state, run, start = "thinking", whole, 0
                opened = opened or mark in (THINK_OPEN, THINK_CLOSE)
                close()
                state = {THINK_OPEN: "thinking", CALL_OPEN: "call"}.get(mark, "text")
                run, start = b"", place + len(data)
            if not opened:
                whole += data
            place += len(data)
        close()
        return found

    def frame(self, contents: Sequence[Content]) -> Framed:
        """See `Dialect.frame`. A dialect that does not think says in plain text what was thought."""
        made = _Builder()
        for number, content in enumerate(contents):
            if content.kind == "arguments":
                made.add(CALL_OPEN, f'\n{{"name": "{TOOL_NAME}", "arguments": ')
                made.say(content)
                made.add("}\n", CALL_CLOSE)
            elif content.kind == "thinking" and self._thinks:
                made.add(THINK_OPEN, "\n")
                made.say(content)
                made.add("\n", THINK_CLOSE, "\n\n")
                continue
            else:
                made.say(content)
            if number + 1 < len(contents):
                made.add("\n")
        made.add(END)
        return Framed(self._codec.encode(made.pieces), made.places)

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """See `Dialect.outputs`."""
        begin, end = self._codec.control(RESPONSE_OPEN), self._codec.control(RESPONSE_CLOSE)
        texts = [self._codec.decode(run) for run in _between(ids, {begin}, {end})]
        return [text.removeprefix("\n").removesuffix("\n") for text in texts]


class HarmonyDialect:
    """gpt-oss's turns."""

    def __init__(self, renderer: GptOssRenderer) -> None:
        self.renderer: Renderer = renderer
        self._encoding = harmony_encoding()
        names = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
        self._ids = {name: self._encoding.encode(name, allowed_special={name})[0] for name in names}
        self._names = {id_: name for name, id_ in self._ids.items()}
        self._bytes: dict[int, bytes] = {}

    def token_bytes(self, id_: int) -> bytes:
        """See `Dialect.token_bytes`."""
        if id_ not in self._bytes:
            self._bytes[id_] = bytes(self._encoding._inner.decode_bytes([id_]))
        return self._bytes[id_]

    def contents(self, ids: Sequence[int]) -> list[Content]:
        """See `Dialect.contents`."""
        found: list[Content] = []
        header, body, start, place, in_body = b"", b"", 0, 0, False

        def close() -> None:
            if not in_body:
                return
            kind: Kind = "arguments" if b"to=" in header else "thinking" if b"analysis" in header else "text"
            found.extend(_stripped(kind, body, start))

        for id_ in ids:
            data, name = self.token_bytes(id_), self._names.get(id_)
            if name == "<|message|>" and not in_body:
                in_body, body, start = True, b"", place + len(data)
            elif name in ("<|end|>", "<|call|>", "<|return|>"):
                close()
                in_body, header = False, b""
            elif in_body:
                body += data
            else:
                header += data
            place += len(data)
        close()
        return found

    def frame(self, contents: Sequence[Content]) -> Framed:
        """See `Dialect.frame`."""
        made = _Builder()
        for number, content in enumerate(contents):
            last = number + 1 == len(contents)
            if number:
                made.add(Control("<|start|>"), "assistant")
            if content.kind == "arguments":
                made.add(Control("<|channel|>"), f"commentary to=functions.{TOOL_NAME} ", Control("<|constrain|>"))
                made.add("json", Control("<|message|>"))
                made.say(content)
                made.add(Control("<|call|>"))
                continue
            channel = "analysis" if content.kind == "thinking" else "final" if last else "commentary"
            made.add(Control("<|channel|>"), channel, Control("<|message|>"))
            made.say(content)
            made.add(Control("<|return|>") if last and content.kind == "text" else Control("<|end|>"))
        ids: list[int] = []
        text = ""
        for piece in [*made.pieces, Control("")]:
            if not isinstance(piece, Control):
                text += piece
                continue
            ids += self._encoding.encode(text, disallowed_special=()) if text else []
            ids += [self._ids[piece]] if piece else []
            text = ""
        return Framed(ids, made.places)

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """See `Dialect.outputs`."""
        ends = {self._ids[name] for name in ("<|end|>", "<|call|>", "<|return|>")}
        runs = _between(ids, {self._ids["<|message|>"]}, ends)
        return [b"".join(map(self.token_bytes, run)).decode("utf-8", "replace") for run in runs]


def _arguments(call: bytes, place: int) -> Iterator[Content]:
    """The arguments' object in the JSON of a call."""
    text = call.decode("utf-8", "surrogateescape")
    found = _ARGUMENTS.search(text)
    if found is None:
        return
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, found.end())
    except ValueError:
        return
    before = len(text[: found.end()].encode("utf-8", "surrogateescape"))
    yield Content("arguments", text[found.end() : end].encode("utf-8", "surrogateescape"), place + before)


def _between(ids: Sequence[int], begins: set[int], ends: set[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    current: list[int] | None = None
    for id_ in ids:
        if current is None:
            current = [] if id_ in begins else None
        elif id_ in ends:
            runs.append(current)
            current = None
        else:
            current.append(id_)
    return runs
