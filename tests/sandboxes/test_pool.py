"""Sandboxes in waiting."""

from __future__ import annotations

import asyncio
import os

import docker
import pytest

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.sandboxes import DockerSandboxes, SandboxSpec, WaitingSandboxes

pytestmark = pytest.mark.docker
SCORING = SandboxSpec(role="scoring")


def names() -> set[str]:
    client = docker.from_env()
    try:
        mine = {"name": f"rtl-gym-scoring-{os.getpid()}-"}
        return {item["Names"][0].lstrip("/") for item in client.api.containers(filters=mine)}
    finally:
        client.close()


async def test_each_is_handed_out_once_and_replaced(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=2) as pool:
        await pool.prepare(SCORING)
        before = names()
        taken = [await pool.create(SCORING) for _ in range(3)]
        assert len({sandbox.id for sandbox in taken}) == 3
        assert {taken[0].id, taken[1].id} <= before
        for sandbox in taken:
            result = await sandbox.exec(
                ["sh", "-c", "ls -A /tmp /code/rundir 2>/dev/null | grep -v :; echo used > /tmp/mark"]
            )
            assert result.output.strip() == ""
            await sandbox.close()
    assert not names() & before


async def test_specs_are_kept_apart(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=1) as pool:
        agent = await pool.create(SandboxSpec())
        scoring = await pool.create(SCORING)
        assert (await agent.run("echo shell")).output == "shell\n"
        assert "agent" in agent.id
        assert "scoring" in scoring.id


async def test_one_that_died_in_waiting_is_not_handed_out(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=1) as pool:
        before = names()
        await pool.prepare(SCORING)
        (dead,) = names() - before
        client = docker.from_env()
        try:
            client.api.kill(dead)
        finally:
            client.close()
        await asyncio.sleep(0.2)
        sandbox = await pool.create(SCORING)
        assert sandbox.id != dead
        assert (await sandbox.exec(["echo", "fine"])).output == "fine\n"


async def test_what_cannot_be_started_is_said_to_who_asks(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=1) as pool:
        with pytest.raises(ImageError):
            await pool.create(SandboxSpec(image="rtl-agent-gym/sim:nowhere"))


async def test_closing_leaves_nothing(provider: DockerSandboxes) -> None:
    before = names()
    async with WaitingSandboxes(provider, size=3) as pool:
        await pool.create(SCORING)  # two or three more are starting now
    await provider.close()
    assert names() <= before
