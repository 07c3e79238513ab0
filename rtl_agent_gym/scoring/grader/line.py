"""The protocol of a supervisor's socket, one JSON object per line, and the client for guards and witnesses."""

from __future__ import annotations

import json
from _socket import AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False
if TYPE_CHECKING:  # not needed before every simulation
    from .messages import GradingRequest, Greeting, Message

SOCKET = "\0rtl-agent-gym"
"""An abstract address; each sandbox has a separate namespace of such addresses."""
OK = b"ok\n"


def encode(message: Message | Greeting | GradingRequest) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode() + b"\n"


class Line:
    """A connection to the supervisor of this grading. No time limit, since a frozen or starved supervisor replies late.

    Raises:
        OSError: There is no supervisor, or it has ended.
    """

    def __init__(self, address: str = SOCKET) -> None:
        self._socket = socket(AF_UNIX, SOCK_STREAM)
        try:
            self._socket.connect(address)
            greeting: Greeting = json.loads(self._read())
        except BaseException:
            self.close()
            raise
        self.settings, self.seed, self.named = greeting["settings"], greeting["seed"], greeting["named"]
        self.times = greeting["times"]

    def send(self, message: Message) -> None:
        """Send a message, and wait for the supervisor's acknowledgement."""
        self._socket.sendall(encode(message))
        if self._read() != OK:
            raise ConnectionError("the supervisor sent an unexpected reply")

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the supervisor closed the connection")
            line += data
        return line
