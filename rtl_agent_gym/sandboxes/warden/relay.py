"""The users of a sandbox, and a second warden as another user. Runs inside a sandbox; standard library only.

Process 1 of a scoring sandbox starts as root with only the two capabilities for changing users. It forks, each half
becomes its user for good, and with that the capabilities are gone: no process has any when the first request comes.

Where a sandbox can have only one user, the worker gets namespaces of its own instead: it and all that it runs see no
process of the keeper's, and its folders only read-only.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from .frames import Outbox, Watcher, split, write_all
from .processes import fork_into
from .zygote import CLONE_NEWNS, CLONE_NEWPID, mount_for_worker

NAMES = "/var/lib/extrausers"
"""Where libnss-extrausers finds the names of users."""


def name_users(agent: int, keeper: int | None) -> None:
    """Give the sandbox's user ids names. Each sandbox has ids of its own, so the image cannot name them.

    Without libnss-extrausers in the image they have no names, which only `whoami` and the like notice.
    """
    users = [("agent", agent, "/home/agent:/bin/bash")]
    if keeper is not None:
        users.append(("keeper", keeper, "/nonexistent:/usr/sbin/nologin"))
    tables = {
        "passwd": "".join(f"{name}:x:{uid}:{uid}::{rest}\n" for name, uid, rest in users),
        "group": "".join(f"{name}:x:{uid}:\n" for name, uid, _ in users),
    }
    with contextlib.suppress(OSError):
        for name, text in tables.items():
            with open(os.path.join(NAMES, name), "w", encoding="ascii") as file:
                file.write(text)


def become(uid: int) -> None:
    """Be only this user from now on. Raises OSError if that is not allowed."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def divide(keeper: int, worker: int, kept: Sequence[str] = ()) -> socket.socket | None:
    """Fork into a keeper and a worker, each its own user. If their ids are equal, the worker is in namespaces of its
    own, where the folders `kept` are read-only.

    Returns:
        In the keeper the connection to the worker. In the worker None: it is the worker's stdin and stdout.
    """
    alone = keeper == worker
    mine, theirs = socket.socketpair()
    if fork_into(CLONE_NEWPID | CLONE_NEWNS) if alone else os.fork():
        theirs.close()
        if not alone:
            become(keeper)
        return mine
    mine.close()
    os.dup2(theirs.fileno(), 0)
    os.dup2(theirs.fileno(), 1)
    theirs.close()
    if alone:
        mount_for_worker(kept)
    else:
        become(worker)
    return None


class Relay:
    """The keeper's end of the connection to the worker, from `divide`. When the worker ends, so does the keeper, and
    with it the sandbox.
    """

    def __init__(self, line: socket.socket, watcher: Watcher) -> None:
        self.reading = line.detach()
        self.incoming = bytearray()
        while next(split(self.incoming), None) is None:  # the worker's greeting; the keeper's own stands for both
            self._read()
        # Never waits, since a worker that is answering may wait for the keeper. A copy, to watch it for writing.
        self.outbox = Outbox(os.dup(self.reading), watcher)
        watcher.watch(self.reading, self.on_frames)

    def _read(self) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = os.read(self.reading, 1 << 20)
        if not data:
            os._exit(1)
        self.incoming += data

    def on_frames(self) -> None:
        try:
            self._read()
        except BlockingIOError:
            return
        for frame in split(self.incoming):
            write_all(frame)
