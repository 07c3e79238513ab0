"""Text for people: untrusted text made safe to print in a terminal, addresses without passwords, and counts.

Text from models, shells, services and files may contain characters that control a terminal (colours, titles, the
clipboard), reorder the text, or are invisible. Each is replaced by its code, such as ``⟨U+001B⟩``. Line feeds and tabs
stay, and so do the emoji variation selectors U+FE0E and U+FE0F.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

_RANGES = (
    (0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x034F, 0x034F), (0x0600, 0x0605), (0x061C, 0x061C),
    (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2), (0x115F, 0x1160), (0x17B4, 0x17B5),
    (0x180B, 0x180F), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xD800, 0xDFFF), (0xFE00, 0xFE0D), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD),
    (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Controls, formats, surrogates and separators (Unicode's Cc, Cf, Cs, Zl and Zp), and letters without a glyph."""

_HIDDEN = re.compile("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _RANGES) + "]")


def visible(text: str) -> str:
    """`text` with each control, reordering or invisible character replaced by its code point.

    >>> visible("a\\x1b]0;title\\x07b\\u200b")
    'a⟨U+001B⟩]0;title⟨U+0007⟩b⟨U+200B⟩'
    """
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def without_secrets(text: str) -> str:
    """An address, or a text with addresses, without their parts that may be secret: users, passwords and queries.

    >>> without_secrets("http://alice:secret@gpu:8000/v1?key=secret does not answer")
    'http://gpu:8000/v1 does not answer'
    """
    return re.sub(r"(?<=://)[^/?#\s]*@|[?#]\S*", "", text)


def plural(number: int, noun: str) -> str:
    """A count with its noun: ``1 turn``, ``2 turns``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """`text` with its non-printable characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_MOST = 20
"""Upper bound on the files and notes that a score lists."""


def first_few(texts: Sequence[str]) -> list[str]:
    """The first texts, and a line with the number of the others."""
    more = [f"and {len(texts) - _MOST} more"] if len(texts) > _MOST else []
    return [*texts[:_MOST], *more]


class VisibleStream:
    """`visible` for a stream of UTF-8 bytes, whose chunks may split a character. ``\\r\\n`` ends a line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._return = ""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """The text that can be printed after one more chunk."""
        text = self._return + self._decoder.decode(data, final)
        self._return = "\r" if text.endswith("\r") and not final else ""
        return visible(text.removesuffix(self._return).replace("\r\n", "\n"))


def clock(seconds: float) -> str:
    """A duration as ``MINUTES:SECONDS``, or ``HOURS:MINUTES:SECONDS``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
