"""The way to a server, which can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self


class Switch:
    """A socket that leads to another. While it is off, connections break, and new ones are refused.

    Args:
        near: The path of a Unix socket, or a port; 0 for a free one, which it keeps.
        far: The server's, of the same kind.
    """

    def __init__(self, near: Path | int, far: Path | int) -> None:
        self.near, self.far = near, far
        self.server: asyncio.Server | None = None
        self.open: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.on()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.off()

    async def on(self) -> None:
        if isinstance(self.near, Path):
            self.server = await asyncio.start_unix_server(self.serve, self.near)
        else:
            self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.near)
            self.near = self.server.sockets[0].getsockname()[1]

    async def off(self) -> None:
        if self.server is not None:
            self.server.close()
        for writer in list(self.open):
            writer.transport.abort()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if isinstance(self.near, Path):
            self.near.unlink(missing_ok=True)
        self.server = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self.far, Path):
            far_reader, far_writer = await asyncio.open_unix_connection(self.far)
        else:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.far)
        pair = {writer, far_writer}
        self.open |= pair
        tasks = [asyncio.ensure_future(pump(reader, far_writer)), asyncio.ensure_future(pump(far_reader, writer))]
        self.tasks |= set(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.open -= pair
        self.tasks -= set(tasks)
        for end in pair:
            end.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
