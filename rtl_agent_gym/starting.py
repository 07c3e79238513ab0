"""Ctrl-C while the program is still importing.

By default Python prints a traceback from the middle of some library. There is nothing to clean up yet, so the command
line lets the signal end the process at once and without output.
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
    """Inside the block, SIGINT ends the process without a traceback instead of raising `KeyboardInterrupt`."""
    possible = wanted and threading.current_thread() is threading.main_thread()
    if not possible or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
