"""Messages for a name that does not exist: what was meant, and what there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 12


def near_matches(name: str, known: Iterable[str]) -> str:
    """A half-sentence for an error on the unknown `name`: the names most like it, or those that there are."""
    names = list(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    # A part of a long id is how people remember it, and too short for a ratio over the whole.
    close += [low for low in by_lower if name and name.lower() in low and low not in close][: 3 - len(close)]
    if close:
        return "did you mean " + " or ".join(by_lower[low] for low in close) + "?"
    if not names:
        return "there is none"
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there is {', '.join(names[:_SHOWN])}{rest}"
