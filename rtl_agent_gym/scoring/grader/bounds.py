"""The report of a grading, bounded in bytes without losing a verdict. Used inside a scoring sandbox and outside;
standard library only.

How a test ended, and that there was a violation, is always reported: how many such messages there are is the harness's
doing alone. What a design can make long is text: complaints about it, and what its services print. Of that, a fixed
number of bytes is kept for the whole grading, however many simulations there are.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

TEXTS = 500_000
"""Bytes of complaints, as they are encoded, that are kept of all simulations together."""
LOGS = 1_000_000
"""Bytes of printed text, as they are encoded, that are kept of all services together."""
PLAIN = 1_000_000
"""Bytes of a report above which it travels compressed."""
MORE = "?: and more complaints than a report has room for"


class Complaints:
    """What guards say of a design, each text once, until there is no more room."""

    def __init__(self) -> None:
        self.left = TEXTS
        self.known: set[str] = set()

    def fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with the new ones of its complaints. One that had any, of which all are cut, has `MORE`."""
        kept = dict(message)
        for name in ("violations", "unknown", "notes"):
            if isinstance(found := message.get(name), list):
                kept[name] = self._new(found)
        if "said" in message:
            kept["said"] = "".join(self._new([message["said"]])) if message.get("code") else ""
        return kept

    def _new(self, found: list[str]) -> list[str]:
        new = [text for text in dict.fromkeys(map(in_characters, found)) if text not in self.known]
        kept = [text for text in new if self._room(text)]
        self.known.update(kept)
        if len(kept) < len(new) and MORE not in self.known:
            self.known.add(MORE)
            kept.append(MORE)
        return kept

    def _room(self, text: str) -> bool:
        size = encoded_size(text)
        if size > self.left:
            return False
        self.left -= size
        return True


def in_characters(text: str) -> str:
    """A text in which bytes may stand as surrogates (PEP 383), as text that can be written anywhere."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # other surrogates
        return text.encode("utf-8", "replace").decode()


def encoded_size(text: str) -> int:
    """Bytes of a text in a report."""
    return len(json.dumps(text))


def shorten(text: str, room: int) -> str:
    """The head and the tail of a text, so that it takes at most `room` bytes in a report."""
    keep = len(text)
    while (size := encoded_size(text)) > room and keep > 1:
        keep = min(keep - 1, keep * room // size)
        half = keep // 2
        text = f"{text[:half]}\n… left out …\n{text[len(text) - half :]}" if half else ""
    return text


def fit_logs(parts: list[dict[str, Any]]) -> None:
    """Shorten the ``log`` of each part, where they are too long together, to an equal share of the room."""
    room = LOGS // max(len(parts), 1)
    if sum(encoded_size(part["log"]) for part in parts) > LOGS:
        for part in parts:
            part["log"] = shorten(part["log"], room)


def encode(report: dict[str, Any], limited: bool = True) -> str:
    """A report as text for the wire.

    Args:
        report: What JSON can hold.
        limited: Whether a long one is compressed; a test of this limit sends it as it is.
    """
    text = json.dumps(report)
    if limited and len(text) > PLAIN:
        return base64.b64encode(zlib.compress(text.encode())).decode()
    return text


def decode(text: str) -> dict[str, Any]:
    """The report that `encode` made this text of. Raises ValueError for any other text."""
    try:
        if not text.startswith("{"):
            text = zlib.decompress(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"no report: {error}") from error
    report = json.loads(text)
    if not isinstance(report, dict):
        raise ValueError("no report: not a JSON object")
    return report
