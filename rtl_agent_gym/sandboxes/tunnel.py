"""Ways to a Docker daemon on another machine, which end in a unix socket on this one.

The client and the streams to the wardens use that socket as they use a local daemon's. Behind it are

- for ``ssh://``: one `ssh` process, which forwards connections to the daemon's socket there;
- for ``tcp://`` with TLS: a thread, which encrypts each connection.

A tunnel belongs to this process, and ends with it, even by SIGKILL: the `ssh` process ends when its stdin does, and
sockets close. A forked child has no tunnels. The folder of the socket is private; a killed process leaves it, and the
next tunnel of this user removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from ..errors import DaemonError
from .tunnel_ssh import SshTunnel
from .tunnel_tls import TlsTunnel

_PREFIX = "rtl-agent-gym-tunnel-"


class Tunnel(Protocol):
    """A way to one daemon."""

    def open(self) -> None:
        """Open it, or open it again if it has broken. Raises `DaemonError`."""

    def close(self) -> None:
        """End it. Idempotent."""

    def forget(self) -> None:
        """Close this process's copies of its descriptors, after a fork, without ending it."""


_tunnels: dict[tuple[str, ...], tuple[Tunnel, Path]] = {}
_opening = threading.Lock()


def reach(host: str, environment: Mapping[str, str] = os.environ) -> str:
    """The address at which this process reaches a daemon: ``host`` itself, or the local end of a tunnel to it.

    Cheap if the tunnel is open; one that has broken is opened again, with the same local end.

    Args:
        host: ``unix://PATH``, ``tcp://HOST:PORT``, or ``ssh://[USER@]HOST[:PORT][/PATH]`` with the daemon's socket.
        environment: Where Docker's variables for TLS are looked up: DOCKER_TLS_VERIFY and DOCKER_CERT_PATH.

    Raises:
        DaemonError: The daemon cannot be reached this way, or must not be: unencrypted on another machine.
    """
    if host.startswith("unix://"):
        return host
    try:
        where = urlsplit(host)
        port = where.port
    except ValueError as cause:
        raise DaemonError(f"DOCKER_HOST={host}: {cause}") from cause
    if where.scheme == "ssh" and where.hostname:
        return _through((host,), lambda path: SshTunnel(where, path))
    if where.scheme == "tcp" and where.hostname and port:
        if environment.get("DOCKER_TLS_VERIFY") or environment.get("DOCKER_CERT_PATH"):
            folder = Path(environment.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
            return _through((host, str(folder)), lambda path: TlsTunnel(where.hostname or "", port, folder, path))
        if _is_loopback(where.hostname):
            return host
        raise DaemonError(
            f"{host} is not used without TLS: whoever can reach it controls that machine. Use ssh://{where.hostname}, "
            f"or set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH to the folder of ca.pem, cert.pem and key.pem"
        )
    raise DaemonError(f"DOCKER_HOST={host} is no address: use unix://PATH, ssh://[USER@]HOST[:PORT] or tcp://HOST:PORT")


def _is_loopback(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def _through(key: tuple[str, ...], make: Callable[[Path], Tunnel]) -> str:
    with _opening:
        again = key in _tunnels
        if not again:
            _tidy()
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))  # only this user may enter it
            _tunnels[key] = make(folder / "docker.sock"), folder
        tunnel, folder = _tunnels[key]
        try:
            tunnel.open()
        except BaseException:
            tunnel.close()
            if not again:  # else there are clients that know this local end
                del _tunnels[key]
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return f"unix://{folder}/docker.sock"


def _tidy() -> None:
    """Remove the folders of this user's processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        match = re.fullmatch(rf"{_PREFIX}(\d+)-.*", folder.name)
        with contextlib.suppress(OSError):
            if match and not Path(f"/proc/{match[1]}").exists() and folder.stat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


@atexit.register
def close_tunnels() -> None:
    """End all tunnels of this process."""
    while _tunnels:
        tunnel, folder = _tunnels.popitem()[1]
        tunnel.close()
        shutil.rmtree(folder, ignore_errors=True)


def _forget_in_child() -> None:
    """A forked child must not keep the connections of its parent open."""
    global _opening
    _opening = threading.Lock()
    for tunnel, _ in _tunnels.values():
        tunnel.forget()
    _tunnels.clear()


os.register_at_fork(after_in_child=_forget_in_child)
