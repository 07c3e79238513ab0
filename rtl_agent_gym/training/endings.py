"""How a run ends: which of its errors is told, and that all of what it opened is closed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError

logger = logging.getLogger(__name__)


def cause_of(error: BaseException) -> BaseException:
    """Of a group of exceptions, the one to tell a person: what ends a run before what costs an episode."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = [cause_of(one) for one in error.exceptions]
    for kind in (KeyboardInterrupt, UsageError, ServiceDown, RTLGymError):
        for one in found:
            if isinstance(one, kind):
                return one
    return found[0]


async def clean_up(steps: Mapping[str, Callable[[], Awaitable[None]]], *, failed: bool) -> None:
    """Do each step, whatever becomes of the others.

    Args:
        steps: By what they do.
        failed: Whether an exception is on its way already, which these must not hide: theirs are only logged.

    Raises:
        RTLGymError: The first of them, unless `failed`; a service that did not take note of the end is no failure.
    """
    first: Exception | None = None
    for name, step in steps.items():
        try:
            await step()
        except ServiceError as error:
            logger.warning("%s: %s", name, error)
        except Exception as error:  # whatever it is, the other steps come first; then it is raised
            logger.warning("%s failed", name, exc_info=True)
            first = first or error
    if first is not None and not failed:
        raise first
