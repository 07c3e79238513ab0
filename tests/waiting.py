"""Waiting for what happens by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PAUSE = 0.05


def until(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait until a function returns something true; whether it did."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(PAUSE)
    return bool(found)


async def soon(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """`until`, while the loop does other things."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        await asyncio.sleep(PAUSE)
    return bool(found)
