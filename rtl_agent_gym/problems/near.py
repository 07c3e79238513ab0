"""Suggestions for an unknown name in an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 12  # names listed at most


def near_matches(name: str, known: Iterable[str]) -> str:
    """A clause for an error message about the unknown `name`: the most similar names, or all names."""
    names = list(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    # People often give part of a long id, which is too short for the similarity ratio.
    close += [low for low in by_lower if name and name.lower() in low and low not in close][: 3 - len(close)]
    if close:
        return "did you mean " + " or ".join(by_lower[low] for low in close) + "?"
    if not names:
        return "there are none"
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"choose one of {', '.join(names[:_SHOWN])}{rest}"
