"""Ends a run: chooses the error to report, and closes everything that the run opened."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError

logger = logging.getLogger(__name__)


def cause_of(error: BaseException) -> BaseException:
    """The exception of a group to report to the user: first those that end a run, then those that cost an episode."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = [cause_of(one) for one in error.exceptions]
    for kind in (KeyboardInterrupt, UsageError, ServiceDown, RTLGymError):
        for one in found:
            if isinstance(one, kind):
                return one
    return found[0]


async def clean_up(steps: Mapping[str, Callable[[], Awaitable[None]]], *, failed: bool) -> None:
    """Do every step, even if another one fails.

    Args:
        steps: The steps by name.
        failed: Whether the run has failed already. Then the steps' exceptions are only logged.

    Raises:
        Exception: The first of the steps' exceptions, unless `failed`. A `ServiceError` is only logged.
    """
    first: Exception | None = None
    for name, step in steps.items():
        try:
            await step()
        except ServiceError as error:
            logger.warning("%s: %s", name, error)
        except Exception as error:  # raised after the other steps
            logger.warning("%s failed", name, exc_info=True)
            first = first or error
    if first is not None and not failed:
        raise first
