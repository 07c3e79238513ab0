"""The file of a log, and the episode that each of its lines belongs to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from .errors import cannot_write

LOGS = "logs.log"
"""The name of a run's log in its folder."""
PACKAGE = logging.getLogger("rtl_agent_gym")

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


@contextlib.contextmanager
def logging_to(path: Path, *others: str, quiet: bool = False) -> Iterator[None]:
    """Within the context, the package's lines from INFO on are added to a file.

    Args:
        path: The file; its folder exists.
        others: Loggers of other packages whose lines belong there, too.
        quiet: Whether warnings are no longer shown on the screen, where nothing else has been set up.

    Raises:
        SandboxError: The disk is full or fails; UsageError if the file cannot be opened for another reason.
    """
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise cannot_write("the log", path, error) from error
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(EpisodeFilter())
    added: list[tuple[logging.Logger, logging.Handler]] = [
        (logger, handler) for logger in (PACKAGE, *map(logging.getLogger, others))
    ]
    if (
        not quiet and not PACKAGE.hasHandlers() and logging.lastResort is not None
    ):  # it served loggers without a handler
        added.append((PACKAGE, logging.lastResort))
    for logger, one in added:
        logger.addHandler(one)
    level = PACKAGE.level
    PACKAGE.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        PACKAGE.setLevel(level)
        for logger, one in added:
            logger.removeHandler(one)
        handler.close()
