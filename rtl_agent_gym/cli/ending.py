"""Exit codes of the command line, and a single line on stderr for each error."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ..errors import exit_code, leaves, most_telling
from ..starting import INTERRUPTED
from ..visible import visible

FAILED, WRONG_USAGE, MACHINE_FAILED = 1, 2, 3

NARROWEST = 40
"""A narrower terminal is treated as if it had this many columns."""

_MACHINE_ERRORS = {
    errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC,
}  # fmt: skip
"""Errors of the machine in any write; a traceback would not help."""

_PATH_ERRORS = {errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.EPERM, errno.EROFS}
"""Errors of paths that the user has given."""


def run_to_exit_code(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Call the application and return its exit code. Prints an error of this package, also in a group, as one line.

    Raises:
        BaseException: Any other error: its traceback is needed for a bug report.
    """
    _prepare_streams()
    try:
        code = _call(app, arguments)
        sys.stdout.flush()  # here, since an error at the interpreter's exit could not be reported
    except Exception as error:
        code = _report(error)
    _discard_broken_stdout()
    return code


def _call(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    try:
        app(list(arguments))  # prints usage errors itself and raises SystemExit, also on Ctrl-C
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        raise
    except BaseExceptionGroup as group:
        if any(isinstance(part, KeyboardInterrupt) for part in leaves(group)):
            return INTERRUPTED
        raise
    return 0


def _report(error: Exception) -> int:
    """Print an error as one line and return the exit code. Raises `error` itself if it is unexpected."""
    known = most_telling(error)
    if known is not None:
        _print_error(str(known))
        return exit_code(known)
    refused = next((part for part in leaves(error) if isinstance(part, OSError)), None)
    if isinstance(refused, BrokenPipeError) and refused.filename is None:
        return FAILED  # the reader of the pipe, such as head, has ended
    if refused is not None and refused.errno in _PATH_ERRORS and refused.filename is not None:
        _print_error(f"{os.fsdecode(refused.filename)}: {refused.strerror}")
        return WRONG_USAGE
    if refused is None or refused.errno not in _MACHINE_ERRORS:
        raise error
    at = f"{refused.filename}: " if refused.filename is not None else "the output cannot be written: "
    _print_error(f"{at}{refused.strerror}")
    return MACHINE_FAILED


def _print_error(message: str) -> None:
    line = Text.assemble(("error:", "bold red"), " ", visible(message))
    with contextlib.suppress(OSError):
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)


def _prepare_streams() -> None:
    """Open closed standard streams, and make sure that each can write any text.

    A closed stream is opened on /dev/null; otherwise the next file or socket would get its number. Characters that are
    missing in a stream's encoding are written as escape codes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)  # folded text can be read, truncated text cannot
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_broken_stdout() -> None:
    """Discard the buffer of a broken stdout; otherwise the interpreter would print an error at its exit."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
