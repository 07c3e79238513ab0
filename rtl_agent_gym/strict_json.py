"""JSON from untrusted files."""

from __future__ import annotations

import json
from typing import Any

MOST_DEPTH = 100
"""Maximum nesting of arrays and objects; deeper values overflow the stack of recursive code."""


def loads(text: str | bytes) -> Any:
    """`json.loads`, with `ValueError` for every fault: not JSON, not UTF-8, or nested deeper than `MOST_DEPTH`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MOST_DEPTH} levels") from None
    level: list[Any] = [[value]]
    for _ in range(MOST_DEPTH + 2):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MOST_DEPTH} levels")
