"""The memory of all sandboxes together: never more than the machine's limit, whatever they do."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, groups, room
from rtl_agent_gym.sandboxes import client as client_module
from rtl_agent_gym.sandboxes.budget import Budget
from rtl_agent_gym.sandboxes.groups import Groups, groups_of, shares, sweep_groups
from rtl_agent_gym.sandboxes.limits import Limits
from rtl_agent_gym.sandboxes.room import Room
from rtl_agent_gym.scoring import Scorer

MIB = 1 << 20
LIMITS = Limits(memory=20 << 30, cpus=2, starts=4)
FILL = "head -c {0}M /dev/zero > /tmp/a; head -c {0}M /dev/zero > /rundir/b; ls /tmp"


def test_without_a_controller_of_memory_there_are_no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ROOT", tmp_path)
    assert groups._make("unix:///x", {"CgroupDriver": "cgroupfs"}, LIMITS) is None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    """The groups that the next client gets: agents may have 300 MiB together."""
    if os.geteuid() != 0 or not list(groups._controllers(groups.ROOT, "memory")):
        pytest.skip("to make a control group takes root")
    name = f"{groups.PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
    made = Groups(groups.ROOT, name, {"agent": 300 * MIB, "scoring": 2 << 30})
    try:
        made.make()
    except OSError as error:
        pytest.skip(f"no control groups here: {error}")
    monkeypatch.setattr(client_module, "groups_of", lambda *_: made)
    yield made
    made.remove()
    assert not list(groups.ROOT.glob(f"*/{name}*"))


def highest(made: Groups) -> int:
    folder = made._memory("agent")
    return int(next(path for path in folder.glob("memory.*") if path.name in PEAKS).read_text())


PEAKS = ("memory.max_usage_in_bytes", "memory.peak")


@pytest.mark.docker
async def test_agents_that_fill_their_memory_take_none_from_the_host_or_from_gradings(small: Groups) -> None:
    async def fill(sandbox: Sandbox) -> bool:
        try:
            await sandbox.run(FILL.format(200), timeout=60)
        except SandboxError:
            return True
        return False

    [problem] = load_problems("bundled", ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"])
    async with DockerSandboxes() as provider, Scorer(provider) as scorer:
        sandboxes = await asyncio.gather(*(provider.create() for _ in range(4)))
        assert provider._client.room.groups is small, "the daemon has other control groups"
        grading = asyncio.ensure_future(scorer.score(problem, dict(problem.golden or {})))
        ended = await asyncio.gather(*map(fill, sandboxes))
        score = await grading
    assert any(ended), "800 MiB fitted into 300"
    assert 250 * MIB < highest(small) <= 300 * MIB
    assert (score.passed, score.retries) == (True, 0)


@pytest.mark.docker
async def test_a_new_sandbox_waits_while_the_others_use_the_memory(
    small: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with DockerSandboxes() as provider:
        first = await provider.create()
        await first.run(FILL.format(115), timeout=60)
        second = asyncio.ensure_future(provider.create())
        await asyncio.sleep(1.5)
        assert not second.done()
        await first.close()
        sandbox = await asyncio.wait_for(second, 60)
        await sandbox.run(FILL.format(115), timeout=60)
        monkeypatch.setattr(room, "PATIENCE", 0.2)
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            await provider.create()
        assert (await provider.budget()).tokens["agent"].usage().used == (await provider.budget()).memory(sandbox._spec)


@pytest.mark.docker
async def test_a_group_that_somebody_deleted_is_made_again(small: Groups) -> None:
    async with DockerSandboxes() as provider:
        await provider.budget()
        small.remove()
        await provider.create()
        assert provider._client.room.groups is small
        assert 0 < small.free("agent") < 300 * MIB


@pytest.mark.docker
async def test_groups_that_do_not_hold_the_containers_are_given_up(
    small: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Groups, "holds", lambda *_: False)
    async with DockerSandboxes() as provider:
        await (await provider.create()).ping()
        assert provider._client.room.groups is None
        await (await provider.create()).ping()


def test_a_grading_can_have_all_that_it_may_use_and_both_together_have_the_limit() -> None:
    found = shares(LIMITS)
    assert found["scoring"] >= 2 * (2 << 30)
    assert sum(found.values()) == LIMITS.memory
    assert shares(Limits(memory=2 << 30, cpus=8, starts=1)) == {"agent": 1 << 30, "scoring": 1 << 30}


def test_the_files_of_cgroup_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "cgroup.subtree_control").write_text("")
    made = Groups(tmp_path, "rtl-gym-1-0", {"agent": 100 * MIB, "scoring": 200 * MIB})
    with pytest.raises(FileNotFoundError, match="no limit of memory"):
        made.make()
    for role in ("agent", "scoring"):
        folder = tmp_path / f"rtl-gym-1-0-{role}"
        folder.mkdir(exist_ok=True)
        for name in ("memory.max", "memory.swap.max", "cpu.weight"):
            (folder / name).write_text("")
    made.make()
    agents = tmp_path / "rtl-gym-1-0-agent"
    assert (agents / "memory.max").read_text() == str(100 * MIB)
    assert (agents / "memory.swap.max").read_text() == "0"
    assert (agents / "cpu.weight").read_text() == "39"  # of 1024 shares, as systemd and runc have it
    assert (tmp_path / "rtl-gym-1-0-scoring" / "cpu.weight").read_text() == "79"
    (agents / "memory.current").write_text(str(90 * MIB))
    (agents / "memory.stat").write_text(f"anon 5\nactive_file {30 * MIB}\ninactive_file {10 * MIB}\n")
    assert made.free("agent") == 50 * MIB


def test_groups_of_processes_that_are_gone_are_deleted(tmp_path: Path) -> None:
    gone, here = "rtl-gym-4194999-0a-agent", f"rtl-gym-{os.getpid()}-0a-agent"
    for name in (gone, here, "rtl-gym-hog"):
        (tmp_path / "memory" / name).mkdir(parents=True)
    sweep_groups(tmp_path)
    assert sorted(os.listdir(tmp_path / "memory")) == sorted([here, "rtl-gym-hog"])


@pytest.mark.parametrize(
    ("host", "driver", "why"),
    [
        ("tcp://far:2375", "cgroupfs", "the daemon is on another machine"),
        ("unix:///x", "systemd", "the daemon's cgroup driver is systemd, not cgroupfs"),
    ],
)
def test_other_daemons_have_none_and_the_log_says_why(
    host: str, driver: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert groups_of(f"{host}-{uuid.uuid4().hex}", {"CgroupDriver": driver}, LIMITS) is None
    assert f"the memory of sandboxes is not limited together: {why}" in caplog.text


def test_who_may_not_make_groups_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    assert groups.why_none("unix:///x", "cgroupfs") == ""
    assert "Podman" in groups.why_none("unix:///x", "cgroupfs", podman=True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root
    assert groups.why_none("unix:///x", "cgroupfs") == "this process may not make control groups"


def test_without_groups_the_memory_of_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {5 << 20} kB\n")
    here = Room(Budget(LIMITS), None, local=True)
    assert here.fits(4 << 30)  # a twentieth of the limit stays free
    assert not here.fits((4 << 30) + 1)
    less = Limits(memory=2 << 30, cpus=2, starts=4)
    assert Room(Budget(less), None, local=True).fits(
        1 << 30
    )  # although other programs use far more than the limit leaves
    assert Room(Budget(LIMITS), None, local=False).fits(1 << 40)


def test_what_other_processes_take_counts_beside_the_own_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs on one machine have groups of their own, whose limits together are more than the machine has."""
    monkeypatch.setattr(groups, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    own = Groups(tmp_path, "rtl-gym-1-0", {"agent": 10 << 30, "scoring": 10 << 30})
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {22 << 20} kB\n")
    assert Room(Budget(LIMITS), own, local=True).fits(9 << 30)
    assert not Room(Budget(LIMITS), own, local=True).fits(10 << 30)  # a twentieth of the group's limit stays free
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {2 << 20} kB\n")
    assert Room(Budget(LIMITS), own, local=True).fits(1 << 30)
    assert not Room(Budget(LIMITS), own, local=True).fits((1 << 30) + 1)


async def test_memory_that_sandboxes_will_use_once_they_have_started_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all that wait for the same free memory would be let in together."""
    monkeypatch.setattr(groups, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(room, "PATIENCE", 0.0)
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {5 << 20} kB\n")
    here = Room(Budget(LIMITS), None, local=True)
    async with here.promised(3 << 30), here.promised(1 << 30):
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            async with here.promised(1):
                pass
    async with here.promised(4 << 30):
        pass


async def test_memory_that_another_event_loop_has_promised_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(room, "PATIENCE", 0.0)
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {5 << 20} kB\n")
    budget = Budget(LIMITS)

    async def elsewhere() -> None:
        async with Room(budget, None, local=True).promised(2 << 30):
            pass

    async with Room(budget, None, local=True).promised(3 << 30):
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            await asyncio.to_thread(asyncio.run, elsewhere())
    await asyncio.to_thread(asyncio.run, elsewhere())
    assert budget.promised == 0


async def test_a_sandbox_waits_while_the_disk_of_the_daemon_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = 100 << 20
    monkeypatch.setattr(room, "LOOK", 0.01)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    here = Room(Budget(LIMITS), None, local=True, disk=str(tmp_path))
    waiting = asyncio.ensure_future(here.wait(1))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert [record.getMessage() for record in caplog.records] == ["no disk for another sandbox now; new ones wait"]
    monkeypatch.setattr(room, "PATIENCE", 0.0)
    with pytest.raises(SandboxError, match=f"{tmp_path}, the Docker daemon's folder, has less than 512 MiB free"):
        await Room(Budget(LIMITS), None, local=True, disk=str(tmp_path)).wait(1)
    assert Room(Budget(LIMITS), None, local=False, disk=str(tmp_path)).short_of(1) == ""  # another machine's
    free = 1 << 40
    monkeypatch.setattr(room, "PATIENCE", 60.0)
    await asyncio.wait_for(waiting, 5)


async def test_who_waits_for_memory_is_not_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(room, "LOOK", 0.01)
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {3 << 20} kB\n")
    here, order = Room(Budget(LIMITS), None, local=True), list[str]()

    async def take(name: str, memory: int) -> None:
        async with here.promised(memory):
            order.append(name)

    large = asyncio.ensure_future(take("large", 4 << 30))
    await asyncio.sleep(0.03)
    small = asyncio.ensure_future(take("small", 1 << 30))  # for which there would be room
    await asyncio.sleep(0.05)
    assert order == []
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {9 << 20} kB\n")
    await asyncio.wait_for(asyncio.gather(large, small), 5)
    assert order == ["large", "small"]
