"""The budget: what a machine has, who waits, and in which order."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.errors import DaemonError, SandboxError, UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, SandboxSpec, WaitingSandboxes, admission, cgroups, namespaces
from rtl_agent_gym.sandboxes import client as client_module
from rtl_agent_gym.sandboxes.admission import (
    MEMORY_SHARE,
    RESERVED,
    VARIABLE,
    WEAK_VARIABLE,
    Budget,
    Limits,
    Permits,
    QueueMetrics,
    budget_of,
    queueing_as,
    read_limits,
    require_enforced,
    set_limits,
)
from rtl_agent_gym.sandboxes.cgroups import Groups
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.sandboxes.container import DockerSandbox
from rtl_agent_gym.scoring import Scorer

INFO = {"MemTotal": 100 << 30, "NCPU": 16}
LIMITS = Limits(memory=20 << 30, cpus=2, starts=4)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Queue:
    """Requests for one permit each, and the order in which they got it."""

    def __init__(self, permits: Permits) -> None:
        self.permits, self.served = permits, list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, group: str = "", amount: float = 1) -> None:
        async def wait() -> None:
            await self.permits.take(amount)
            self.served.append(name)

        with queueing_as(group):
            self.tasks[name] = asyncio.ensure_future(wait())


async def test_groups_are_served_in_turn_and_each_in_its_order() -> None:
    queue = Queue(Permits(1))
    await queue.permits.take(1)
    for name, group in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("b2", "b")]:
        queue.ask(name, group)
    await settle()
    assert queue.served == []
    for _ in range(6):
        queue.permits.give_back(1)
        await settle()
    assert queue.served == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_large_request_is_not_overtaken_by_small_ones_that_came_later() -> None:
    queue = Queue(Permits(4))
    await queue.permits.take(3)
    queue.ask("large", amount=3)
    await settle()
    queue.ask("small")
    await settle()
    assert queue.served == []
    assert not queue.permits.try_take(1)
    queue.permits.give_back(3)
    await settle()
    assert queue.served == ["large", "small"]


async def test_a_request_for_more_than_there_is_gets_its_turn_alone() -> None:
    queue = Queue(Permits(2))
    await queue.permits.take(1)
    queue.ask("huge", amount=5)
    await settle()
    assert queue.served == []
    queue.permits.give_back(1)
    await settle()
    assert queue.served == ["huge"]
    assert not queue.permits.try_take(1)


async def test_a_cancelled_request_leaves_the_queue_and_keeps_nothing() -> None:
    queue = Queue(Permits(1))
    await queue.permits.take(1)
    queue.ask("first")
    queue.ask("second")
    await settle()
    queue.tasks["first"].cancel()
    await settle()
    queue.permits.give_back(1)
    await settle()
    assert queue.served == ["second"]
    # Cancelled between the grant and the moment it would have noticed.
    queue.ask("third")
    queue.ask("fourth")
    await settle()
    queue.permits.give_back(1)
    queue.tasks["third"].cancel()
    await settle()
    assert queue.served == ["second", "fourth"]
    queue.permits.give_back(1)
    assert queue.permits.usage().used == 0


def test_loops_of_several_threads_share_the_permits() -> None:
    permits, lock = Permits(3), threading.Lock()
    held = most = 0

    async def work() -> None:
        nonlocal held, most
        async with permits.held(1):
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
    usage = permits.usage()
    assert (held, most, usage.used, usage.waiting, usage.granted) == (0, 3, 0, 0, 200)
    assert usage.waits > 0
    assert usage.seconds > 0


async def test_a_loop_that_was_closed_while_it_waited_keeps_nothing() -> None:
    permits = Permits(1)
    await permits.take(1)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(permits.take(1))
    thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.sleep(0.05),))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert permits.usage().waiting == 1
    loop.close()
    permits.give_back(1)
    assert (permits.usage().used, permits.usage().waiting) == (0, 0)
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting, loop
    gc.collect()  # ends the coroutine, which must not give back what it never had
    assert permits.usage().used == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans()), max_size=30))
def test_nothing_is_lost_whatever_is_asked_and_cancelled(requests: list[tuple[str, int, bool]]) -> None:
    async def play() -> None:
        permits, tasks = Permits(4), []

        async def use(amount: int) -> None:
            async with permits.held(amount):
                assert permits.usage().used <= 4
                await asyncio.sleep(0)

        for group, amount, cancelled in requests:
            with queueing_as(group):
                tasks.append(asyncio.ensure_future(use(amount)))
            await asyncio.sleep(0)
            if cancelled:
                tasks[-1].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert (permits.usage().used, permits.usage().waiting) == (0, 0)

    asyncio.run(play())


def test_limits_come_from_the_daemon_and_are_replaced_by_variables() -> None:
    found = Limits.of(INFO, local=False)
    assert (found.memory, found.cpus, found.starts) == (int(MEMORY_SHARE * (100 << 30)), 16, 32)
    given = read_limits(" memory = 1.5GiB, cpus=3,starts=5,", "x")
    assert Limits.of(INFO, local=False, given=given) == Limits(3 << 29, 3, 5)
    assert Limits.of({}, local=False, given={"cpus": 0.5}).cpus == 0.5


def test_the_lowest_limit_of_this_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("group_memory", 30 << 30), ("job_memory", 20 << 30), ("group_cpus", 3.0), ("job_cpus", 4.0)):
        monkeypatch.setattr(admission, name, lambda number=number: number)
    found = Limits.of(INFO, local=True)
    assert (found.memory, found.cpus) == (int(MEMORY_SHARE * (20 << 30)), 3.0)
    assert Limits.of(INFO, local=False).cpus == 16


def test_a_limit_far_above_the_machines_memory_is_refused_at_once() -> None:
    assert Limits.of(INFO, local=True, given={"memory": 200 << 30}).memory == 200 << 30
    with pytest.raises(UsageError, match=r"^sandbox_limits: memory=10238976M is far more than .*'s 102400M"):
        Limits.of(INFO, local=True, given={"memory": 9999 << 30})
    Limits.of(INFO, local=False, given={"memory": 9999 << 30})  # there, nothing waits for free memory


def test_options_replace_the_variable_and_both_replace_what_the_daemon_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_budgets", {})
    monkeypatch.setenv(VARIABLE, "memory=2G,cpus=3")
    set_limits("cpus=5")
    try:
        made = budget_of("tcp://there:1", INFO)
        assert made.limits == Limits(2 << 30, 5, 32)
        assert budget_of("tcp://there:1", {}) is made
    finally:
        set_limits("")


def test_limits_of_a_daemon_in_use_are_not_replaced_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_budgets", {})
    monkeypatch.setattr(admission, "_given", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    made = budget_of("tcp://there:1", INFO)
    with pytest.raises(UsageError, match="tcp://there:1"):
        set_limits("cpus=2,ready=1")
    set_limits("cpus=16,starts=32,ready=1")  # the same ones, and one that is no limit of the daemon's
    set_limits("")
    assert budget_of("tcp://there:1", INFO) is made
    with pytest.raises(UsageError, match="memory="):
        set_limits("memory=1G")
    assert admission.given_limits() == {}


@pytest.mark.parametrize(
    "text", ["memory=much", "cpus=0", "starts=-1", "cpu=2", "cpus=2G", "4", "memory=1", "memory=100M"]
)
def test_a_wrong_limit_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"^sandbox_limits: '{text}'"):
        set_limits(f"starts=1,{text}")


def test_weak_limits_are_accepted_by_a_1_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEAK_VARIABLE, "1")
    require_enforced(["MemoryLimit"])
    monkeypatch.setenv(WEAK_VARIABLE, "0")
    with pytest.raises(DaemonError, match="cannot enforce MemoryLimit"):
        require_enforced(["MemoryLimit"])


def test_all_sandboxes_together_reserve_no_more_memory_than_there_is() -> None:
    budget = Budget(LIMITS)
    permits = budget.permits
    assert budget.memory(SandboxSpec(memory=32 << 20)) == 32 << 20
    assert budget.memory(SandboxSpec(memory=1 << 30)) == RESERVED["agent"]
    assert permits["scoring"].capacity >= LIMITS.cpus * RESERVED["scoring"]  # as many as are graded at once
    assert permits["agent"].capacity + permits["scoring"].capacity + permits["waiting"].capacity == LIMITS.memory


async def test_metrics_say_what_happened_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Budget(Limits(memory=1 << 30, cpus=1, starts=1))
    monkeypatch.setattr(admission, "_budgets", {"x": made})
    permits = made.permits["grading"]
    await permits.take(1)
    metrics = QueueMetrics()
    second = asyncio.ensure_future(permits.take(1))
    third = asyncio.ensure_future(permits.take(1))
    await asyncio.sleep(0.05)
    permits.give_back(1)
    await second
    found = metrics.since()
    assert (found["queue/grading/waits"], found["queue/grading/waiting"], found["queue/agent/waits"]) == (2, 1, 0)
    assert 0.1 <= found["queue/grading/seconds"] < 5  # of two that waited, for the one that was granted
    permits.give_back(1)
    await third
    assert metrics.since()["queue/grading/waits"] == 0


async def test_a_daemon_that_keeps_failing_gets_longer_and_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FAILURES", 2)
    now, slept = 100.0, list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    tried = Budget(LIMITS)
    for _ in range(8):
        async with tried.starting():
            pass
        tried.start_failed("it does not answer")
    async with tried.starting():
        pass
    assert slept == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    tried.start_worked()
    tried.start_failed("it does not answer")
    async with tried.starting():
        pass
    assert len(slept) == 7


def test_a_daemon_may_stay_away_for_long_without_many_words(caplog: pytest.LogCaptureFixture) -> None:
    tried = Budget(LIMITS)
    for _ in range(3000):
        tried.start_failed("it does not answer")
    assert [record.getMessage() for record in caplog.records][:3] == [
        "a sandbox could not be started (failure 1 in a row): it does not answer",
        "a sandbox could not be started (failure 2 in a row): it does not answer",
        "a sandbox could not be started (failure 4 in a row): it does not answer",
    ]
    tried.start_worked()
    tried.start_worked()
    assert [record.getMessage() for record in caplog.records][-1:] == ["sandboxes can be started again"]
    assert len(caplog.records) == 13


@pytest.fixture
def available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], object]:
    """Sets the bytes of memory that the machine has available."""
    monkeypatch.setattr(cgroups, "MEMINFO", tmp_path / "meminfo")
    return lambda bytes_: cgroups.MEMINFO.write_text(f"MemAvailable: {bytes_ >> 10} kB\n")


def test_without_groups_the_memory_of_the_machine_counts(available: Callable[[int], object]) -> None:
    available(5 << 30)
    here = Budget(LIMITS, local=True)
    assert not here.shortage(4 << 30)  # a twentieth of the limit stays free
    assert here.shortage((4 << 30) + 1) == "memory"
    less = Limits(memory=2 << 30, cpus=2, starts=4)
    assert not Budget(less, local=True).shortage(1 << 30)  # although other programs use far more than the limit leaves
    assert not Budget(LIMITS, local=False).shortage(1 << 40)


def test_what_other_processes_take_counts_beside_the_own_groups(
    available: Callable[[int], object], tmp_path: Path
) -> None:
    """Two runs on one machine have groups of their own, whose limits together are more than the machine has."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    own = Groups(tmp_path, "rtl-gym-1-0", {"agent": 10 << 30, "scoring": 10 << 30})
    available(22 << 30)
    assert not Budget(LIMITS, own, local=True).shortage(9 << 30)
    assert Budget(LIMITS, own, local=True).shortage(10 << 30) == "memory"  # with a twentieth of its limit
    available(2 << 30)
    assert not Budget(LIMITS, own, local=True).shortage(1 << 30)
    assert Budget(LIMITS, own, local=True).shortage((1 << 30) + 1) == "memory"


