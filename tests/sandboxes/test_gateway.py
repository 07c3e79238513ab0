"""One address for the programs of a sandbox without a network, and what a hostile one can do with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from rtl_agent_gym.errors import SandboxBroken
from rtl_agent_gym.sandboxes import Sandbox
from rtl_agent_gym.sandboxes.gateway import CONNECTIONS, OPENING, PORT, RATE, Gateway
from rtl_agent_gym.sandboxes.gateway_inside import HEADER, PIECE
from tests.sandboxes.providers import on_both_providers
from tests.waiting import soon

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_both_providers(metafunc, test_connections_are_limited, test_who_does_not_read_stops_only_itself)


ASK = f"""
import socket, sys
def ask(data):
    with socket.create_connection(("127.0.0.1", {PORT}), timeout=100) as found:
        found.sendall(len(data).to_bytes(8, "big") + data)
        answer = b""
        while len(answer) < 8 + len(data):
            if not (piece := found.recv(1 << 16)):
                break
            answer += piece
        return answer[8:]
"""


class Upper:
    """A server that answers a length and that many bytes with the same in upper case."""

    def __init__(self) -> None:
        self.most = self.now = self.bytes = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    size = await reader.readexactly(8)
                    data = await reader.readexactly(int.from_bytes(size, "big"))
                    self.bytes += len(data)
                    writer.write(size + data.upper())
                    await writer.drain()
        finally:
            self.now -= 1
            writer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[tuple[Upper, str, int]]:
    upper = Upper()
    listening = await asyncio.start_server(upper, "127.0.0.1", 0, limit=1 << 20)
    host, port = listening.sockets[0].getsockname()[:2]
    yield upper, host, port
    listening.close()


@contextlib.asynccontextmanager
async def gateway_of(sandbox: Sandbox, host: str, port: int) -> AsyncIterator[Gateway]:
    """A gateway whose process is killed at the end of the context."""
    made = Gateway(sandbox, host, port)
    await made.start()
    yield made
    await made._process.kill()
    await made._reading


async def python(sandbox: Sandbox, text: str) -> str:
    return (await sandbox.run(f"python3 - <<'END'\n{ASK}{text}\nEND", timeout=120.0)).output


async def test_who_connects_first_may_speak_last(shared_sandbox: Sandbox, server: tuple[Upper, str, int]) -> None:
    _, host, port = server
    async with gateway_of(shared_sandbox, host, port):
        text = f"""
first = socket.create_connection(("127.0.0.1", {PORT}), timeout=20)
import time; time.sleep(0.2)
print(ask(b"second"))
first.sendall((5).to_bytes(8, "big") + b"first")
print(first.recv(100)[8:])
"""
        assert (await python(shared_sandbox, text)).splitlines() == ["b'SECOND'", "b'FIRST'"]


async def test_bytes_go_both_ways_and_many_at_once(shared_sandbox: Sandbox, server: tuple[Upper, str, int]) -> None:
    upper, host, port = server
    async with gateway_of(shared_sandbox, host, port):
        text = """
from concurrent.futures import ThreadPoolExecutor
print(ask(b"hello"))
big = bytes(97 + n % 26 for n in range(1_000_000))
with ThreadPoolExecutor(4) as threads:
    print([answer == big.upper() for answer in threads.map(ask, [big] * 4)])
"""
        assert (await python(shared_sandbox, text)).splitlines() == ["b'HELLO'", "[True, True, True, True]"]
    assert upper.bytes == 4_000_005


async def test_nothing_else_can_be_reached_and_it_ends(shared_sandbox: Sandbox, server: tuple[Upper, str, int]) -> None:
    upper, host, port = server
    text = f"""
for port in ({port}, {PORT}, 80):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        print(port, "open")
    except OSError as error:
        print(port, type(error).__name__)
"""
    async with gateway_of(shared_sandbox, host, port):
        lines = (await python(shared_sandbox, text)).splitlines()
        assert lines == [f"{port} ConnectionRefusedError", f"{PORT} open", "80 ConnectionRefusedError"]
    lines = (await python(shared_sandbox, text)).splitlines()
    assert lines[1] == f"{PORT} ConnectionRefusedError"
    assert "gateway" not in (await shared_sandbox.run("ps -eo args | grep 4117 | grep -v grep")).output
    assert await soon(lambda: not upper.now, 5)


async def test_connections_are_limited(shared_sandbox: Sandbox, server: tuple[Upper, str, int]) -> None:
    upper, host, port = server
    text = f"""
