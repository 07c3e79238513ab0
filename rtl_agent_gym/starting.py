"""Ctrl-C while a program is still importing.

Python's own answer is a traceback out of the middle of some library. While nothing has begun there is nothing to clean
up either, so the command line lets the signal end the process as it ends any other program: at once and in silence.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def is_command_line() -> bool:
    """Whether this process is ``rtl-agent-gym`` or ``python -m rtl_agent_gym``, rather than a user of the library."""
    if sys.orig_argv[1:3] == ["-m", "rtl_agent_gym"]:
        return True
    return bool(getattr(sys, "argv", None)) and os.path.basename(sys.argv[0]) == "rtl-agent-gym"


@contextmanager
def quiet_interrupts(wanted: bool = True) -> Iterator[None]:
    """Within it, SIGINT ends the process without a traceback, where Python would have raised `KeyboardInterrupt`."""
    ours = wanted and threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