async def test_memory_that_sandboxes_will_use_once_they_have_started_is_taken(
    available: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all that wait for the same free memory would be let in together."""
    monkeypatch.setattr(admission, "PATIENCE", 0.0)
    available(5 << 30)
    here = Budget(LIMITS, local=True)
    async with here.promised(3 << 30), here.promised(1 << 30):
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            async with here.promised(1):
                pass
    async with here.promised(4 << 30):
        pass


async def test_memory_that_another_event_loop_has_promised_is_taken(
    available: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.0)
    available(5 << 30)
    budget = Budget(LIMITS, local=True)

    async def elsewhere() -> None:
        async with budget.promised(2 << 30):
            pass

    async with budget.promised(3 << 30):
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            await asyncio.to_thread(asyncio.run, elsewhere())
    await asyncio.to_thread(asyncio.run, elsewhere())
    assert budget.shortage(4 << 30) == ""  # all of it


async def test_a_sandbox_waits_while_the_disk_of_the_daemon_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = 100 << 20
    monkeypatch.setattr(admission, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    here = Budget(LIMITS, local=True, disk=str(tmp_path))

    async def start(machine: Budget) -> None:
        async with machine.promised(1):
            pass

    waiting = asyncio.ensure_future(start(here))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert [record.getMessage() for record in caplog.records] == ["no disk for another sandbox now; new ones wait"]
    monkeypatch.setattr(admission, "PATIENCE", 0.0)
    with pytest.raises(SandboxError, match=str(tmp_path)):
        await start(Budget(LIMITS, local=True, disk=str(tmp_path)))
    assert Budget(LIMITS, local=False, disk=str(tmp_path)).shortage(1) == ""  # another machine's
    free = 1 << 40
    monkeypatch.setattr(admission, "PATIENCE", 60.0)
    await asyncio.wait_for(waiting, 5)


async def test_who_waits_for_memory_is_not_overtaken(
    available: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "POLL_SECONDS", 0.01)
    available(3 << 30)
    here, order = Budget(LIMITS, local=True), list[str]()

    async def take(name: str, memory: int) -> None:
        async with here.promised(memory):
            order.append(name)

    large = asyncio.ensure_future(take("large", 4 << 30))
    await asyncio.sleep(0.03)
    small = asyncio.ensure_future(take("small", 1 << 30))  # for which there would be room
    await asyncio.sleep(0.05)
    assert order == []
    available(9 << 30)
    await asyncio.wait_for(asyncio.gather(large, small), 5)
    assert order == ["large", "small"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """A budget with room for two agents and one grading, which the next client gets."""
    made = Budget(Limits(memory=4 * 128 << 20, cpus=1, starts=4))
    for kind, amount in (("agent", 2 * RESERVED["agent"]), ("scoring", RESERVED["scoring"]), ("waiting", 0)):
        made.permits[kind] = Permits(amount)  # type: ignore[index]
    for module in (client_module, namespaces):
        monkeypatch.setattr(module, "budget_of", lambda *_, **__: made)
    return made


@pytest.mark.daemon
async def test_as_many_containers_start_at_once_as_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 20
    made, barrier = Budget(Limits(memory=8 << 30, cpus=1, starts=many)), threading.Barrier(many)

    def start(sandbox: DockerSandbox) -> None:
        barrier.wait(30)
        raise SandboxError("they all were here")

    monkeypatch.setattr(client_module, "budget_of", lambda *_, **__: made)
    monkeypatch.setattr(DockerSandbox, "_start", start)
    async with DockerSandboxes() as provider:
        ended = await asyncio.gather(*(provider.create() for _ in range(many)), return_exceptions=True)
    assert {str(error) for error in ended} == {"they all were here"}


@pytest.mark.docker
async def test_a_sandbox_waits_for_room_and_returns_it_however_it_ends(small: Budget) -> None:
    async with make_provider() as provider:
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
    assert [usage[f"{kind}/used"] for kind in small.permits] == [0] * 5
    assert usage["agent/seconds"] > 0.4


@pytest.mark.docker
async def test_sandboxes_in_advance_are_only_started_where_there_is_room(small: Budget) -> None:
    spec = SandboxSpec(role="scoring")
    async with make_provider() as provider, WaitingSandboxes(provider, size=2) as pool:
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
    small.permits["waiting"] = Permits(RESERVED["agent"])
    spec = SandboxSpec()
    async with make_provider() as provider, WaitingSandboxes(provider, size=1) as pool:
        await pool.prepare(spec)
        assert (small.usage()["agent/used"], small.usage()["waiting/used"]) == (0, RESERVED["agent"])
        sandbox = await pool.create(spec)
        await pool.prepare(spec)
        assert (small.usage()["agent/used"], small.usage()["waiting/used"]) == (RESERVED["agent"], RESERVED["agent"])
        await sandbox.close()
        await pool.close()
        assert [small.usage()[f"{kind}/used"] for kind in small.permits] == [0] * 5


@pytest.mark.docker
async def test_gradings_wait_for_a_processor(small: Budget, arbiter: Problem) -> None:
    async with make_provider() as provider, Scorer(provider, waiting=2) as scorer:
        # Different files: each has a grading of its own.
        texts = [
            {path: f"{text}\n// {number}\n" for path, text in (arbiter.golden or {}).items()} for number in range(2)
        ]
        scores = await asyncio.gather(*(scorer.score(arbiter, files) for files in texts))
    usage = small.usage()
    assert [score.passed for score in scores] == [True] * 2
    assert (usage["grading/granted"], usage["grading/waits"]) == (2, 1)
    assert [usage[f"{kind}/used"] for kind in small.permits] == [0] * 5
