"""JSON from files that anybody may have written."""

from __future__ import annotations

import json
from typing import Any

MOST_DEPTH = 100
"""Arrays and objects within one another that a value may have; more overruns the stack of whoever walks it later."""


def loads(text: str | bytes) -> Any:
    """`json.loads`, with one exception for whatever is wrong.

    Raises:
        ValueError: It is not JSON, not UTF-8, or nested deeper than `MOST_DEPTH`.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MOST_DEPTH} levels") from None
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for holder in level:
            if isinstance(holder, dict | list):
                values = holder.values() if isinstance(holder, dict) else holder
                inner.extend(one for one in values if isinstance(one, dict | list))
        if not inner:
            return value
        level = inner
    raise ValueError(f"nested deeper than {MOST_DEPTH} levels")
