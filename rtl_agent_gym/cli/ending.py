"""How the command line ends: which exit code, and which one line, for which error."""

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

from ..errors import RTLGymError, SandboxError, UsageError, leaves, most_telling
from ..visible import visible

FAILED, WRONG_USAGE, MACHINE_FAILED, INTERRUPTED = 1, 2, 3, 130

NARROWEST = 40
"""Columns that are taken to be there at least."""

_MACHINE_ERRORS = {
    errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC,
}  # fmt: skip
"""What any write may fail of, wherever it is: nobody's mistake, and no traceback says more."""

_PATH_ERRORS = {errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.EPERM, errno.EROFS}
"""What a path may fail of that the program itself would never have made up."""


def exit_code(error: RTLGymError) -> int:
    """What the process exits with for an error of ours."""
    if isinstance(error, SandboxError):
        return MACHINE_FAILED
    return WRONG_USAGE if isinstance(error, UsageError) else FAILED


def run_to_exit_code(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Call the application and give the exit code. An error of ours, alone or in a group, becomes one line on stderr.

    Raises:
        BaseException: Whatever is not known; its traceback is what a report of the mistake needs.
    """
    _prepare_streams()
    try:
        code = _call(app, arguments)
        sys.stdout.flush()  # now, as an error at the interpreter's end could not be told any more
    except Exception as error:
        code = _told(error)
    _give_up_stdout_if_broken()
    return code


def _call(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    try:
        app(list(arguments))  # prints usage errors and exits by itself, also on Ctrl-C
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        raise
    except BaseExceptionGroup as group:
        if any(isinstance(part, KeyboardInterrupt) for part in leaves(group)):
            return INTERRUPTED
        raise
    return 0


def _told(error: Exception) -> int:
    """Say in one line what is wrong and give the exit code. Raises `error` itself where it is unknown."""
    known = most_telling(error)
    if known is not None:
        _say(str(known))
        return exit_code(known)
    refused = next((part for part in leaves(error) if isinstance(part, OSError)), None)
    if isinstance(refused, BrokenPipeError) and refused.filename is None:
        return FAILED  # whoever was reading has read enough
    if refused is not None and refused.errno in _PATH_ERRORS and refused.filename is not None:
        _say(f"{os.fsdecode(refused.filename)}: {refused.strerror}")
        return WRONG_USAGE
    if refused is None or refused.errno not in _MACHINE_ERRORS:
        raise error
    at = f"{refused.filename}: " if refused.filename is not None else "the output cannot be written: "
    _say(f"{at}{refused.strerror}")
    return MACHINE_FAILED


def _say(message: str) -> None:
    line = Text.assemble(("error:", "bold red"), " ", visible(message))
    with contextlib.suppress(OSError):
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)


def _prepare_streams() -> None:
    """Make every standard stream there, and able to write any text.

    A closed one is opened on nothing, or its number would go to the next file or socket that is opened. What a stream's
    encoding does not have, such as a dash or a file name that is no UTF-8, is written as its code.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)  # what is folded by the terminal can be read, what is cut off cannot
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _give_up_stdout_if_broken() -> None:
    """Let what a broken stdout still holds go, or the interpreter would complain of it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
