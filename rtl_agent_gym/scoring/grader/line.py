"""A connection to the supervisor, for guards and witnesses."""

from __future__ import annotations

from _socket import AF_UNIX, SOCK_STREAM, socket

from .messages import OK, SOCKET, Message, Settings, decode, encode


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
