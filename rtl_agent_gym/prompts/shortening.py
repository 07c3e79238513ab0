"""Shorten a long prompt to its token budget, and mark in it what was left out.

A prompt consists of passages: a task, a document, a source file. Some parts are required whatever their length: the
beginning of each passage, every section on the interface (ports, parameters, signals), and the headers of modules. The
rest is left out from the end to the beginning, paragraph by paragraph, and a line in its place tells how much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from ..errors import UsageError

MARKER = "left out to fit the prompt"
"""In every line that replaces text that was left out."""

_HEADING = re.compile(r"^ {0,3}(?P<level>#{1,6})\s+(?P<title>.+?)\s*#*\s*$|^\*\*(?P<bold>[^*]+)\*\*:?\s*$")
_INTERFACE = re.compile(
    r"interface|\bports?\b|parameter|\bsignals?\b|\bi/?o\b|\binputs?\b|\boutputs?\b|\bpins?\b"
    r"|\bmodule (name|header|decl)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_MODULE = re.compile(
    r"^\s*(?:module|macromodule|interface)\s+(?:(?:static|automatic)\s+)?\w+\s*(?:[(;#]|//|/\*|import\b|$)"
)
_COMMENT = re.compile(r"(?<!:)//.*|/\*.*?(\*/|$)")
_GOES_ON = re.compile(r"\s*(?:\(|//|/\*|`|$)")
"""How a module's header goes on after its parameters and an empty line."""
_LONGEST = 2_000
"""Upper bound on the characters of a piece."""


@dataclass(frozen=True)
class Piece:
    """Consecutive lines that are kept or left out together."""

    text: str
    kept: bool
    """Whether it must stay."""
    title: str
    """Heading of its section; empty before the first heading."""


@dataclass(frozen=True)
class Fitted:
    """Passages that fit their budget."""

    passages: list[str]
    cut: tuple[str, ...]
    """The lines that replace text that was left out."""


def fit_passages(passages: Sequence[str], measure: Callable[[Sequence[str]], int], limit: int) -> Fitted | None:
    """Shorten passages until the prompt made of them has at most `limit` tokens.

    Args:
        passages: Texts, the most important first; cuts begin at the end of the last.
        measure: Counts the tokens of the prompt made of the passages it is given.
        limit: Tokens that the prompt may have.

    Returns:
        The passages, shortened if needed; None if the required parts do not fit.

    Raises:
        UsageError: `limit` is not positive.
    """
    if limit <= 0:
        raise UsageError(f"a prompt cannot have at most {limit} tokens; give a positive number, or None for no limit")
    if measure(passages) <= limit:
        return Fitted(list(passages), ())
    split = [split_pieces(text) for text in passages]
    loose = [(i, j) for i, pieces in enumerate(split) for j, piece in enumerate(pieces) if not piece.kept]

    def tokens(left_out: int) -> int:
        return measure(_without(split, set(loose[len(loose) - left_out :])))

    def bisect(steps: Sequence[int]) -> tuple[int, int]:
        """Two neighbours: with the second number of pieces left out it fits, with the first it does not."""
        low, high = 0, len(steps) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if tokens(steps[middle]) <= limit else (middle, high)
        return steps[low], steps[high]

    if not loose or tokens(len(loose)) > limit:
        return None
    # First passage by passage, since the line that marks a cut costs tokens too.
    few, many = bisect([0, *accumulate(sum(not piece.kept for piece in pieces) for pieces in reversed(split))])
    _, many = bisect(range(few, many + 1))
    shortened = _without(split, set(loose[len(loose) - many :]))
    cut = tuple(line for text in shortened for line in text.splitlines() if MARKER in line)
    return Fitted(shortened, cut)


def split_pieces(text: str) -> list[Piece]:
    """Split a text into pieces; joined, they are the text again."""
    pieces: list[Piece] = []
    block: list[str] = []
    titles: dict[int, str] = {}  # the headings above a line, by level
    fence, size, header, opened, depth, commented, blank = "", 0, False, False, 0, False, False

    def close() -> None:
        nonlocal size
        if block:
            kept = not pieces or header or any(map(_INTERFACE.search, titles.values()))
            pieces.append(Piece("".join(block), kept, next(reversed(titles.values()), "")))
            block.clear()
            size = 0

    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        heading = None if fence or mark else _HEADING.match(line)
        stops = heading or mark or (blank and not _GOES_ON.match(line))
        if header and opened and depth <= 0 and not commented and stops:
            close()  # it was prose: after the parentheses of a header is a semicolon
            header = False
        begins = not header and _MODULE.match(line) is not None
        if heading or begins:
            close()
        if heading:
            level = len(heading["level"] or "#" * 7)
            titles = {above: title for above, title in titles.items() if above < level}
            titles[level] = heading["title"] or heading["bold"]
        if begins:
            header, opened, depth, commented = True, False, 0, False
        if header:
            opened = opened or "(" in line or "#" in line
            code, commented = _code(line, commented)
            depth += code.count("(") - code.count(")")
        if mark:
            fence = "" if fence and line.strip().startswith(fence) else fence or mark[1]
        for start in range(0, len(line), _LONGEST):
            block.append(line[start : start + _LONGEST])
            size += len(block[-1])
            if size >= _LONGEST and not header:
                close()
        blank = not line.strip()
        if header and (";" in line or (blank and not opened)):  # the end of a module's header; or it was prose
            close()
            header = False
        elif blank and not fence and not header:
            close()
    close()
    return pieces


def _code(line: str, commented: bool) -> tuple[str, bool]:
    """A line without comments, and whether the next line begins within one, as this line does if `commented`."""
    if commented:
        _, ended, line = line.partition("*/")
        if not ended:
            return "", True
    comments = list(_COMMENT.finditer(line))
    return _COMMENT.sub("", line), bool(comments) and comments[-1][1] == ""


def _without(split: Sequence[Sequence[Piece]], removed: set[tuple[int, int]]) -> list[str]:
    """The passages without the pieces at these places (passage, piece), each run of them replaced by a line."""
    texts = []
    for i, pieces in enumerate(split):
        out = ""
        for left_out, run in groupby(enumerate(pieces), key=lambda item, i=i: (i, item[0]) in removed):  # type: ignore[misc]
            members = [piece for _, piece in run]
            text = "".join(piece.text for piece in members)
            line = _marker(members, len(text), out) if left_out else text
            out += min(line, text, key=len)  # so a cut never makes it longer
        texts.append(out)
    return texts


def _marker(pieces: Sequence[Piece], characters: int, before: str) -> str:
    """The line that replaces pieces, after the text `before`."""
    titles = list(dict.fromkeys(piece.title for piece in pieces if piece.title))
    of = f" of {', '.join(repr(title) for title in titles[:4])}{' and more' * (len(titles) > 4)}" if titles else ""
    start = "" if not before or before.endswith("\n") else "\n"
    return f"{start}[{characters:,} characters{of} {MARKER}]\n"
