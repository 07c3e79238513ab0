"""A second warden beside the first, as another user, and the line between them. Runs inside a sandbox; standard
library only.

Process 1 of a scoring sandbox starts as root with the two rights that changing users takes, and nothing else. It forks,
each half becomes its user for good, and with that the rights are gone: no process of the sandbox has any when the first
request comes.
"""

from __future__ import annotations

import contextlib
import os
import socket

from .frames import split, write_all
from .watcher import Watcher


def become(uid: int) -> None:
    """Be this user and no other, for good. Raises OSError where that is not allowed."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def divide(keeper: int, worker: int) -> socket.socket | None:
    """Fork into a keeper and a worker, each its own user.

    Returns:
        In the keeper the line to the worker. In the worker None: its stdin and stdout are the line to the keeper.
    """
    mine, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        become(keeper)
        return mine
    mine.close()
    os.dup2(theirs.fileno(), 0)
    os.dup2(theirs.fileno(), 1)
    theirs.close()
    become(worker)
    return None


class Relay:
    """The keeper's end of the line to the worker. When the worker ends, so does the keeper, and the sandbox with it.

    Args:
        line: From `divide`.
        watcher: The keeper's loop.
    """

    def __init__(self, line: socket.socket, watcher: Watcher) -> None:
        self.watcher = watcher
        self.reading, self.writing = line.detach(), -1
        self.writing = os.dup(self.reading)  # one descriptor is watched for one thing
        self.outgoing, self.incoming = bytearray(), bytearray()
        self.await_greeting()
        os.set_blocking(self.reading, False)
        watcher.watch(self.reading, self.on_frames)

    def await_greeting(self) -> None:
        """Wait for the worker's first frame, and keep it: the keeper's own greeting speaks for both."""
        while next(split(self.incoming), None) is None:
            self._read()

    def _read(self) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = os.read(self.reading, 1 << 20)
        if not data:
            os._exit(1)
        self.incoming += data

    def send(self, frame: bytes) -> None:
        """Hand a request on. Never waits: a worker that is just answering could be waiting for us."""
        self.outgoing += frame
        self.on_room()

    def on_room(self) -> None:
        """Write what the line takes."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.outgoing:
                del self.outgoing[: os.write(self.writing, self.outgoing[: 1 << 18])]
        if self.outgoing:
            self.watcher.watch(self.writing, self.on_room, write=True)
        else:
            self.watcher.unwatch(self.writing)

    def on_frames(self) -> None:
        """Pass on the worker's replies, whole frames only."""
        try:
            self._read()
        except BlockingIOError:
            return
        for frame in split(self.incoming):
            write_all(frame)
