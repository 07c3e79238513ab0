"""Bounds the bytes of a report without losing a verdict.

The outcome of each test, and the fact that there was a violation, are always reported, since only the harness
determines the number of such messages. A design can only make text long: complaints about it, and the services' output.
A fixed number of bytes of text is kept per grading, for any number of simulations.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
import zlib
from collections.abc import Sequence
from typing import Any

from .messages import Message, ProcessReport, Report

TEXTS = 500_000
"""Maximum encoded bytes of complaints that are kept, for all simulations together."""
LOGS = 1_000_000
"""Maximum encoded bytes of output that are kept, for all services together."""
PLAIN = 1_000_000
"""Bytes above which a report is sent compressed."""
HEAD, TAIL = 16_000, 48_000
"""Bytes kept of a service's output."""
MORE = "?: and more complaints than a report holds"


def lift() -> None:
    """Remove the limits on output, for tests."""
    global HEAD, LOGS, PLAIN
    HEAD = LOGS = PLAIN = sys.maxsize


class Log:
    """The head and the tail of an output."""

    def __init__(self) -> None:
        self.head, self.tail, self.size = b"", b"", 0

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        free = HEAD - len(self.head)
        self.head += data[:free]
        self.tail = (self.tail + data[free:])[-TAIL:]

    def text(self) -> str:
        """The kept output, with a line in place of the dropped part."""
        cut = self.size - len(self.head) - len(self.tail)
        gap = f"\n… {cut} bytes left out …\n".encode() if cut else b""
        return (self.head + gap + self.tail).decode("utf-8", errors="replace")


class Complaints:
    """Complaints of guards about a design, without repetitions, until the space for them is used up."""

    def __init__(self) -> None:
        self.left = TEXTS
        self.known: set[str] = set()

    def fit(self, message: Message) -> Message:
        """The message with only its new complaints; `MORE` replaces those that do not fit."""
        kept: Any = dict(message)
        for name in ("violations", "refusals", "notes"):
            if name in kept:
                kept[name] = self._new(kept[name])
        if message["kind"] == "compiler":
            kept["text"] = "".join(self._new([message["text"]])) if message["code"] else ""
            kept["build"] = message["build"] if self._fits(json.dumps(message["build"])) else None
        fitting: Message = kept
        return fitting

    def _fits(self, text: str) -> bool:
        """Take the space for a text, if the text is new and fits. Returns whether it does."""
        if text in self.known or len(text) > self.left:
            return False
        self.left -= len(text)
        self.known.add(text)
        return True

    def _new(self, found: list[str]) -> list[str]:
        new = [text for text in dict.fromkeys(map(in_characters, found)) if text not in self.known]
        kept = []
        for text in new:
            if (size := encoded_size(text)) <= self.left:
                self.left -= size
                kept.append(text)
        self.known.update(kept)
        if len(kept) < len(new) and MORE not in self.known:
            self.known.add(MORE)
            kept.append(MORE)
        return kept


def in_characters(text: str) -> str:
    """A text without surrogates (PEP 383: undecodable bytes), so that it can be encoded."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # other surrogates
        return text.encode("utf-8", "replace").decode()


def encoded_size(text: str) -> int:
    """Bytes that a text takes in a report."""
    return len(json.dumps(text))


def shorten(text: str, limit: int) -> str:
    """The head and the tail of a text, so that it takes at most `limit` bytes in a report."""
    keep = len(text)
    while (size := encoded_size(text)) > limit and keep > 1:
        keep = min(keep - 1, keep * limit // size)
        half = keep // 2
        text = f"{text[:half]}\n… left out …\n{text[len(text) - half :]}" if half else ""
    return text


def fit_logs(parts: Sequence[ProcessReport]) -> None:
    """If the logs together are too long, shorten each to an equal share of `LOGS`."""
    if sum(encoded_size(part["log"]) for part in parts) > LOGS:
        for part in parts:
            part["log"] = shorten(part["log"], LOGS // len(parts))


def encode_report(report: Report) -> str:
    """A report as text, compressed if it is long."""
    text = json.dumps(report)
    return base64.b64encode(zlib.compress(text.encode())).decode() if len(text) > PLAIN else text


def decode_report(text: str) -> Report:
    """The inverse of `encode_report`. Raises ValueError for any other text."""
    try:
        if not text.startswith("{"):
            text = zlib.decompress(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"no report: {error}") from error
    report: Report = json.loads(text)
    return report
