"""A second Docker daemon on this machine, with folders and a network of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes.daemon import daemon_host
from rtl_agent_gym.sandboxes.image import image_tag


class SecondDaemon:
    """A dockerd of the test's own, in a network namespace of its own: it would tidy up the other's bridge otherwise."""

    def __init__(self, home: Path, arguments: Sequence[str] = ()) -> None:
        self.home, self.host, self.arguments = home, f"unix://{home}/sock", list(arguments)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for left in (self.home / "pid", self.home / "exec" / "containerd" / "containerd.pid"):
            left.unlink(missing_ok=True)
        folders = ["--data-root", f"{self.home}/data", "--exec-root", f"{self.home}/exec"]
        quiet = ["--bridge", "none", "--iptables=false", "--ip-forward=false"]
        here = ["--pidfile", f"{self.home}/pid", "--host", self.host]
        with_loopback = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
        command = [*with_loopback, "dockerd", *folders, *here, *quiet, *self.arguments]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        while subprocess.run(["docker", "-H", self.host, "version"], capture_output=True).returncode:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"no second daemon: {(self.home / 'log').read_text()[-800:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the daemon and its containerd, which keep nothing and tell nobody; the containers themselves go on."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """End it with all that it ran, and with its mounts."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        subprocess.run(["pkill", "-KILL", "-f", str(self.home)], check=False)  # what a killed one left
        deadline = time.monotonic() + 20
        while (mounts := self.mounts()) and time.monotonic() < deadline:
            subprocess.run(["umount", *reversed(mounts)], check=False, capture_output=True)
            time.sleep(0.2)

    def mounts(self) -> list[str]:
        found = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return [place for place in found if place.startswith(str(self.home))]

    def publish(self, port: int) -> int:
        """A port of this machine's loopback that leads to one of the daemon's loopback, until this process ends."""
        assert self.process is not None
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_forward, args=(listener, self.process.pid, port), daemon=True).start()
        return int(listener.getsockname()[1])


def _forward(listener: socket.socket, process: int, port: int) -> None:
    """Accept connections here, and make their other halves in the network namespace of a process."""
    with open(f"/proc/{process}/ns/net") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000) == 0  # of this thread alone

    while True:
        near = listener.accept()[0]
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()
            continue
        threading.Thread(target=_join, args=(near, far), daemon=True).start()


def _join(near: socket.socket, far: socket.socket) -> None:
    """Copy between two connections until one ends."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    with near, far:
        back = threading.Thread(target=copy, args=(far, near), daemon=True)
        back.start()
        copy(near, far)
        back.join()


@contextlib.contextmanager
def second_daemon(*arguments: str, image: bool = True) -> Iterator[SecondDaemon]:
    """A running second daemon with the simulation image. Skips the test where there can be none.

    Args:
        arguments: More arguments for dockerd.
        image: Whether it gets the image.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "unshare", "docker", "ip"))):
        pytest.skip("a second daemon takes root, dockerd, unshare and ip")
    home = Path(tempfile.mkdtemp(prefix="second-daemon-", dir="/var/tmp"))
    made = SecondDaemon(home, arguments)
    try:
        made.start()
        if not image:
            yield made
            return
        with subprocess.Popen(["docker", "-H", daemon_host(), "save", image_tag()], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", "-H", made.host, "load"], stdin=saved.stdout, check=True, capture_output=True)
        assert saved.returncode == 0
        yield made
    finally:
        if made.process is not None:
            made.end()
        shutil.rmtree(home)
