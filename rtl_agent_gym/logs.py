"""Log files, and the episode that each log line belongs to."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from .errors import cannot_write, writing

LOGS = "logs.log"
"""Name of the log file in a run's folder."""
PACKAGE = logging.getLogger("rtl_agent_gym")

_episode: ContextVar[str] = ContextVar("rtl_gym_episode", default="-")

FORMAT = "%(asctime)s %(levelname)s %(name)s episode=%(episode)s: %(message)s"
"""For handlers that have an `EpisodeFilter`."""


@contextlib.contextmanager
def logging_as(episode: str) -> Iterator[None]:
    """Within the context, and in tasks and threads that asyncio starts in it, log lines belong to this episode."""
    token = _episode.set(episode)
    try:
        yield
    finally:
        _episode.reset(token)


def episode_key() -> str:
    """The key of the episode that log lines of this context belong to; ``-`` for none."""
    return _episode.get()


class EpisodeFilter(logging.Filter):
    """Gives every record an attribute ``episode``: the key of its episode, or ``-``."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.episode = _episode.get()
        return True


class _LogFile(logging.FileHandler):
    """A run's log. It contains only the lines of its run, and those of threads that belong to no run."""

    _failed = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setLevel(logging.INFO)
        self.setFormatter(logging.Formatter(FORMAT))
        self.addFilter(EpisodeFilter())

    def filter(self, record: logging.LogRecord) -> bool:
        files = _files.get()
        return (not files or self in files) and bool(super().filter(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Report once, without a traceback, that the file cannot be written."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            with contextlib.suppress(OSError, ValueError):
                print(cannot_write("the log", self.baseFilename, error), file=sys.stderr)


class _Forward(logging.Handler):
    """Passes on the records that would be shown if there were no log files, at the logger's level before the first."""

    def __init__(self) -> None:
        super().__init__()
        self._changing = threading.Lock()
        self._quiet: dict[_LogFile, bool] = {}
        """By file: whether to bypass Python's last-resort handler, which prints warnings if no logging is set up."""
        self._all_quiet = False
        self._before = (logging.NOTSET, True)

    def emit(self, record: logging.LogRecord) -> None:
        above = PACKAGE.parent
        if above is not None and (above.hasHandlers() or not self._all_quiet):
            above.callHandlers(record)

    def add(self, file: _LogFile, quiet: bool) -> None:
        with self._changing:
            if not self._quiet:
                self._before = (PACKAGE.level, PACKAGE.propagate)
                self.setLevel(PACKAGE.getEffectiveLevel() if PACKAGE.propagate else logging.CRITICAL + 1)
                PACKAGE.setLevel(min(PACKAGE.level or logging.INFO, logging.INFO))
                PACKAGE.propagate = False
                PACKAGE.addHandler(self)
            self._quiet[file] = quiet
            self._all_quiet = all(self._quiet.values())
            PACKAGE.addHandler(file)

    def remove(self, file: _LogFile) -> None:
        with self._changing:
            PACKAGE.removeHandler(file)
            del self._quiet[file]
            self._all_quiet = all(self._quiet.values())
            if not self._quiet:
                PACKAGE.removeHandler(self)
                PACKAGE.setLevel(self._before[0])
                PACKAGE.propagate = self._before[1]


def log_to_stderr() -> None:
    """Write the package's log lines from level INFO up to stderr, with their episodes. For dedicated processes."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(EpisodeFilter())
    PACKAGE.addHandler(handler)
    PACKAGE.setLevel(logging.INFO)
    PACKAGE.propagate = False


_files: ContextVar[tuple[_LogFile, ...]] = ContextVar("rtl_gym_log_files", default=())
"""The log files of this context's run; several while a training run evaluates."""
_forward = _Forward()


@contextlib.contextmanager
def logging_to(path: Path, *others: str, quiet: bool = False) -> Iterator[None]:
    """Within the context, append the package's log lines from level INFO up to a file. Other output stays the same.

    Args:
        path: The file, in an existing folder.
        others: Loggers of other packages whose lines are also written to the file.
        quiet: Whether to keep warnings off the screen if no other logging is set up.

    Raises `SandboxError` if the disk is full or fails, `UsageError` if the file cannot be opened for another reason.
    """
    with writing("the log", path):
        file = _LogFile(path)
    _forward.add(file, quiet)
    for name in others:
        logging.getLogger(name).addHandler(file)
    _files.set((*_files.get(), file))
    try:
        yield
    finally:
        _files.set(tuple(other for other in _files.get() if other is not file))
        for name in others:
            logging.getLogger(name).removeHandler(file)
        _forward.remove(file)
        with contextlib.suppress(OSError):  # the disk may be too full for buffered lines
            file.close()


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(f"{record.levelname.lower()}: {record.getMessage()}")


@contextlib.contextmanager
def showing(show: Callable[[str], None], *names: str) -> Iterator[None]:
    """Within the context, show warnings and errors of some of the package's loggers.

    Args:
        show: Shows a line; called in the thread that logged it.
        names: The loggers below the package's, such as ``sandboxes``.
    """
    handler = _Shown(show)
    chosen = [PACKAGE.getChild(name) for name in names]
    for logger in chosen:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in chosen:
            logger.removeHandler(handler)
