"""A report bounded in bytes without losing a verdict.

How a test ended, and that there was a violation, is always reported: how many such messages there are is the harness's
doing alone. What a design can make long is text: complaints about it, and what its services print. Of that, a fixed
number of bytes is kept for the whole grading, however many simulations there are.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from typing import Any

from .messages import Message, ProcessReport, Report

TEXTS = 500_000
"""Bytes of complaints, as they are encoded, that are kept of all simulations together."""
LOGS = 1_000_000
"""Bytes of printed text, as they are encoded, that are kept of all services together."""
PLAIN = 1_000_000
"""Bytes of a report above which it travels compressed."""
MORE = "?: and more complaints than a report holds"


class Complaints:
    """What guards say of a design, each text once, until the space for them is used up."""

    def __init__(self) -> None:
        self.left = TEXTS
        self.known: set[str] = set()

    def fit(self, message: Message) -> Message:
        """A message with the new ones of its complaints. One that had any, of which all are cut, has `MORE`."""
        kept: Any = dict(message)
        for name in ("violations", "refusals", "notes"):
            if name in kept:
                kept[name] = self._new(kept[name])
        if message["kind"] == "compiler":
            kept["text"] = "".join(self._new([message["text"]])) if message["code"] else ""
        fitting: Message = kept
        return fitting

    def _new(self, found: list[str]) -> list[str]:
        new = [text for text in dict.fromkeys(map(in_characters, found)) if text not in self.known]
        kept = [text for text in new if self._take(encoded_size(text))]
        self.known.update(kept)
        if len(kept) < len(new) and MORE not in self.known:
            self.known.add(MORE)
            kept.append(MORE)
        return kept

    def _take(self, size: int) -> bool:
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


def in_characters(text: str) -> str:
    """A text in which bytes may stand as surrogates (PEP 383), as text that can be written anywhere."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # other surrogates
        return text.encode("utf-8", "replace").decode()


def encoded_size(text: str) -> int:
    """Bytes of a text in a report."""
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
    """Shorten the logs, where they are too long together, to an equal share of `LOGS` each."""
    if sum(encoded_size(part["log"]) for part in parts) > LOGS:
        for part in parts:
            part["log"] = shorten(part["log"], LOGS // len(parts))


def encode_report(report: Report, limited: bool = True) -> str:
    """A report as text for the wire.

    Args:
        report: What was found.
        limited: Whether a long one is compressed; a test of this limit sends it as it is.
    """
    text = json.dumps(report)
    if limited and len(text) > PLAIN:
        return base64.b64encode(zlib.compress(text.encode())).decode()
    return text


def decode_report(text: str) -> Report:
    """The report that `encode_report` made this text of. Raises ValueError for any other text."""
    try:
        if not text.startswith("{"):
            text = zlib.decompress(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"no report: {error}") from error
    report: Report = json.loads(text)
    return report
