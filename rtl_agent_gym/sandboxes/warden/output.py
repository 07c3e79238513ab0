"""Output of bounded size. Standard library only: runs inside a sandbox, and on the client's side."""

from __future__ import annotations

from collections.abc import Callable

_CONTINUATION = bytes(range(0x80, 0xC0))  # UTF-8 bytes that begin no character


class Output:
    """The first and the last bytes of a stream; what lies between is counted and dropped, so memory stays bounded.

    Args:
        limit: Bytes to keep: half of them the first, half the last.
        send: Takes the first bytes, as they come.
    """

    def __init__(self, limit: int, send: Callable[[bytes], None]) -> None:
        self.room, self.keep, self.send = limit - limit // 2, limit // 2, send
        self.tail, self.size, self.chars = bytearray(), 0, 0

    def feed(self, data: bytes) -> None:
        """Take what was written next."""
        self.size += len(data)
        self.chars += len(data.translate(None, _CONTINUATION))
        if self.room:
            head, data = data[: self.room], data[self.room :]
            self.room -= len(head)
            self.send(head)
        if data and self.keep:
            self.tail += data[-self.keep :]
            if len(self.tail) > 2 * self.keep:
                del self.tail[: -self.keep]

    def rest(self) -> bytes:
        """The last bytes, as far as they were not sent as the first."""
        return bytes(self.tail[-self.keep :]) if self.keep else b""
