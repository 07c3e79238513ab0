"""The users of a sandbox, and a second warden as another user. Runs inside a sandbox; standard library only.

Process 1 of a scoring sandbox starts as root with only the two capabilities for changing users. It forks, and both
processes change their users for good, which drops the capabilities: no process has any when the first request comes.

If a sandbox can have only one user, the worker gets separate namespaces instead, in which neither it nor its
descendants see the keeper's processes, and the keeper's folders are read-only.
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
"""The folder in which libnss-extrausers finds the names of users."""


def name_users(agent: int, keeper: int | None) -> None:
    """Give names to the sandbox's user ids. These differ between sandboxes, so the image cannot name them.

    Without libnss-extrausers in the image they have no names, which only programs such as `whoami` notice.
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
    """Become this user for good. Raises OSError if that is not allowed."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def divide(keeper: int, worker: int, kept: Sequence[str] = ()) -> socket.socket | None:
    """Fork into a keeper and a worker with different users. If their ids are equal, the worker is in separate
    namespaces, where the folders `kept` are read-only.

    Returns:
        In the keeper, the connection to the worker; in the worker, None: the connection is its stdin and stdout.
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
        while next(split(self.incoming), None) is None:  # skip the worker's greeting; the keeper's counts for both
            self._read()
        # Never waits, since a worker that is replying may wait for the keeper. A copy, to watch it for writing.
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
