"""Frames between the client and a warden, and between two wardens; output of bounded size; and non-blocking use of
descriptors. Standard library only: runs inside a sandbox, and frames and `Output` also in the client.

A frame is a kind (1 byte), the lengths of header and body (4 bytes each, big-endian), the header (JSON), the body.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_FIXED = struct.Struct(">cII")
LARGE = 1 << 20
"""Minimum bytes of a partial reply that is sent as a separate frame."""
CONTINUATION = bytes(range(0x80, 0xC0))  # UTF-8 bytes that do not begin a character


def pack(kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(header).encode()
    return _FIXED.pack(kind, len(text), len(body)) + text + body


def unpack(frame: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    """Kind, header and body of a frame."""
    kind, header_size, _ = _FIXED.unpack_from(frame)
    body_at = _FIXED.size + header_size
    return kind, json.loads(frame[_FIXED.size : body_at]), frame[body_at:]


def split(received: bytearray) -> Iterator[bytes]:
    """Take the complete frames from the front of what was received."""
    while len(received) >= _FIXED.size:
        _, header_size, body_size = _FIXED.unpack_from(received)
        size = _FIXED.size + header_size + body_size
        if len(received) < size:
            return
        frame = bytes(received[:size])
        del received[:size]
        yield frame


def write_all(data: bytes) -> None:
    """Write to the client, and wait until it has everything."""
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


def reply(kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> None:
    """Send the client a frame."""
    write_all(pack(kind, header, body))


class Output:
    """The first and the last bytes of a stream, half of `limit` each; those in between are counted and dropped, so that
    memory is bounded. `send` is called with the first bytes as they arrive.
    """

    def __init__(self, limit: int, send: Callable[[bytes], None]) -> None:
        self.head_left, self.keep, self.send = limit - limit // 2, limit // 2, send
        self.tail, self.size, self.chars = bytearray(), 0, 0

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        self.chars += len(data.translate(None, CONTINUATION))
        if self.head_left:
            head, data = data[: self.head_left], data[self.head_left :]
            self.head_left -= len(head)
            self.send(head)
        if data and self.keep:
            self.tail += data[-self.keep :]
            if len(self.tail) > 2 * self.keep:
                del self.tail[: -self.keep]

    def rest(self) -> bytes:
        """The last bytes, without those that have been sent."""
        return bytes(self.tail[-self.keep :]) if self.keep else b""


class Watcher:
    """Descriptors, and what to call when they are ready."""

    def __init__(self) -> None:
        # Not epoll: the kernel limits the watches of each user, and the commands could use them up. And not
        # `selectors`, which would double the warden's share of a command's time.
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        """Call `callback` whenever `fd` can be read (or written). Does nothing if `fd` is watched already."""
        if fd not in self._callbacks:
            self._poll.register(fd, select.POLLOUT if write else select.POLLIN)
            self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Does nothing if it is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, timeout: float | None) -> None:
        """Wait until something is ready, at most `timeout` seconds, and call the callbacks."""
        ready = self._poll.poll(None if timeout is None else math.ceil(1000 * timeout))
        for fd, callback in [(fd, self._callbacks[fd]) for fd, _ in ready]:
            if self._callbacks.get(fd) is callback:  # no earlier callback has unwatched it
                callback()


class Outbox:
    """Writes to a pipe or socket without waiting for its reader. Owns the descriptor."""

    def __init__(self, fd: int, watcher: Watcher) -> None:
        self.fd, self.watcher = fd, watcher
        self.unsent: deque[tuple[memoryview, Callable[[bool], None]]] = deque()
        os.set_blocking(fd, False)

    def send(self, data: bytes, then: Callable[[bool], None] = lambda written: None) -> None:
        """Write after all earlier data; `then` is called with whether all of it was written."""
        self.unsent.append((memoryview(data), then))
        self.flush()

    def flush(self) -> None:
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
