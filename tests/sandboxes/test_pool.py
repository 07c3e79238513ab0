"""Sandboxes in waiting."""

from __future__ import annotations

import asyncio
import os

import pytest

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes, SandboxSpec, WaitingSandboxes
from tests.sandboxes.providers import containers, kill
from tests.waiting import soon

pytestmark = pytest.mark.docker
SCORING = SandboxSpec(role="scoring")


def names(role: str = "scoring") -> set[str]:
    return containers(f"rtl-gym-{role}-{os.getpid()}-")


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


async def test_one_that_died_in_waiting_is_not_handed_out(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=1) as pool:
        before = names()
        await pool.prepare(SCORING)
        (dead,) = names() - before
        kill(dead)
        await asyncio.sleep(0.2)
        sandbox = await pool.create(SCORING)
        assert sandbox.id != dead
        assert (await sandbox.exec(["echo", "fine"])).output == "fine\n"


async def test_what_cannot_be_started_is_said_to_who_asks(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=1) as pool:
        with pytest.raises(ImageError):
            await pool.create(SandboxSpec(image="rtl-agent-gym/sim:nowhere"))


@pytest.mark.slow
async def test_while_work_is_under_way_few_are_started_and_few_that_served_stand(provider: DockerSandboxes) -> None:
    before = names()
    async with WaitingSandboxes(provider, size=3) as pool:
        await pool.prepare(SCORING)
        assert len(names() - before) == 3
        taken = [await pool.create(SCORING) for _ in range(3)]
        await asyncio.sleep(1.5)
        assert len(names() - before) == 3 + 1, "the next one, and no more"
        busy = await pool.create(SCORING)
        for sandbox in taken:
            await sandbox.close()
        await asyncio.sleep(1.5)
        assert {sandbox.id for sandbox in taken} <= names()
        await (await pool.create(SCORING)).close()
        await asyncio.sleep(1.5)
        assert taken[0].id not in names(), "more than wait are not left standing"
        assert taken[1].id in names()
        await busy.close()
        await asyncio.sleep(3)
        assert not {sandbox.id for sandbox in taken} & names()
        assert len(names() - before) == 3
        idle = await pool.create(SCORING)
        await idle.close()
        await asyncio.sleep(1)
        assert idle.id not in names()
    assert not names() - before


async def test_no_more_wait_than_were_in_use_at_once(provider: DockerSandboxes) -> None:
    async def waiting() -> int:
        await asyncio.sleep(0.2)  # the next ones begin to start a moment after one is handed out
        return sum(len(shelf.waiting) for shelf in pool._shelves)

    async with WaitingSandboxes(provider, size=3) as pool:
        for _ in range(2):
            await (await pool.create(SCORING)).close()
            assert await waiting() == 1
        for sandbox in [await pool.create(SCORING) for _ in range(2)]:
            await sandbox.close()
        assert await waiting() == 2


async def test_one_in_which_something_still_runs_is_ended_at_once(provider: DockerSandboxes) -> None:
    async with WaitingSandboxes(provider, size=2) as pool:
        _, idle, running = [await pool.create(SCORING) for _ in range(3)]
        await running.spawn(["sleep", "60"])
        assert (idle.idle, running.idle) == (True, False)
        await idle.close()
        await running.close()
        await running.close()
        assert running.id not in names()
        assert idle.id in names()


async def test_an_agents_is_ended_at_once(provider: DockerSandboxes) -> None:
    """Jobs that its shell has put into the background would run on beside other episodes."""
    async with WaitingSandboxes(provider, size=2) as pool:
        spec = SandboxSpec()
        agents = [await pool.create(spec) for _ in range(2)]
        await agents[0].close()
        assert await soon(lambda: agents[0].id not in names("agent"), 5)
        assert agents[1].id in names("agent")


async def test_who_comes_while_one_is_starting_waits_for_that_one(provider: DockerSandboxes) -> None:
    made = 0
    create = provider.create

    async def counted(spec: SandboxSpec | None = None) -> DockerSandbox:
        nonlocal made
        made += 1
        return await create(spec)

    provider.create = counted  # type: ignore[method-assign]
    async with WaitingSandboxes(provider, size=1) as pool:
        await pool.create(SCORING)  # and one more begins to start
        await asyncio.sleep(0)
        second, third = await asyncio.gather(pool.create(SCORING), pool.create(SCORING))
        assert second.id != third.id
        await asyncio.sleep(0.3)
    assert made <= 5


async def test_those_that_served_are_gone_when_the_pool_has_closed(provider: DockerSandboxes) -> None:
    before = names()
    async with WaitingSandboxes(provider, size=2) as pool:
        await pool.create(SCORING)
        await (await pool.create(SCORING)).close()
        await pool.close()
        assert not names() - before


async def test_who_is_cancelled_leaves_nothing(provider: DockerSandboxes) -> None:
    before = names()
    async with WaitingSandboxes(provider, size=2) as pool:
        await pool.prepare(SCORING)
        for ticks in range(20):
            task = asyncio.ensure_future(pool.create(SCORING))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(found, BaseException):
                await found.close()
        [shelf] = pool._shelves
        assert await soon(lambda: len(shelf.waiting) == 2 and all(task.done() for task in shelf.waiting))
        assert await soon(lambda: len(names() - before) == 2, 30)
    assert not names() - before


@pytest.mark.slow
async def test_one_whose_standby_died_is_not_handed_out(provider: DockerSandboxes) -> None:
    spec = SandboxSpec(role="scoring", standby=("sh", "-c", "sleep 0.5; exit 1"))
    async with WaitingSandboxes(provider, size=1) as pool:
        await pool.prepare(spec)
        (waiting,) = pool._shelves[0].waiting
        await asyncio.sleep(1)
        assert (await pool.create(spec)).id != waiting.result().id


async def test_preparing_a_pool_that_closes_meanwhile_leaves_nothing(provider: DockerSandboxes) -> None:
    before = names()
    pool = WaitingSandboxes(provider, size=2)
    preparing = asyncio.ensure_future(pool.prepare(SCORING))
    await asyncio.sleep(0.05)
    await pool.close()
    await asyncio.gather(preparing, return_exceptions=True)
    assert not names() - before


@pytest.mark.slow
async def test_specs_that_nobody_asks_for_any_more_do_not_wait_for_ever(provider: DockerSandboxes) -> None:
    before = names()
    specs = [SandboxSpec(role="scoring", pids=300 + n) for n in range(4)]
    async with WaitingSandboxes(provider, size=1) as pool:
        for spec in specs:
            await pool.prepare(spec)
            await pool.prepare(spec)
        await asyncio.sleep(1.5)
        assert len(names() - before) <= 3
        assert len(pool._shelf(specs[-1]).waiting) == 1
    assert not names() - before
