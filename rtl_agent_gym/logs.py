"""The file of a log, and the episode that each of its lines belongs to."""

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


def episode_key() -> str:
    """The episode to which lines of a log belong here; ``-`` for none."""
    return _episode.get()


class EpisodeFilter(logging.Filter):
    """Gives every record an attribute ``episode``: the key of its episode, or ``-``."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.episode = _episode.get()
        return True


class _LogFile(logging.FileHandler):
    """A run's log. It has the lines of its run alone, and those of threads that belong to none."""

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
        """Show once that the file cannot be written, without a traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            with contextlib.suppress(OSError, ValueError):
                print(cannot_write("the log", self.baseFilename, error), file=sys.stderr)


class _Forward(logging.Handler):
    """Shows what would be shown if the package's logger had no files and the level that it had before the first one."""

    def __init__(self) -> None:
        super().__init__()
        self._changing = threading.Lock()
        self._quiet: dict[_LogFile, bool] = {}
        """By file: whether Python's last resort, which prints warnings where nothing has been set up, is left out."""
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
    """Write the package's lines from INFO on to stderr, each with its episode; for a process that runs nothing else."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(EpisodeFilter())
    PACKAGE.addHandler(handler)
    PACKAGE.setLevel(logging.INFO)
    PACKAGE.propagate = False


_files: ContextVar[tuple[_LogFile, ...]] = ContextVar("rtl_gym_log_files", default=())
"""The logs of the run that this context belongs to: more than one where a training run evaluates."""
_forward = _Forward()


@contextlib.contextmanager
def logging_to(path: Path, *others: str, quiet: bool = False) -> Iterator[None]:
    """Within the context, the package's lines from INFO on are added to a file. What is shown elsewhere stays the same.

    Args:
        path: The file; its folder exists.
        others: Loggers of other packages whose lines belong there, too.
        quiet: Whether warnings are no longer shown on the screen, where nothing else has been set up.

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
        with contextlib.suppress(OSError):  # lines that a full disk did not take
            file.close()


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(f"{record.levelname.lower()}: {record.getMessage()}")


@contextlib.contextmanager
def showing(show: Callable[[str], None], *names: str) -> Iterator[None]:
    """Within the context, warnings and errors of some loggers of the package are shown.

    Args:
        show: Shows a line; called in the thread that the line comes from.
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
