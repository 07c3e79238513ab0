"""The client's end of the conversation with a warden, without one."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from rtl_agent_gym.sandboxes.channel import Channel
from rtl_agent_gym.sandboxes.warden.frames import pack


async def test_any_loops_transport_will_do() -> None:
    """uvloop's is no subclass of asyncio's."""
    sent: list[bytes] = []
    transport: Any = SimpleNamespace(set_write_buffer_limits=lambda high: None, write=sent.append)
    channel = Channel("box", bytes)
    channel.connection_made(transport)
    channel.tell(b"K", {})
    assert sent == [pack(b"K", {})]


async def test_a_reply_that_came_while_this_process_stood_still_is_read_to_its_end() -> None:
    channel = Channel("box", bytes)
    request = channel.send(b"P", {})
    frame = pack(b"d", {"id": request.number}, b"x" * 100)
    waiting = asyncio.ensure_future(channel.wait(request, 0.1))
    await asyncio.sleep(0)
    time.sleep(0.2)
    for piece in (frame[:50], frame[50:]):  # a loop reads a long one in pieces
        channel.data_received(piece)
        await asyncio.sleep(0.05)
    assert await waiting == ({}, b"x" * 100)
