"""A tunnel to a Docker daemon through an `ssh` process."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from urllib.parse import SplitResult, unquote

from ..errors import DaemonError
from .host import find_program, tail

REMOTE_SOCKET = "/var/run/docker.sock"
"""Where the daemon listens if the address names no path."""
_PATIENCE = 20.0
"""Seconds for the connection to be established."""


class SshTunnel:
    """Forwards a local socket through an `ssh` process, with the keys and the configuration of this user.

    Args:
        where: The address.
        path: The local socket.
    """

    def __init__(self, where: SplitResult, path: Path) -> None:
        name = f"{where.username}@{where.hostname}" if where.username else str(where.hostname)
        remote = unquote(where.path) if where.path.strip("/") else REMOTE_SOCKET
        self._name, self._remote, self._path = name, remote, path
        self._port = ["-p", str(where.port)] if where.port else []
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the process if none runs, and wait until it is connected. Raises `DaemonError`."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ssh = find_program("ssh")
        if ssh is None:
            raise DaemonError("DOCKER_HOST=ssh://… needs the program ssh; install it (Debian: openssh-client)")
        options = {
            "BatchMode": "yes",  # nobody answers questions
            "ExitOnForwardFailure": "yes",
            "StreamLocalBindUnlink": "yes",
            "ControlPath": "none",  # the forwarding of a shared connection would outlive this process
            "ConnectTimeout": str(int(_PATIENCE / 2)),
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "4",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        argv = [ssh, "-T", *words, *self._port, "-L", f"{self._path}:{self._remote}", "--", self._name]
        # Forwarding stands before the command starts; `cat` ends with this process, as its stdin does.
        self._process = subprocess.Popen(
            [*argv, "echo connected; exec cat > /dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which still has containers to end
        )
        late = threading.Timer(_PATIENCE, self._process.kill)
        late.start()
        assert self._process.stdout is not None
        try:
            greeting = self._process.stdout.readline()
        finally:
            late.cancel()
        if greeting != b"connected\n":
            self._process.kill()
            _, errors = self._process.communicate()
            self._process = None
            why = tail(errors.decode(errors="replace").splitlines(), 3).strip() or f"no answer in {_PATIENCE:g} s"
            raise DaemonError(
                f"cannot reach {self._name} by ssh: {why}. `ssh {' '.join([*self._port, self._name])} true` must work "
                f"without a question"
            )

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def forget(self) -> None:
        """See `Tunnel.forget`."""
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout, process.stderr) if process is not None else ():
            if pipe is not None:
                pipe.close()
