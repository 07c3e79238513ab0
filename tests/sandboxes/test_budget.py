"""The budget: what a machine has, who waits, and in which order."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes, SandboxSpec, WaitingSandboxes, budget
from rtl_agent_gym.sandboxes import client as client_module
from rtl_agent_gym.sandboxes.budget import RESERVED, Budget, QueueMetrics, Tokens, budget_of, queueing_as, set_limits
from rtl_agent_gym.sandboxes.container import DockerSandbox
from rtl_agent_gym.sandboxes.limits import MEMORY_SHARE, VARIABLE, Limits, group_cpus, group_memory, read_limits
from rtl_agent_gym.scoring import Scorer

INFO = {"MemTotal": 100 << 30, "NCPU": 16}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Queue:
    """Requests for one token each, and the order in which they got it."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens, self.served = tokens, list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, group: str = "", amount: float = 1) -> None:
        async def wait() -> None:
            await self.tokens.take(amount)
            self.served.append(name)

        with queueing_as(group):
            self.tasks[name] = asyncio.ensure_future(wait())


async def test_groups_are_served_in_turn_and_each_in_its_order() -> None:
    queue = Queue(Tokens(1))
    await queue.tokens.take(1)
    for name, group in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("b2", "b")]:
        queue.ask(name, group)
    await settle()
    assert queue.served == []
    for _ in range(6):
        queue.tokens.give_back(1)
        await settle()
    assert queue.served == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_large_request_is_not_overtaken_by_small_ones_that_came_later() -> None:
    queue = Queue(Tokens(4))
    await queue.tokens.take(3)
    queue.ask("large", amount=3)
    await settle()
    queue.ask("small")
    await settle()
    assert queue.served == []
    assert not queue.tokens.try_take(1)
    queue.tokens.give_back(3)
    await settle()
    assert queue.served == ["large", "small"]


async def test_a_request_for_more_than_there_is_gets_its_turn_alone() -> None:
    queue = Queue(Tokens(2))
    await queue.tokens.take(1)
    queue.ask("huge", amount=5)
    await settle()
    assert queue.served == []
    queue.tokens.give_back(1)
    await settle()
    assert queue.served == ["huge"]
    assert not queue.tokens.try_take(1)


async def test_a_cancelled_request_leaves_the_queue_and_keeps_nothing() -> None:
    queue = Queue(Tokens(1))
    await queue.tokens.take(1)
    queue.ask("first")
    queue.ask("second")
    await settle()
    queue.tasks["first"].cancel()
    await settle()
    queue.tokens.give_back(1)
    await settle()
    assert queue.served == ["second"]
    # Cancelled between the grant and the moment it would have noticed.
    queue.ask("third")
    queue.ask("fourth")
    await settle()
    queue.tokens.give_back(1)
    queue.tasks["third"].cancel()
    await settle()
    assert queue.served == ["second", "fourth"]
    queue.tokens.give_back(1)
    assert queue.tokens.usage().used == 0


def test_loops_of_several_threads_share_the_tokens() -> None:
    tokens, lock = Tokens(3), threading.Lock()
    held = most = 0

    async def work() -> None:
        nonlocal held, most
        async with tokens.held(1):
            with lock:
                held += 1
                most = max(most, held)
            await asyncio.sleep(0.001)
            with lock:
                held -= 1

    async def many() -> None:
        await asyncio.gather(*(work() for _ in range(50)))

    threads = [threading.Thread(target=asyncio.run, args=(many(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    usage = tokens.usage()
    assert (held, most, usage.used, usage.waiting, usage.granted) == (0, 3, 0, 0, 200)
    assert usage.waits > 0
    assert usage.seconds > 0


async def test_a_loop_that_was_closed_while_it_waited_keeps_nothing() -> None:
    tokens = Tokens(1)
    await tokens.take(1)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(tokens.take(1))
    thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.sleep(0.05),))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert tokens.usage().waiting == 1
    loop.close()
    tokens.give_back(1)
    assert (tokens.usage().used, tokens.usage().waiting) == (0, 0)
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting, loop
    gc.collect()  # ends the coroutine, which must not give back what it never had
    assert tokens.usage().used == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans()), max_size=30))
