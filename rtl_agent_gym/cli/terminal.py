"""Connect the user's terminal to a sandbox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import pexpect

from ..errors import DaemonError, UsageError


def require_terminal(what: str, instead: str = "") -> None:
    """Check that `what` can use a terminal.

    Raises:
        UsageError: There is none; the message ends with `instead`.
        DaemonError: The docker client, which is needed for it, is not installed.
    """
    if not os.isatty(0):
        raise UsageError(f"{what} needs a terminal{instead}")
    if shutil.which("docker") is None:
        raise DaemonError(f"{what} needs the docker client on PATH; install docker.io (Debian) or Docker's own package")


def attach_terminal(container: str, command: Sequence[str] = ("bash",)) -> None:
    """Run `command` in the work folder of a container on this terminal, until it ends."""
    size = shutil.get_terminal_size()
    arguments = ["exec", "-it", "-w", "/code", "-e", "TERM=xterm-256color", container, *command]
    child: pexpect.spawn[bytes] = pexpect.spawn("docker", arguments, dimensions=(size.lines, size.columns))
    try:
        child.interact(escape_character=None)
    finally:
        child.close()
