"""Listens on a port of a sandbox's loopback interface, and forwards its connections over stdin and stdout. Runs inside
the sandbox; standard library only.

The other end is `gateway.py`. The argument is the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys

HEADER = struct.Struct(">II")
"""A frame's header: the connection's number and the length of the data; 0 ends it. Connection 0: the port is open."""
PIECE = 128 << 10
"""Maximum bytes of data in a frame."""


class Gateway:
    """The state of the program."""

    def __init__(self, out: asyncio.StreamWriter) -> None:
        self._out, self._last = out, 0
        self._open: dict[int, asyncio.StreamWriter] = {}

    async def send(self, number: int, data: bytes) -> None:
        self._out.write(HEADER.pack(number, len(data)) + data)
        await self._out.drain()

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward what a program of the sandbox sends."""
        number = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                if not number:  # only now, so that connections' first frames are in the order of their numbers
                    self._last += 1
                    number = self._last
                    self._open[number] = writer
                await self.send(number, data)
        if self._open.pop(number, None) is not None:
            await self.send(number, b"")
        writer.close()

    async def on_frame(self, number: int, data: bytes) -> None:
        """Forward what comes from outside."""
        writer = self._open.get(number)
        if writer is None:
            return
        with contextlib.suppress(OSError):
            if data:
                writer.write(data)
                await writer.drain()
            else:
                del self._open[number]
                writer.close()


async def main(port: int) -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    source = asyncio.StreamReader(PIECE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(source), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    gateway = Gateway(asyncio.StreamWriter(transport, protocol, None, loop))
    await asyncio.start_server(gateway.on_connection, "127.0.0.1", port, limit=PIECE)
    await gateway.send(0, b"")
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            number, size = HEADER.unpack(await source.readexactly(HEADER.size))
            await gateway.on_frame(number, await source.readexactly(size))


if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # stderr would be mixed with the frames
    asyncio.run(main(int(sys.argv[1])))
