"""OpenEnv: the scripts over a connection, who may call the server, and what ends with a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.integrations.conformance import EXPECTED, gray
from tests.integrations.drive_openenv import OpenEnvPlayer, containers, serving
from tests.integrations.ecosystem import ROOT, call, clean, environment
from tests.integrations.players import BY_NAME, compare
from tests.waiting import soon

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]

TOKEN = "a-token-of-this-test"


def command(program: str, *arguments: str) -> list[str]:
    """Runs `main` of a program in OpenEnv's Python."""
    return [str(environment("openenv")), "-c", f"{IMPORTS}{program}\nasyncio.run(main())", *arguments]


def run(program: str, *arguments: str) -> list[str]:
    """The lines that a program prints."""
    words = command(program, *arguments)
    done = subprocess.run(words, cwd=ROOT, env=clean(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def started(program: str, *arguments: str) -> asyncio.subprocess.Process:
    """A program that runs by itself."""
    words = await asyncio.to_thread(command, program, *arguments)
    return await asyncio.create_subprocess_exec(*words, cwd=ROOT, env=clean(), stdout=subprocess.PIPE)


IMPORTS = """
import asyncio, sys
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations.openenv import RTLClient
URL, *MORE = sys.argv[1:]

async def told(work):
    try:
        await work
        print("fine")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.docker
@pytest.mark.parametrize("name", EXPECTED)
async def test_scripts_get_the_verdicts_of_a_session(name: str, tmp_path: Path) -> None:
    await compare("OpenEnv", OpenEnvPlayer(), name, tmp_path)


@pytest.mark.docker
async def test_what_each_turn_earned_is_handed_over() -> None:
    made = await call("openenv", "divided", BY_NAME["solved"])
    assert made == pytest.approx([0.0, 1.4, 0.0])  # the solution is in the second one


async def status(url: str, **headers: str) -> int:
    """The status of an HTTP request."""

    def ask() -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(ask)


GUARDED = """
async def main():
    await told(RTLClient(URL).connect())
    await told(RTLClient(URL, token="another-token-of-16").connect())
    await told(RTLClient(URL, token=MORE[0], headers={"Origin": "http://example.org"}).connect())
    async with RTLClient(URL, token=MORE[0]) as env:
        await told(env.step({"command": "ls"}))
        await told(env.reset(problem_id="nosuch"))
        await told(env.step({"no": "field"}))
        second = RTLClient(URL, token=MORE[0])
        await told(second.reset())
        await told(env.step({"command": "x" * (9 << 20)}))
        await told(env.step({"command": "ls"}))
    await told(RTLClient("http://127.0.0.1:9", token=MORE[0]).connect())
"""


async def test_only_callers_with_the_token_are_served() -> None:
    async with serving("--host", "0.0.0.0", "--max-sessions", "1", RTL_GYM_SERVER_TOKEN=TOKEN) as (url, _):
        url = url.replace("0.0.0.0", "127.0.0.1")
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert await status(f"{url}/health") == 401
        assert await status(f"{url}/health", **bearer) == 200
        assert await status(f"{url}/health", Origin="http://example.org", **bearer) == 403
        for path in ("/reset", "/mcp", "/docs", "/openapi.json", "/state", "/web"):
            assert await status(url + path, **bearer) == 404
        shown = await asyncio.to_thread(run, GUARDED, url, TOKEN)
    missing, wrong, page, early, unknown, odd, second, long, after, nowhere = shown
    for line in (missing, wrong, page):
        assert line.startswith("UsageError: ")
        assert "token is missing or wrong" in line
    assert early.startswith("UsageError: the episode is over or has not begun")
    assert unknown.startswith("UsageError: there is no problem 'nosuch'")
    assert odd == "UsageError: Invalid message"
    assert second.startswith("SandboxError: the server has no free session")
    assert long == "UsageError: the message is longer than the server reads"
    assert after.startswith("SandboxError: there is no connection, or it was lost")
    assert nowhere.startswith("SandboxError: http://127.0.0.1:9 cannot be reached")


def connected(url: str) -> socket.socket:
    """A connection that has sent nothing."""
    port = int(url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def request(url: str, *lines: str, frame: bytes = b"") -> tuple[str, bytes]:
    """The status line of the answer to a GET with these headers, and what follows its headers and then the frame."""
    with connected(url) as caller, caller.makefile("rb") as answers:
        caller.sendall("\r\n".join(["GET /ws HTTP/1.1", *lines, "", ""]).encode())
        headers = list(iter(answers.readline, b"\r\n"))
        caller.sendall(frame)
        return headers[0].decode(), answers.read()


def is_closed(caller: socket.socket) -> bool:
    """Waits at most a minute for the other side to close a connection."""
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_idle_connections_leave_room_for_callers_with_the_token() -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with serving("--max-sessions", "1", RTL_GYM_SERVER_TOKEN=TOKEN) as (url, _):
        with contextlib.ExitStack() as held:
            idle = [held.enter_context(connected(url)) for _ in range(300)]
            for slow in idle[::2]:
                slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
            for _ in range(3):
                assert await status(f"{url}/health", **bearer) == 200
            refused = [f"Host: 127.0.0.1:{url.rpartition(':')[2]}", "Content-Length: 100"]
            answer, _ = await asyncio.to_thread(request, url, *refused)
            assert " 401 " in answer  # and the connection is closed, although the body never comes
            closed = await asyncio.gather(*(asyncio.to_thread(is_closed, caller) for caller in idle))
        assert all(closed)


HANDSHAKE = (
    "Host: localhost", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


async def test_a_message_that_is_not_utf_8_ends_its_connection_alone() -> None:
    async with serving() as (url, _):  # which looks at what the server prints
        for frame in (b"\x81\x82\0\0\0\0\xff\xfe", b"\x01\x81\0\0\0\0\xf0\x80\x81\0\0\0\0\xff"):
            answer, last = await asyncio.to_thread(request, url, *HANDSHAKE, frame=frame)
            assert " 101 " in answer
            assert last == b"\x88\x02\x03\xef"  # closed with 1007
        assert await status(f"{url}/health") == 200


async def test_without_a_token_the_address_must_name_this_machine() -> None:
    async with serving() as (url, _):
        port = url.rpartition(":")[2]
        for host in (f"127.0.0.1:{port}@evil", "evil.example"):
            assert await status(f"{url}/health", Host=host) == 403
            answer, _ = await asyncio.to_thread(request, url, f"Host: {host}", *HANDSHAKE[1:])
            assert " 403 " in answer
        assert await status(f"{url}/health", Host=f"localhost:{port}") == 200
    async with serving(RTL_GYM_SERVER_TOKEN=TOKEN) as (url, _):  # perhaps behind a proxy, which keeps the name
        assert await status(f"{url}/health", Host="gym.example", Authorization=f"Bearer {TOKEN}") == 200


async def test_another_address_needs_a_token() -> None:
    python = await asyncio.to_thread(environment, "openenv")
    for options in (["--host", "0.0.0.0"], ["--host", "::"], ["--token", "short"]):
        words = [str(python), "-m", "rtl_agent_gym", "serve", "--port", "0", *options]
        done = subprocess.run(words, cwd=ROOT, env=clean(), capture_output=True, text=True, timeout=200)
        assert done.returncode == 2
        assert "token" in done.stderr
        assert len(done.stderr.splitlines()) == 1


CUT_OFF = """
async def main():
    async with RTLClient(URL) as env:
        await env.reset(problem_id=MORE[0], seed=1)
        for path, text in SOLUTION:
            await env.step({"command": f"cat > {path} <<'END_OF_FILE'\\n{text}\\nEND_OF_FILE"})
        result = await env.step({"stop": "max_tokens"})
        print(result.reward, result.done, result.metadata["stop_reason"], result.metadata["numbers"]["reward"])
"""

ABANDONED = """
import os, signal

async def main():
    async with RTLClient(URL) as env:
        await env.reset(problem_id=MORE[0])
        print((await env.step({"command": "echo begun"})).observation["replies"][0], flush=True)
        running = asyncio.ensure_future(env.step({"command": "sleep 3"}))
        await asyncio.wait([running], timeout=0.5)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.docker
async def test_a_cut_off_episode_is_graded_and_an_abandoned_one_leaves_no_container() -> None:
    golden = gray().golden
    assert golden is not None
    async with serving() as (url, server):
        program = f"SOLUTION = {list(golden.items())!r}\n{CUT_OFF}"
        assert await asyncio.to_thread(run, program, url, gray().id) == ["1.4 True max_tokens 1.4"]
        killed = await started(ABANDONED, url, gray().id)
        assert (await killed.communicate())[0] == b"begun\n\n"
        assert await soon(lambda: not containers(server.pid, "agent"))


IDLE = """
async def main():
    async with RTLClient(URL) as env:
        await env.reset(problem_id=MORE[0])
        for _ in range(3):  # longer in all than it may be idle
            await env.step({"command": "sleep 2"})
        print("played", flush=True)
        await asyncio.sleep(6)
        await told(env.step({"command": "true"}))
        await env.reset(problem_id=MORE[0])
        print((await env.step({"command": "echo again"})).observation["replies"])
"""


@pytest.mark.docker
async def test_an_idle_connection_is_closed_and_its_episode_ends() -> None:
    async with serving("--idle-seconds", "3") as (url, server):
        running = asyncio.ensure_future(asyncio.to_thread(run, IDLE, url, gray().id))
        counts = []
        while not running.done():
            counts.append(len(containers(server.pid, "agent")))
            await asyncio.sleep(0.2)
        lines = await running
    assert lines[0] == "played"
    assert lines[1].startswith("SandboxError")
    assert lines[2] == "['again\\n']"
    assert 0 in counts[counts.index(1) : len(counts) - counts[::-1].index(1)]  # between the two episodes


EIGHT = """
from tests.sandboxes.providers import kill
from tests.integrations.drive_openenv import containers, container_with
PROBLEM, SERVER = MORE

async def play(number, written, go_on):
    async with RTLClient(URL) as env:
        await env.reset(problem_id=PROBLEM)
        await env.step({"command": f"echo {number} > docs/mine"})
        written.release()
        await go_on.wait()
        try:
            return (await env.step({"command": "cat docs/mine"})).observation["replies"][0].strip()
        except SandboxError:
            return "SandboxError"

async def main():
    written, go_on = asyncio.Semaphore(0), asyncio.Event()
    clients = [asyncio.ensure_future(play(number, written, go_on)) for number in range(8)]
    for _ in clients:
        await written.acquire()
    ninth = RTLClient(URL)
    await told(ninth.reset(problem_id=PROBLEM))
    await asyncio.to_thread(kill, container_with(containers(int(SERVER), "agent"), "/code/docs/mine", "5"))
    go_on.set()
    print(*await asyncio.gather(*clients))
"""


@pytest.mark.docker
async def test_eight_sessions_at_once_are_apart() -> None:
    async with serving("--max-sessions", "8") as (url, server):
        refused, played = await asyncio.to_thread(run, EIGHT, url, gray().id, str(server.pid))
        assert len(containers(server.pid, "agent")) == 0
    assert refused.startswith("SandboxError: the server has no free session")
    assert played == "0 1 2 3 4 SandboxError 6 7"


OPEN = """
async def main():
    async with RTLClient(URL) as idle, RTLClient(URL) as busy:
        for env in (idle, busy):
            await env.reset(problem_id=MORE[0])
        running = asyncio.ensure_future(busy.step({"command": "sleep 20"}))
        await asyncio.wait([running], timeout=1)
        print("open", flush=True)
        await told(running)
        await told(idle.step({"command": "true"}))
"""


@pytest.mark.docker
async def test_a_server_that_is_interrupted_ends_open_sessions() -> None:
    async with serving() as (url, server):
        client = await started(OPEN, url, gray().id)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"open\n"
        assert len(containers(server.pid, "agent")) == 2
    told = (await client.communicate())[0].decode().splitlines()  # `serving` has looked for containers
    assert [line.partition(":")[0] for line in told] == ["SandboxError", "SandboxError"]


BUSY = """
import time

async def main():
    async with RTLClient(URL) as env:
        await env.reset(problem_id=MORE[0])
        print(env._ws.ping_timeout)
        time.sleep(50)
        await asyncio.sleep(1)
        print((await env.step({"command": "echo here"})).observation["replies"])
"""


@pytest.mark.docker
@pytest.mark.slow  # the program's event loop has to be busy for longer than the pings' limits, 40 s in all
async def test_a_busy_event_loop_loses_no_episode() -> None:
    async with serving() as (url, _):
        assert await asyncio.to_thread(run, BUSY, url, gray().id) == ["None", "['here\\n']"]


LATE = """
async def main():
    async with RTLClient(URL) as env:
        await env.reset(problem_id=MORE[0])
        for wait in (asyncio.wait_for(env.step({"command": "sleep 3; echo late"}), 0.5), env.step({"command": "true"})):
            await told(wait)
        again = await env.reset(problem_id=MORE[0])
        print(bool(again.observation["messages"]))
        print((await env.step({"command": "echo now"})).observation["replies"])
        await told(env.reset(problem_id=MORE[0], seed="7"))
        await told(env.reset(problem_id=7))
        result = await env.step({"answer": ""})
        print(result.done, *result.observation["replies"])
"""


@pytest.mark.docker
async def test_an_answer_that_comes_late_is_not_taken_for_the_next_and_an_empty_turn_is_corrected() -> None:
    async with serving() as (url, _):
        lines = await asyncio.to_thread(run, LATE, url, gray().id)
    assert lines[0].startswith("TimeoutError")
    assert lines[1].startswith("SandboxError: there is no connection")
    assert lines[2:4] == ["True", "['now\\n']"]
    assert "UsageError: seed: got '7', must be an integer or null" in lines[4]
    assert "UsageError: problem_id: got 7, must be a string or null" in lines[5]
    assert lines[6].startswith("False ERROR: Your reply was empty.")
