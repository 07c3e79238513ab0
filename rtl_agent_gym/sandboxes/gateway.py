"""Gives the programs of a sandbox, which has no network, access to one address of this machine.

A process in the sandbox (`gateway_inside.py`) listens on a port of the loopback interface. It sends the bytes of each
connection in frames over its stdin and stdout, which are part of the sandbox's channel, and a `Gateway` here connects
to the one address. Nothing else can be reached, since a frame contains no address.

The sandbox may be hostile. Connections, buffered bytes and bytes per second are limited, so that a sandbox can use only
its own share of this process; one that does not read blocks only its own connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from importlib import resources

from ..errors import SandboxBroken, SandboxError, SandboxLost
from .channel import Process
from .gateway_inside import HEADER, PIECE
from .protocol import Sandbox

PORT = 4117
"""The port on the sandbox's loopback interface."""
CONNECTIONS = 8
"""Maximum number of open connections; further ones are closed at once."""
OPENING = 0.01
"""Minimum seconds between new connections."""
RATE = 32 << 20
"""Maximum bytes per second from the sandbox."""
START = 60.0
"""Seconds within which the port must be open."""


class Gateway:
    """Owns the process in the sandbox and the connections here, which end with the sandbox.

    Args:
        sandbox: The sandbox with the port.
        host, port: The address on this machine.

    Example:
        await Gateway(sandbox, "127.0.0.1", 8000).start()
        print((await sandbox.run("curl -s http://127.0.0.1:4117/")).output)
    """

    def __init__(self, sandbox: Sandbox, host: str, port: int) -> None:
        self._sandbox, self._address = sandbox, (host, port)
        self._process: Process
        self._reading: asyncio.Task[None]
        self._newest = 0
        """The highest number of a connection so far: a lower one that is not open is never opened again."""
        self._open: dict[int, tuple[asyncio.StreamWriter, asyncio.Task[None]]] = {}

    async def start(self) -> None:
        """Open the port. Raises `SandboxError` if that is not possible, and the errors of the sandbox's methods."""
        program = resources.files(__package__).joinpath("gateway_inside.py").read_text(encoding="utf-8")
        self._process = await self._sandbox.spawn(["/usr/bin/python3", "-ISBc", program, str(PORT)], cwd="/")
        try:
            async with asyncio.timeout(START):
                await self._process.output.readexactly(HEADER.size)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            await self._process.kill()
            raise SandboxLost(f"sandbox {self._sandbox.id}: its port {PORT} cannot be opened") from error
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        """Forward frames from the sandbox until its process ends."""
        source = self._process.output
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    number, size = HEADER.unpack(await source.readexactly(HEADER.size))
                    if size > PIECE:  # not written by `gateway_inside.py`
                        break
                    data = await source.readexactly(size)
                    await asyncio.sleep(size / RATE)
                    await self._carry(number, data)
        finally:
            for writer, task in self._open.values():
                task.cancel()
                writer.transport.abort()

    async def _carry(self, number: int, data: bytes) -> None:
        found = self._open.get(number)
        if found is None and data and number > self._newest:
            self._newest = number
            await asyncio.sleep(OPENING)
            found = await self._connect(number)
        if found is None:
            return
        writer, task = found
        if not data:
            task.cancel()
            return
        with contextlib.suppress(OSError):  # the other end has closed it, which its task notices
            writer.write(data)
            await writer.drain()

    async def _connect(self, number: int) -> tuple[asyncio.StreamWriter, asyncio.Task[None]] | None:
        """Open a connection to the address; None if that fails or too many are open."""
        try:
            if len(self._open) >= CONNECTIONS:
                raise ConnectionRefusedError
            reader, writer = await asyncio.open_connection(*self._address, limit=PIECE)
        except OSError:
            await self._answer(number, b"")
            return None
        task = asyncio.ensure_future(self._return(number, reader, writer))
        self._open[number] = writer, task
        return self._open[number]

    async def _return(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward what the address sends, until one side ends the connection."""
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(PIECE):
                    await self._answer(number, data)
            await self._answer(number, b"")
        finally:
            del self._open[number]
            writer.transport.abort()

    async def _answer(self, number: int, data: bytes) -> None:
        """Send a frame into the sandbox; return when its process's pipe has taken it."""
        # If the sandbox is lost, its own methods report that.
        with contextlib.suppress(OSError, SandboxError, SandboxBroken):
            await self._process.write(HEADER.pack(number, len(data)) + data)
