"""A tunnel to a Docker daemon that listens for encrypted connections and demands a certificate of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
import threading
import weakref
from pathlib import Path
from typing import Any

from ..errors import DaemonError

_PATIENCE = 20.0
"""Seconds for a connection to be established."""
_PIECE = 1 << 18


class TlsTunnel:
    """Encrypts connections to a local socket. One thread with an event loop copies between the two sides.

    Args:
        name: The daemon's machine, as its certificate names it.
        port: Its port.
        folder: With ``ca.pem``, ``cert.pem`` and ``key.pem``.
        path: The local socket.
    """

    def __init__(self, name: str, port: int, folder: Path, path: Path) -> None:
        self._name, self._port, self._folder, self._path = name, port, folder, path
        self._context: ssl.SSLContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self._listening: list[Any] = []
        self._failure: OSError | None = None
        """Why the thread could not listen."""

    def open(self) -> None:
        """See that the daemon accepts the certificate; start the thread if it does not run. Raises `DaemonError`."""
        if self._thread is not None:
            return
        try:
            self._context = ssl.create_default_context(cafile=str(self._folder / "ca.pem"))
            self._context.load_cert_chain(self._folder / "cert.pem", self._folder / "key.pem")
        except OSError as cause:  # also an SSLError
            raise DaemonError(
                f"cannot read ca.pem, cert.pem and key.pem in {self._folder} (DOCKER_CERT_PATH): {cause}"
            ) from cause
        self._check(self._context)
        ready = threading.Event()
        self._failure = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop, ready), name="rtl-gym-tls", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self._loop = self._thread = None
            raise DaemonError(f"cannot listen at {self._path} for the tunnel: {self._failure}") from self._failure

    def _check(self, context: ssl.SSLContext) -> None:
        address = f"tcp://{self._name}:{self._port}"
        try:
            with (
                socket.create_connection((self._name, self._port), timeout=_PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname=self._name) as stream,
            ):
                # In TLS 1.3 a server judges the client's certificate after the handshake.
                stream.sendall(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
                answer = stream.recv(64)
        except OSError as cause:
            raise DaemonError(f"cannot reach {address} with the certificates in {self._folder}: {cause}") from cause
        if not re.match(rb"HTTP/1\.[01] 200 ", answer):
            raise DaemonError(f"what listens at {address} does not answer as a Docker daemon")

    def _serve(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        """The thread: serve until `close` stops the loop."""
        try:
            server = loop.run_until_complete(asyncio.start_unix_server(self._accept, self._path))
        except OSError as error:
            self._failure = error
            loop.close()
            ready.set()
            return
        self._listening = list(server.sockets)
        ready.set()
        loop.run_forever()
        server.close()
        loop.run_until_complete(_cancel_all())
        loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_PATIENCE):
                far_reader, far_writer = await asyncio.open_connection(self._name, self._port, ssl=self._context)
        except OSError as cause:  # also a TimeoutError
            await _refuse(reader, writer, f"cannot reach tcp://{self._name}:{self._port}: {cause or 'no answer'}")
            return
        self._writers.add(far_writer)
        # TLS streams do not end in one direction only: when one side ends, both do.
        copying = {
            asyncio.ensure_future(_copy(reader, far_writer)),
            asyncio.ensure_future(_copy(far_reader, writer)),
        }
        try:
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)
            for end in (writer, far_writer):
                end.close()

    def close(self) -> None:
        """End the thread and every connection."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def forget(self) -> None:
        """See `Tunnel.forget`."""
        sockets = [*self._listening, *(writer.get_extra_info("socket") for writer in self._writers)]
        for wrapped in sockets:
            descriptor = wrapped._sock.detach()
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._loop = self._thread = None


async def _cancel_all() -> None:
    """Cancel every other task of this loop, and let closed connections go."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.05)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy until either side ends."""
    with contextlib.suppress(OSError):
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why: str) -> None:
    """Answer a request as a daemon that has an error would."""
    body = json.dumps({"message": why}).encode()
    with contextlib.suppress(OSError):
        await reader.read(_PIECE)
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
    writer.close()
