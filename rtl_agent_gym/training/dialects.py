"""What a turn says, apart from how a dialect frames it: to put one model's turn into another's words.

A turn is taken apart into contents (thinking, text, the JSON arguments of a call), each a run of bytes, and put
together anew in the other dialect around the very same bytes. Framing, that is control tokens, headers and the JSON
around the arguments, belongs to the dialect. But it also takes decisions that every dialect takes: to begin a content
of some kind, to end it, to stop the turn. Each content says where in its turn these are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import UsageError
from ..renderers import Renderer
from ..renderers.gpt_oss import GptOssRenderer
from ..renderers.qwen import QwenRenderer

Kind = Literal["thinking", "text", "call"]
"""Of a content, or of a token in one; the content of a call is its arguments."""


@dataclass(frozen=True)
class Content:
    """A run of bytes that a turn says. All offsets are bytes from the beginning of the turn."""

    kind: Kind
    data: bytes
    place: int
    """Where it begins."""
    opens: tuple[int, int] | None = None
    """Begin and end of the framing that decides to say something of this kind; None where nothing but its first token
    does, or where it was decided by the prompt."""
    ends: int | None = None
    """Behind the framing that ends it; None where it was cut off, or where it ends only as another content begins."""
    stops: bool = False
    """Whether the turn stops with that."""


@dataclass(frozen=True)
class Framed:
    """A turn in a dialect's words."""

    ids: list[int]
    contents: list[Content | None]
    """Each content as it stands there, in the bytes that the vocabulary makes of it; None where it cannot say it."""


class Dialect(Protocol):
    """One model's side."""

    renderer: Renderer
    thinks: bool
    """Whether a turn may begin with thinking."""

    def token_bytes(self, id_: int) -> bytes:
        """What a token spells; a control token its name."""
        ...

    def contents(self, ids: Sequence[int]) -> list[Content]:
        """What a sampled turn says."""
        ...

    def kinds(self, ids: Sequence[int]) -> list[Kind | None]:
        """The kind of each token of a sampled turn; None for control tokens and headers."""
        ...

    def frame(self, contents: Sequence[Content]) -> Framed:
        """A turn that says this."""
        ...

    def instead_of_text(self, first: bool) -> list[int]:
        """The tokens that a model would write where it begins a text without a token that says so.

        Args:
            first: Whether the text would be the first content of its turn.
        """
        ...

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """The texts that went back to the model in ids appended by the renderer."""
        ...


def dialect_of(renderer: Renderer) -> Dialect:
    """The dialect of a renderer that has its vocabulary. Raises `UsageError` for an unknown family."""
    from .harmony_dialect import HarmonyDialect
    from .qwen_dialect import QwenDialect

    if isinstance(renderer, QwenRenderer):
        return QwenDialect(renderer)
    if isinstance(renderer, GptOssRenderer):
        return HarmonyDialect(renderer)
    raise UsageError(f"the turns of renderer {renderer.name!r} cannot be put into another dialect")


def stripped(content: Content) -> Iterator[Content]:
    """The content without the white space around it; nothing when there is nothing else."""
    inner = content.data.strip()
    if inner:
        place = content.place + content.data.index(inner)
        yield Content(content.kind, inner, place, content.opens, content.ends, content.stops)


def text_of(content: Content) -> str | None:
    """The content as text; None when it is not UTF-8."""
    try:
        return content.data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def runs_between(ids: Sequence[int], begins: set[int], ends: set[int]) -> list[list[int]]:
    """The runs of ids between one of `begins` and one of `ends`."""
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
