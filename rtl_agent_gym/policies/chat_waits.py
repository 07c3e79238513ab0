"""How long to wait before a request is repeated: what the service asks for, otherwise exponential backoff.

Both are drawn at random around their value: conversations that were refused together should not come back together.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

MAX_WAIT = 60.0
"""Maximum seconds between two attempts of a request, unless the service requests more."""
MAX_REQUESTED_WAIT = 300.0
"""Maximum seconds to wait when the service requests a time."""
MAX_SPREAD = 1.0
"""Maximum seconds added at random to a requested time."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_RESET = re.compile(r"(?:x-|anthropic-)?ratelimit-(?:reset(?:-[\w-]+)?|[\w-]+-reset)")
_LATER = 1e9
"""A number above this is a time since 1970, in seconds, or above its thousandfold in milliseconds."""


def requested_wait(headers: Mapping[str, str], *, limited: bool, now: float | None = None) -> float | None:
    """Seconds after which a service wants to be asked again; None if it does not say.

    In this order: ``retry-after-ms``; ``retry-after``, in seconds or as an HTTP date (RFC 9110, section 10.2.3); the
    resets of rate limits: ``x-ratelimit-reset-requests`` and ``-tokens`` of OpenAI, Groq and Azure (durations such as
    ``6m0s`` and ``12ms``), ``anthropic-ratelimit-*-reset`` (RFC 3339), ``x-ratelimit-reset`` of OpenRouter
    (milliseconds since 1970) and ``ratelimit-reset`` (seconds). Of several resets, the latest of those whose
    ``remaining`` is 0 counts; if no ``remaining`` is given, the soonest.

    Args:
        headers: The headers of an answer, with names in lower case.
        limited: Whether the answer is a 429. Other answers have the headers of rate limits too, where they say nothing
            about when a broken service is back.
        now: Seconds since 1970; None for the clock's.
    """
    now = time.time() if now is None else now
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    if "retry-after" in headers and (found := _seconds(headers["retry-after"], now)) is not None:
        return found
    used_up: list[float] = []
    unknown: list[float] = []
    for name, value in headers.items() if limited else ():
        if _RESET.fullmatch(name) is None or (seconds := _seconds(value, now)) is None:
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is None:
            unknown.append(seconds)
        elif _number(remaining) == 0:
            used_up.append(seconds)
    return max(used_up) if used_up else min(unknown, default=None)


def wait_before(attempt: int, requested: float | None) -> float:
    """Seconds to wait after attempt number `attempt`, from 1, given what the service requests."""
    if requested is not None:
        return min(requested, MAX_REQUESTED_WAIT) + random.uniform(0, min(MAX_SPREAD, requested / 10))
    return random.uniform(0, min(MAX_WAIT, 0.5 * 2.0 ** min(attempt, 10)))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(?:\.\d{0,9})?", text.strip()) else None


def _seconds(text: str, now: float) -> float | None:
    """The seconds from `now` that a header's value stands for; None if it is none of the known forms."""
    text = text.strip()
    if (number := _number(text)) is not None:
        if number > 1000 * _LATER:
            number /= 1000
        return max(0.0, number - now) if number > _LATER else number
    if text and (match := _DURATION.fullmatch(text)) is not None:
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
        return 3600 * hours + 60 * minutes + seconds + milliseconds / 1000
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            return max(0.0, read(text).timestamp() - now)
        except (ValueError, OverflowError):
            continue
    return None
