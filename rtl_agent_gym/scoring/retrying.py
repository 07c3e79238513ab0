"""Repeats work while the machine fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import stop_after_attempt

from ..errors import SandboxError
from ..metrics import FAULTS
from ..retries import GRADING

T = TypeVar("T")


@dataclass
class Retries:
    """How often one grading was repeated because the machine failed."""

    count: int = 0
    attempts: int | None = None
    """How often it is tried in all; None for `GRADING`."""


async def retrying(work: Callable[[], Awaitable[T]], retries: Retries | None = None) -> T:
    """Do work, and repeat it with growing pauses while it raises `SandboxError`, at most `Retries.attempts` times.

    Each of these errors is counted in the metrics, also if a later attempt works.

    Args:
        work: What to do.
        retries: Bounds and counts the repetitions.
    """
    retries = retries or Retries()
    try:
        stop = stop_after_attempt(retries.attempts or GRADING.attempts)
        async for attempt in GRADING.retrying(lambda error: isinstance(error, SandboxError), stop=stop):
            with attempt:
                retries.count += attempt.retry_state.attempt_number > 1
                try:
                    return await work()
                except SandboxError as error:
                    FAULTS.labels("grading", type(error).__name__).inc()
                    raise
    except SandboxError as error:
        error.retries = max(error.retries, retries.count)
        raise
    raise AssertionError("unreachable")
