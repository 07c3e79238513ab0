"""Calls back when descriptors are ready, and writes without waiting. Runs inside a sandbox; standard library only."""

from __future__ import annotations

import math
import os
import select
from collections import deque
from collections.abc import Callable


class Watcher:
    """Descriptors, and what to call when they are ready."""

    def __init__(self) -> None:
        # Not epoll: the kernel grants each user a limited number of watches, and the commands could use them up. And
        # not `selectors`, which would double the warden's own part of a command's time.
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        """Call back whenever `fd` can be read (or written). Nothing changes if it is watched already."""
        if fd not in self._callbacks:
            self._poll.register(fd, select.POLLOUT if write else select.POLLIN)
            self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        """No longer call back; nothing if it was not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, timeout: float | None) -> None:
        """Wait until something is ready, `timeout` seconds at most, and call back."""
        ready = self._poll.poll(None if timeout is None else math.ceil(1000 * timeout))
        for fd, callback in [(fd, self._callbacks[fd]) for fd, _ in ready]:
            if self._callbacks.get(fd) is callback:  # no earlier callback has unwatched it
                callback()


class Outbox:
    """Writes to a descriptor without waiting for its reader. Owns the descriptor.

    Args:
        fd: A pipe or socket.
        watcher: Calls back when it can be written.
    """

    def __init__(self, fd: int, watcher: Watcher) -> None:
        self.fd, self.watcher = fd, watcher
        self.unsent: deque[tuple[memoryview, Callable[[bool], None]]] = deque()
        os.set_blocking(fd, False)

    def send(self, data: bytes, then: Callable[[bool], None] = lambda written: None) -> None:
        """Write behind everything that was sent before; `then` is called with whether the reader took all of it."""
        self.unsent.append((memoryview(data), then))
        self.flush()

    def flush(self) -> None:
        """Write what can be written now."""
        while self.unsent:
            data, then = self.unsent[0]
            try:
                while data:
                    data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                self.unsent[0] = (data, then)
                self.watcher.watch(self.fd, self.flush, write=True)
                return
            except OSError:  # the reader is gone, or this is closed
                self.close()
                return
            self.unsent.popleft()
            then(True)
        if self.fd >= 0:
            self.watcher.unwatch(self.fd)

    def close(self) -> None:
        """Close the descriptor and drop what is unsent. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.watcher.unwatch(fd)
            os.close(fd)
        while self.unsent:
            self.unsent.popleft()[1](False)
