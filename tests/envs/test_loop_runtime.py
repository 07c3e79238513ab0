"""What the environments of one event loop share, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time

import pytest

from rtl_agent_gym.envs import loop_runtime
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes.container import OWNER_LABEL

pytestmark = [pytest.mark.docker, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def containers() -> set[str]:
    mine = f"label={OWNER_LABEL}={socket.gethostname()}:{os.getpid()}"
    listed = subprocess.run(["docker", "ps", "-q", "--filter", mine], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


async def use(*, release: bool) -> None:
    lease = loop_runtime.acquire()
    if not release:
        await lease.runtime.scorer(None, None).prepare(load_problems("bundled")[0])
        assert len(containers()) >= loop_runtime.WAITING
    else:
        await lease.release()


def test_a_loop_that_ends_without_a_release_leaves_nothing_to_the_next() -> None:
    before = containers()
    asyncio.run(use(release=False))
    asyncio.run(use(release=False))
    asyncio.run(use(release=True))
    end = time.monotonic() + 10
    while containers() - before and time.monotonic() < end:
        time.sleep(0.1)
    assert not containers() - before