found = [socket.create_connection(("127.0.0.1", {PORT}), timeout=30) for _ in range(40)]
answers = []
for one in found:
    try:
        one.sendall((2).to_bytes(8, "big") + b"hi")
        answers.append(one.recv(100)[8:])
    except OSError:
        answers.append(b"")
print(answers.count(b"HI"), answers.count(b""))
for one in found:
    one.close()
print(ask(b"again"))
"""
    async with gateway_of(shared_sandbox, host, port):
        lines = (await python(shared_sandbox, text)).splitlines()
        assert lines == [f"{CONNECTIONS} {40 - CONNECTIONS}", "b'AGAIN'"]
    assert upper.most == CONNECTIONS


async def test_who_does_not_read_stops_only_itself(shared_sandbox: Sandbox, server: tuple[Upper, str, int]) -> None:
    """The bytes wait in the sandbox: this process holds a bounded part of them."""
    upper, host, port = server
    text = f"""
one = socket.create_connection(("127.0.0.1", {PORT}), timeout=1)
sent = 0
try:
    while sent < 400_000_000:
        one.sendall((1 << 20).to_bytes(8, "big") + b"x" * (1 << 20))
        sent += 1 << 20
except TimeoutError:
    print("waits")
print(sent < 64_000_000)
"""
    async with gateway_of(shared_sandbox, host, port):
        assert (await python(shared_sandbox, text)).splitlines() == ["waits", "True"]
    assert upper.bytes < 64_000_000
    assert (await shared_sandbox.run("echo alive")).output == "alive\n"


class _Frames:
    """Stands for the process in a sandbox: sends these frames, and keeps what it is sent."""

    def __init__(self, *frames: tuple[int, bytes]) -> None:
        self.output = asyncio.StreamReader()
        self.sent: list[tuple[int, bytes]] = []
        for number, data in ((0, b""), *frames):
            self.output.feed_data(HEADER.pack(number, len(data)) + data)

    async def write(self, data: bytes) -> None:
        self.sent.append((HEADER.unpack_from(data)[0], data[HEADER.size :]))

    async def kill(self) -> None:
        self.output.feed_eof()


class _Box:
    id = "box"

    def __init__(self, process: Any) -> None:
        self.process = process

    async def spawn(self, *_: Any, **__: Any) -> Any:
        return self.process


async def test_frames_that_no_program_of_ours_sends(server: tuple[Upper, str, int]) -> None:
    """Numbers that go backwards open nothing, ends of what is not open do nothing."""
    _, host, port = server
    hello = (5).to_bytes(8, "big") + b"hello"
    process = _Frames((7, b""), (9, hello), (9, b""), (9, hello), (3, hello), (4_000_000_000, hello))
    async with gateway_of(_Box(process), host, port):  # type: ignore[arg-type]
        await soon(lambda: (4_000_000_000, hello.upper()) in process.sent, 4)
    answered = [number for number, data in process.sent if data]
    assert answered in ([4_000_000_000], [9, 4_000_000_000])  # the end of 9 may come before its answer


async def test_each_frame_and_each_connection_takes_time(
    server: tuple[Upper, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, host, port = server
    slept: list[float] = []
    patched = SimpleNamespace(**vars(asyncio) | {"sleep": AsyncMock(side_effect=slept.append)})
    monkeypatch.setattr("rtl_agent_gym.sandboxes.gateway.asyncio", patched)
    box: Any = _Box(_Frames((9, b"x" * PIECE), (3, b"x" * PIECE)))  # 3 is not open
    async with gateway_of(box, host, port):
        pass
    assert sum(slept) == pytest.approx(2 * PIECE / RATE + OPENING)


async def test_an_answer_to_a_broken_sandbox_is_dropped(server: tuple[Upper, str, int]) -> None:
    _, host, port = server

    async def write(data: bytes) -> None:
        raise SandboxBroken("its commands ended it")

    process: Any = _Frames()
    process.write = write
    box: Any = _Box(process)
    async with gateway_of(box, host, port) as gateway:
        await gateway._answer(7, b"hello")


async def test_a_frame_of_any_size_ends_it(server: tuple[Upper, str, int]) -> None:
    _, host, port = server
    process = _Frames((7, (5).to_bytes(8, "big") + b"hello"))
    process.output.feed_data(HEADER.pack(8, 1 << 31) + b"x" * 100)
    box: Any = _Box(process)
    async with gateway_of(box, host, port) as gateway:
        await asyncio.wait_for(gateway._reading, 10.0)
