"""Fenced code blocks in a reply, and the shell commands among them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(r"^[ ]{0,3}(?P<marks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^`\n]*+)$")  # possessive: linear time
_SHELLS = {"bash", "sh", "shell"}


@dataclass(frozen=True)
class Fence:
    """One fenced block."""

    language: str
    """The first word after the opening marks, in lower case; empty if there is none."""
    body: str
    """The lines between the marks, without the last newline."""
    closed: bool

    @property
    def is_shell(self) -> bool:
        return self.language in _SHELLS


def read_fences(text: str) -> list[Fence]:
    """Every top-level fence in `text`, in order.

    As in Markdown, a fence ends at a line that holds only the same marks, at least as many. Everything before that
    line, other opening marks included, is its body.
    """
    fences: list[Fence] = []
    opening: re.Match[str] | None = None
    body: list[str] = []
    for line in text.split("\n"):  # not splitlines, which also splits at form feeds
        if opening is None:
            opening, body = _OPENING.match(line), []
        elif _closes(line, opening["marks"]):
            fences.append(_fence(opening, body, closed=True))
            opening = None
        else:
            body.append(line)
    if opening is not None:
        fences.append(_fence(opening, body, closed=False))
    return fences


def _closes(line: str, marks: str) -> bool:
    bare = line.rstrip(" \t\r")
    indent = len(bare) - len(bare.lstrip(" "))
    return indent <= 3 and len(bare) - indent >= len(marks) and not bare[indent:].strip(marks[0])


def _fence(opening: re.Match[str], body: list[str], *, closed: bool) -> Fence:
    words = opening["info"].split()
    if opening["info"].endswith("\r"):  # the text has CRLF line ends
        body = [line.removesuffix("\r") for line in body]
    return Fence(language=words[0].lower() if words else "", body="\n".join(body), closed=closed)
