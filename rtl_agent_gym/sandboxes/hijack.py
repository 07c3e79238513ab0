"""A raw socket into a container: the Docker API's attach call, upgraded to a plain stream.

The Docker SDK offers this too, but its socket stays tied to an HTTP connection of its own, and a sandbox must die
with the one descriptor that we hold. API: https://docs.docker.com/reference/api/engine/ (ContainerAttach).
"""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from ..errors import DaemonError
from .daemon import daemon_host

_PATIENCE = 60.0


def hijack(path: str) -> socket.socket:
    """POST to the daemon and take the connection over.

    Args:
        path: Path and query of the call, such as ``/containers/ID/attach?stream=1&stdin=1``.

    Returns:
        The connected socket; what Docker sends on it has been read up to the end of the HTTP header and no further.

    Raises:
        DaemonError: The daemon refused, or cannot be reached in this way.
        OSError: The connection failed.
    """
    sock = _connect(daemon_host())
    try:
        sock.sendall(
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            "Content-Length: 0\r\n\r\n".encode()
        )
        header = bytearray()
        while not header.endswith(b"\r\n\r\n"):  # byte by byte, as what follows is not ours to read
            byte = sock.recv(1)
            if not byte:
                raise DaemonError("the Docker daemon closed the connection")
            header += byte
        status = header.split(b"\r\n", 1)[0].decode(errors="replace")
        if status.split()[1] not in ("101", "200"):
            raise DaemonError(f"Docker refused: {status}: {sock.recv(4096).decode(errors='replace').strip()}")
    except BaseException:
        sock.close()
        raise
    sock.settimeout(None)
    return sock


def _connect(host: str) -> socket.socket:
    url = urlsplit(host)
    if url.scheme == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(_PATIENCE)
        try:
            sock.connect(url.path)
        except OSError:
            sock.close()
            raise
        return sock
    if url.scheme == "tcp" and not os.environ.get("DOCKER_TLS_VERIFY"):
        return socket.create_connection((url.hostname or "localhost", url.port or 2375), timeout=_PATIENCE)
    raise DaemonError(
        f"cannot attach to containers through DOCKER_HOST={host}: use a unix:// or a plain tcp:// address"
    )