def test_nothing_is_lost_whatever_is_asked_and_cancelled(requests: list[tuple[str, int, bool]]) -> None:
    async def play() -> None:
        tokens, tasks = Tokens(4), []

        async def use(amount: int) -> None:
            async with tokens.held(amount):
                assert tokens.usage().used <= 4
                await asyncio.sleep(0)

        for group, amount, cancelled in requests:
            with queueing_as(group):
                tasks.append(asyncio.ensure_future(use(amount)))
            await asyncio.sleep(0)
            if cancelled:
                tasks[-1].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert (tokens.usage().used, tokens.usage().waiting) == (0, 0)

    asyncio.run(play())


def test_limits_come_from_the_daemon_and_are_replaced_by_variables() -> None:
    found = Limits.of(INFO, local=False)
    assert (found.memory, found.cpus, found.starts) == (int(MEMORY_SHARE * (100 << 30)), 16, 32)
    given = read_limits(" memory = 1.5GiB, cpus=3,starts=5,", "x")
    assert Limits.of(INFO, local=False, given=given) == Limits(3 << 29, 3, 5)
    assert Limits.of({}, local=False, given={"cpus": 0.5}).cpus == 0.5


def test_options_replace_the_variable_and_both_replace_what_the_daemon_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_budgets", {})
    monkeypatch.setenv(VARIABLE, "memory=2G,cpus=3")
    set_limits("cpus=5")
    try:
        made = budget_of("tcp://there:1", INFO)
        assert made.limits == Limits(2 << 30, 5, 32)
        assert budget_of("tcp://there:1", {}) is made
    finally:
        set_limits("")


def test_limits_of_a_daemon_in_use_are_not_replaced_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_budgets", {})
    monkeypatch.setattr(budget, "_given", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    made = budget_of("tcp://there:1", INFO)
    with pytest.raises(UsageError, match=r"'cpus=2,ready=1' .* tcp://there:1 with memory=87040M,cpus=16,starts=32; .*"):
        set_limits("cpus=2,ready=1")
    set_limits("cpus=16,starts=32,ready=1")  # the same ones, and one that is no limit of the daemon's
    set_limits("")
    assert budget_of("tcp://there:1", INFO) is made
    with pytest.raises(UsageError, match="memory="):
        set_limits("memory=1G")
    assert budget.given_limits() == {}


@pytest.mark.parametrize("text", ["memory=much", "cpus=0", "starts=-1", "cpu=2", "cpus=2G", "4"])
def test_a_wrong_limit_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"sandbox_limits: '{text}' is no limit"):
        set_limits(f"starts=1,{text}")


