"""An image registry of a test's own, on the loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def registry(folder: Path, port: int = 0, *, namespace_of: int | None = None) -> Iterator[int]:
    """The port of a running registry.

    Args:
        folder: Where it keeps images. Several may share one.
        port: Where it listens; 0 for a free one.
        namespace_of: A process in whose network namespace it runs; None for this one's.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("push and pull are tested with a registry (Debian: docker-registry)")
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    inside = ["nsenter", f"--net=/proc/{namespace_of}/ns/net"] if namespace_of else []
    config = folder / f"config-{namespace_of or 0}.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/images}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    log = folder / f"log-{namespace_of or 0}"
    with log.open("wb") as output:
        process = subprocess.Popen([*inside, program, "serve", str(config)], stdout=output, stderr=output)
    try:
        for _ in range(100):
            asked = [*inside, "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]
            if subprocess.run(asked, capture_output=True).returncode == 0:
                break
            if process.poll() is not None:
                pytest.fail(f"no registry: {log.read_text()[-800:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()
