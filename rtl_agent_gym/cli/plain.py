"""Foreign text in messages."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Foreign text as one that cannot steer a terminal: control characters, line feeds aside, become their codes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
