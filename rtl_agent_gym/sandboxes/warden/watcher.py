"""Calls back when descriptors are ready. Runs inside a sandbox; standard library only."""

from __future__ import annotations

import selectors
from collections.abc import Callable


class Watcher:
    """Descriptors, and who wants to know when they are ready."""

    def __init__(self) -> None:
        # Not epoll, of which the kernel grants each user so much and no more: the commands could use it all up.
        self._selector = selectors.PollSelector()

    def watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        """Call back whenever `fd` can be read (or written). Watching twice is watching once."""
        if fd not in self._selector.get_map():
            self._selector.register(fd, selectors.EVENT_WRITE if write else selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """No longer call back; nothing if it was not watched."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def turn(self, timeout: float | None) -> None:
        """Wait until something is ready, `timeout` seconds at most, and call back."""
        for key, _ in self._selector.select(timeout):
            if self._selector.get_map().get(key.fd) is key:  # no earlier callback has given it up
                key.data()
