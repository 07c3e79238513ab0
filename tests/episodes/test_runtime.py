"""What the environments of one event loop share, and what becomes of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.docker

PROGRAM = """
import asyncio, os, socket, subprocess, time
from rtl_agent_gym.episodes import runtime
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes.container import OWNER_LABEL

def containers():
    mine = f"label={OWNER_LABEL}={socket.gethostname()}:{os.getpid()}"
    return subprocess.run(["docker", "ps", "-q", "--filter", mine], capture_output=True, text=True).stdout.split()

async def use(release):
    lease = runtime.acquire()
    if release:
        await lease.release()
    else:
        await lease.runtime.scorer(None, None).prepare(load_problems("bundled")[0])
        print("waiting", len(containers()))

asyncio.run(use(False))
asyncio.run(use(False))
asyncio.run(use(True))
end = time.monotonic() + 10
while containers() and time.monotonic() < end:
    time.sleep(0.1)
print("left", len(containers()))
"""


def test_a_loop_that_ends_without_a_release_leaves_nothing_to_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    words = [line.split() for line in done.stdout.splitlines()]
    assert [word for word, _ in words] == ["waiting", "waiting", "left"], done.stderr
    assert int(words[0][1]) == 4
    assert int(words[-1][1]) == 0
