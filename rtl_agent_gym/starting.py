"""Ctrl-C while the program is still importing.

By default Python prints a traceback from the middle of some library. There is nothing to clean up yet, so the command
line lets the signal end the process at once and without output, from the package's first import until a command runs.
"""

import _signal  # type: ignore[import-not-found]  # `signal` first imports more modules: time for a Ctrl-C
import os
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


def is_command_line() -> bool:
    """Whether this process is ``rtl-agent-gym`` or ``python -m rtl_agent_gym``, rather than a user of the library."""
    program = (getattr(sys, "argv", None) or [""])[0]
    # `sys.argv[0]` is "-m" while Python looks for the module, and then the module's file.
    if program == "-m" or (os.path.basename(program) == "__main__.py" and program not in sys.orig_argv):
        return _module(sys.orig_argv[1:]) == "rtl_agent_gym"
    return os.path.basename(program) == "rtl-agent-gym" and program in sys.orig_argv


def _module(words: list[str]) -> str:
    """The module in Python's options, as in ``-m x``, ``-mx``, ``-Im x`` and ``-W ignore -Imx``; empty without one."""
    left = iter(words)
    for word in left:
        if word.startswith("--") or not word.startswith("-"):
            continue
        for end, letter in enumerate(word[1:], 2):
            if letter in "mWX":  # the options with a value, which is the rest of the word or the next word
                value = word[end:] or next(left, "")
                if letter == "m":
                    return value
                break
    return ""


def quiet_interrupts() -> None:
    """From now on SIGINT ends the process without a traceback, unless the program handles or ignores it already."""
    _replace(_signal.default_int_handler, _exit)


def usual_interrupts() -> None:
    """From now on SIGINT raises `KeyboardInterrupt` again."""
    _replace(_exit, _signal.default_int_handler)


def _replace(handler: object, by: object) -> None:
    if _signal.getsignal(_signal.SIGINT) is handler:
        try:
            _signal.signal(_signal.SIGINT, by)
        except ValueError:  # not in the main thread, the only one that may set handlers and is interrupted
            return


def _exit(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)
