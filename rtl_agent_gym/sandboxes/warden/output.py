"""Output of bounded size, and the shell's command that writes it. Standard library only: runs inside a sandbox, and
`Output` also in the client.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from .files import read_files
from .frames import reply

CONTINUATION = bytes(range(0x80, 0xC0))  # UTF-8 bytes that begin no character


class Output:
    """The first and the last bytes of a stream; those in between are counted and dropped, so memory stays bounded.

    Args:
        limit: Bytes to keep: half of them the first, half the last.
        send: Called with the first bytes, as they arrive.
    """

    def __init__(self, limit: int, send: Callable[[bytes], None]) -> None:
        self.head_left, self.keep, self.send = limit - limit // 2, limit // 2, send
        self.tail, self.size, self.chars = bytearray(), 0, 0

    def feed(self, data: bytes) -> None:
        """Add what was written next."""
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
        """The last bytes, without those that were sent as the first."""
        return bytes(self.tail[-self.keep :]) if self.keep else b""


class Job:
    """A command: its output and its deadline.

    Args:
        header: Of the request: ``id``; ``timeout`` in seconds; ``limit``, the bytes of output to keep; ``stream``,
            whether to send output before the end; ``read``, the files to send with the end, as for `read_files`.
        at_end: Called when it has ended, before its files are read.
    """

    def __init__(self, header: Mapping[str, Any], at_end: Callable[[], None] = lambda: None) -> None:
        self.id, self.at_end = header["id"], at_end
        self.begun = time.monotonic()
        self.deadline: float = self.begun + header["timeout"]
        self.step, self.timed_out = 0, False
        self.read, self.head = header.get("read"), bytearray()
        self.output = Output(header["limit"], self.stream if header.get("stream") else self.head.extend)

    def stream(self, data: bytes) -> None:
        """Send output as it comes."""
        reply(b"o", {"id": self.id}, data)

    def done(self, exit_code: int, **more: object) -> None:
        """Report the end, with the output that has not been sent and the files, all in one frame."""
        self.at_end()
        header: dict[str, Any] = {
            "id": self.id,
            "exit_code": None if self.timed_out else exit_code,
            "timed_out": self.timed_out,
            "size": self.output.size,
            "output_chars": self.output.chars,
            "seconds": time.monotonic() - self.begun,
            **more,
        }
        body = [bytes(self.head), self.output.rest()]
        if self.read is not None:
            with contextlib.suppress(OSError, ValueError):  # the client asks again, and is told then
                contents: list[bytes] = []
                header["read"] = read_files(self.read, contents.append)
                body += contents
        reply(b"d", header, b"".join(body))
