"""The client's end of the conversation with a warden, without one."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.errors import SandboxBroken, SandboxError, SandboxLost
from rtl_agent_gym.sandboxes import SandboxSpec, channel
from rtl_agent_gym.sandboxes.admission import Budget, Limits
from rtl_agent_gym.sandboxes.channel import Channel
from rtl_agent_gym.sandboxes.warden.frames import pack
from rtl_agent_gym.sandboxes.warden_sandbox import CpuTime, WardenSandbox, starving


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


@pytest.mark.parametrize(
    ("memory", "seen", "starved"),
    [
        (0.96, [], False),
        (0.97, [], True),
        (0.0, [CpuTime(5.0, 100.0), CpuTime(21.0, 110.0)], False),  # 1.6 of 2 processors
        (0.0, [CpuTime(5.0, 100.0), CpuTime(22.0, 110.0)], True),
        (0.0, [CpuTime(5.0, 100.0), CpuTime(45.0, 110.0), CpuTime(45.0, 111.0)], True),  # until a moment ago
        (0.0, [CpuTime(5.0, 100.0), None, CpuTime(22.0, 110.0)], True),
        (0.0, [CpuTime(5.0, 100.0), CpuTime(5.0, 100.0)], False),  # the same moment
    ],
)
def test_what_starves_a_warden(memory: float, seen: list[CpuTime | None], starved: bool) -> None:
    assert bool(starving(memory, seen, 2.0)) == starved


class Silent(WardenSandbox):
    """A sandbox whose warden never answers."""

    cause = "its commands did it"

    async def _own_doing(self, before: CpuTime | None) -> str:
        return self.cause

    async def _cpu_time(self) -> None:
        return None

    async def _remove(self) -> None: ...


@pytest.mark.parametrize(
    ("role", "used", "cause", "expected"),
    [
        ("agent", True, "its commands did it", SandboxBroken),
        ("agent", True, "", SandboxLost),
        ("agent", False, "its commands did it", SandboxLost),  # none has run
        ("scoring", True, "its commands did it", SandboxLost),
    ],
)
async def test_only_an_agents_commands_break_a_sandbox(
    role: Any, used: bool, cause: str, expected: type[SandboxError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SECOND_WAIT", 0.01)
    sandbox = Silent(SandboxSpec(role=role), Budget(Limits(memory=1 << 30, cpus=1, starts=1)), lambda _: None)
    sandbox._channel, sandbox.cause = Channel("box", bytes), cause
    if used:
        monkeypatch.setattr("rtl_agent_gym.sandboxes.warden_sandbox.GRACE", 0.01)
        with pytest.raises(expected):
            await sandbox.run("true", timeout=0.01)
    else:
        with pytest.raises(expected):
            await sandbox._ask(b"P", {}, patience=0.01)
    with pytest.raises(expected):  # also later
        await sandbox._ask(b"P", {}, patience=0.01)


async def test_a_sandbox_that_is_closed_meanwhile_is_lost_and_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Silent(SandboxSpec(), Budget(Limits(memory=1 << 30, cpus=1, starts=1)), lambda _: None)
    sandbox._channel = Channel("box", bytes)
    running = asyncio.ensure_future(sandbox.run("true"))
    await asyncio.sleep(0)
    await sandbox.close()
    with pytest.raises(SandboxLost, match="is closed"):
        await running


async def test_what_a_listener_raises_reaches_its_caller_once_the_command_has_ended() -> None:
    sandbox = Silent(SandboxSpec(), Budget(Limits(memory=1 << 30, cpus=1, starts=1)), lambda _: None)
    sandbox._channel = line = Channel("box", bytes)

    def listen(piece: bytes) -> None:
        raise ValueError("I do not like it")

    running = asyncio.ensure_future(sandbox.run("true", on_output=listen))
    await asyncio.sleep(0)
    line.data_received(pack(b"o", {"id": 1}, b"x") + pack(b"d", {"id": 1, "size": 1, "output_chars": 1}))
    with pytest.raises(ValueError, match="I do not like it"):
        await running