@pytest.mark.parametrize(
    ("files", "memory", "cpus"),
    [
        ({"memory.max": "8589934592\n", "cpu.max": "150000 100000\n"}, 8 << 30, 1.5),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, 0, 0),
        (
            {
                "memory/memory.limit_in_bytes": "4294967296\n",
                "cpu/cpu.cfs_quota_us": "200000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            4 << 30,
            2,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            0,
            0,
        ),
        ({}, 0, 0),
    ],
)
def test_control_groups_of_both_versions_are_read(
    files: dict[str, str], memory: int, cpus: float, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (group_memory(tmp_path), group_cpus(tmp_path)) == (memory, cpus)


async def test_metrics_say_what_happened_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Budget(Limits(memory=1 << 30, cpus=1, starts=1))
    monkeypatch.setattr(budget, "_budgets", {"x": made})
    tokens = made.tokens["grading"]
    await tokens.take(1)
    metrics = QueueMetrics()
    second = asyncio.ensure_future(tokens.take(1))
    third = asyncio.ensure_future(tokens.take(1))
    await asyncio.sleep(0.05)
    tokens.give_back(1)
    await second
    found = metrics.since()
    assert (found["queue/grading/waits"], found["queue/grading/waiting"], found["queue/agent/waits"]) == (2, 1, 0)
    assert 0.1 <= found["queue/grading/seconds"] < 5  # of two that waited, for the one that was granted
    tokens.give_back(1)
    await third
    assert metrics.since()["queue/grading/waits"] == 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """A budget with room for two agents and one grading, which the next client gets."""
    made = Budget(Limits(memory=4 * 128 << 20, cpus=1, starts=4))
    for kind, amount in (("agent", 2 * RESERVED["agent"]), ("scoring", RESERVED["scoring"]), ("waiting", 0)):
        made.tokens[kind] = Tokens(amount)  # type: ignore[index]
    monkeypatch.setattr(client_module, "budget_of", lambda host, info: made)
    monkeypatch.setattr(client_module, "groups_of", lambda *_: None)  # or this process would keep groups of that size
    return made


@pytest.mark.docker
async def test_as_many_containers_start_at_once_as_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 20
    made, barrier = Budget(Limits(memory=8 << 30, cpus=1, starts=many)), threading.Barrier(many)

    def start(sandbox: DockerSandbox) -> None:
        barrier.wait(30)
        raise SandboxError("they all were here")

    monkeypatch.setattr(client_module, "budget_of", lambda host, info: made)
    monkeypatch.setattr(client_module, "groups_of", lambda *_: None)
    monkeypatch.setattr(DockerSandbox, "_start", start)
    async with DockerSandboxes() as provider:
        ended = await asyncio.gather(*(provider.create() for _ in range(many)), return_exceptions=True)
    assert {str(error) for error in ended} == {"they all were here"}


@pytest.mark.docker
async def test_a_sandbox_waits_for_room_and_returns_it_however_it_ends(small: Budget) -> None:
    async with DockerSandboxes() as provider:
        first, second = await asyncio.gather(provider.create(), provider.create())
        third = asyncio.ensure_future(provider.create())
        await asyncio.sleep(0.5)
        assert not third.done()
        assert small.usage()["agent/waiting"] == 1
        scoring = await provider.create(SandboxSpec(role="scoring"))  # has room of its own
        await second.close()
        await (await asyncio.wait_for(third, 30)).ping()
        fourth = asyncio.ensure_future(provider.create())
        await asyncio.sleep(0.1)
        fourth.cancel()
        await asyncio.gather(fourth, return_exceptions=True)
        await scoring.close()
        with pytest.raises(SandboxError):
            await provider.create(SandboxSpec(image="rtl-agent-gym/no-such-image:1", role="scoring"))
        assert small.usage()["scoring/used"] == 0
        await first.close()
    usage = small.usage()
    assert [usage[f"{kind}/used"] for kind in small.tokens] == [0] * 5
    assert usage["agent/seconds"] > 0.4


@pytest.mark.docker
async def test_sandboxes_in_advance_are_only_started_where_there_is_room(small: Budget) -> None:
    spec = SandboxSpec(role="scoring")
    async with DockerSandboxes() as provider, WaitingSandboxes(provider, size=2) as pool:
        used = small.usage
        with pytest.raises(SandboxError, match="no room"):
            await pool.prepare(spec)
        sandbox = await pool.create(spec)  # is needed now
        await sandbox.ping()
        assert (used()["scoring/granted"], used()["waiting/granted"]) == (1, 0)
        await sandbox.close()


@pytest.mark.docker
async def test_one_started_in_advance_counts_as_in_use_once_it_is_handed_out(small: Budget) -> None:
    """Otherwise episodes would take the place of those that could be started for the next ones."""
    small.tokens["waiting"] = Tokens(RESERVED["agent"])
    spec = SandboxSpec()
    async with DockerSandboxes() as provider, WaitingSandboxes(provider, size=1) as pool:
        await pool.prepare(spec)
        assert (small.usage()["agent/used"], small.usage()["waiting/used"]) == (0, RESERVED["agent"])
        sandbox = await pool.create(spec)
        await pool.prepare(spec)
        assert (small.usage()["agent/used"], small.usage()["waiting/used"]) == (RESERVED["agent"], RESERVED["agent"])
        await sandbox.close()
        await pool.close()
        assert [small.usage()[f"{kind}/used"] for kind in small.tokens] == [0] * 5


@pytest.mark.docker
async def test_gradings_wait_for_a_processor(small: Budget) -> None:
    [problem] = load_problems("bundled", ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"])
    async with DockerSandboxes() as provider, Scorer(provider, waiting=2) as scorer:
        # Different files: each has a grading of its own.
        texts = [
            {path: f"{text}\n// {number}\n" for path, text in (problem.golden or {}).items()} for number in range(3)
        ]
        scores = await asyncio.gather(*(scorer.score(problem, files) for files in texts))
    usage = small.usage()
    assert [score.passed for score in scores] == [True] * 3
    assert (usage["grading/granted"], usage["grading/waits"]) == (3, 2)
    assert [usage[f"{kind}/used"] for kind in small.tokens] == [0] * 5
