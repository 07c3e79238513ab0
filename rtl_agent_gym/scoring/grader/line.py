"""The socket of a supervisor: one JSON object a line, and the end of the line that guards and witnesses hold."""

from __future__ import annotations

import json
from _socket import AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False
if TYPE_CHECKING:  # not needed before every simulation
    from typing import Any

    from .messages import Message, Request, Settings

SOCKET = "\0rtl-agent-gym"
"""An abstract address, of which each sandbox has its own."""
OK = b"ok\n"


def encode(message: Message | Settings | Request) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Any:
    """The message of one line."""
    return json.loads(line)


class Line:
    """A connection to the supervisor of this grading; no time limit, as a frozen or starved sandbox answers late.

    Raises:
        OSError: Nobody supervises, or the supervisor has gone.
    """

    def __init__(self, address: str = SOCKET) -> None:
        self._socket = socket(AF_UNIX, SOCK_STREAM)
        try:
            self._socket.connect(address)
            self.settings: Settings = decode(self._read())
        except BaseException:
            self.close()
            raise

    def tell(self, message: Message) -> None:
        """Send a message, and return when the supervisor knows of it."""
        self._socket.sendall(encode(message))
        if self._read() != OK:
            raise ConnectionError("the supervisor said something else than that it has heard")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the supervisor has hung up")
            line += data
        return line
