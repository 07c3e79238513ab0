"""Names for the users of a sandbox. Runs inside it; standard library only.

Each sandbox has user ids of its own, which no image can know. Where the image has libnss-extrausers, these two files
give them names; elsewhere they have none, which only `whoami` and the like notice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

FOLDER = "/var/lib/extrausers"
NOBODYS_HOME, NO_SHELL = "/nonexistent", "/usr/sbin/nologin"


def name_users(agent: int, keeper: int | None) -> None:
    """Write the entries; nothing where they cannot be written."""
    users = [("agent", agent, "/home/agent", "/bin/bash")]
    if keeper is not None:
        users.append(("keeper", keeper, NOBODYS_HOME, NO_SHELL))
    with contextlib.suppress(OSError):
        _write("passwd", [f"{name}:x:{uid}:{uid}::{home}:{shell}" for name, uid, home, shell in users])
        _write("group", [f"{name}:x:{uid}:" for name, uid, _, _ in users])


def _write(name: str, lines: Sequence[str]) -> None:
    with open(os.path.join(FOLDER, name), "w", encoding="ascii") as file:
        file.write("".join(f"{line}\n" for line in lines))
