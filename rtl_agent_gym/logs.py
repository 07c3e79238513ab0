"""The episode that a line of a log belongs to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

_episode: ContextVar[str] = ContextVar("rtl_gym_episode", default="-")

FORMAT = "%(asctime)s %(levelname)s %(name)s episode=%(episode)s: %(message)s"
"""For handlers that have an `EpisodeFilter`."""


@contextlib.contextmanager
def logging_as(episode: str) -> Iterator[None]:
    """Within the context, and in tasks and threads that asyncio starts in it, lines belong to this episode."""
    token = _episode.set(episode)
    try:
        yield
    finally:
        _episode.reset(token)


class EpisodeFilter(logging.Filter):
    """Gives every record an attribute ``episode``: the key of its episode, or ``-``."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass."""
        record.episode = _episode.get()
        return True
