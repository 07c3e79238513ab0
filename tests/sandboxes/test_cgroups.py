"""The memory of all sandboxes together: never more than the machine's limit, whatever they do."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, Sandbox, SandboxSpec, admission, cgroups
from rtl_agent_gym.sandboxes.cgroups import (
    Groups,
    SandboxGroup,
    group_cpus,
    group_memory,
    make_groups,
    shares,
    sweep_groups,
)
from rtl_agent_gym.sandboxes.client import MAPPED_UIDS, UIDS, host_config
from rtl_agent_gym.scoring import Scorer
from tests.sandboxes.ordinary_user import SINGLE, USER_ID, run_as

MIB = 1 << 20
FILL = "head -c {0}M /dev/zero > /tmp/a; head -c {0}M /dev/zero > /rundir/b; ls /tmp"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    """The groups that the next client gets: agents may have 300 MiB together."""
    if os.geteuid() != 0 or not list(cgroups._controllers(cgroups.ROOT, "memory")):
        pytest.skip("to make a control group takes root")
    name = f"{cgroups.PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
    made = Groups(cgroups.ROOT, name, {"agent": 300 * MIB, "scoring": 2 << 30})
    try:
        made.make()
    except OSError as error:
        pytest.skip(f"no control groups here: {error}")
    monkeypatch.setattr(admission, "make_groups", lambda *_, **__: made)
    monkeypatch.setattr(admission, "_budgets", {})
    yield made
    made.remove()
    assert not list(cgroups.ROOT.glob(f"*/{name}*"))


def highest(made: Groups) -> int:
    folder = made.folder("agent")
    return int(next(path for path in folder.glob("memory.*") if path.name in PEAKS).read_text())


PEAKS = ("memory.max_usage_in_bytes", "memory.peak")


@pytest.mark.daemon
async def test_agents_that_fill_their_memory_take_none_from_the_host_or_from_gradings(
    small: Groups, arbiter: Problem
) -> None:
    async def fill(sandbox: Sandbox) -> bool:
        try:
            for _ in range(5):  # the kernel may kill a command first, and with it what fills the memory
                await sandbox.run(FILL.format(200), timeout=60)
        except SandboxError:
            return True
        return False

    async with DockerSandboxes() as provider, Scorer(provider) as scorer:
        sandboxes = await asyncio.gather(*(provider.create() for _ in range(4)))
        assert (await provider.budget()).groups is small, "the daemon has other control groups"
        grading = asyncio.ensure_future(scorer.score(arbiter, dict(arbiter.golden or {})))
        ended = await asyncio.gather(*map(fill, sandboxes))
        score = await grading
    assert any(ended), "800 MiB fitted into 300"
    assert 250 * MIB < highest(small) <= 300 * MIB
    assert (score.passed, score.retries) == (True, 0)


@pytest.mark.daemon
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
        monkeypatch.setattr(admission, "PATIENCE", 0.2)
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            await provider.create()
        assert (await provider.budget()).permits["agent"].usage().used == (await provider.budget()).memory(sandbox.spec)


@pytest.mark.docker
async def test_what_runs_for_a_grading_has_the_room_of_gradings(
    small: Groups, root_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.0)
    monkeypatch.setattr(small, "free", lambda role: 0)  # agents have taken all of their memory
    async with NamespaceSandboxes() as provider:
        sandbox = await provider.create(SandboxSpec(for_grading=True))
        assert sandbox._group is not None
        assert {folder.parent.name for folder in sandbox._group.folders.values()} == {f"{small.name}-scoring"}
        assert (await provider.create_ahead(SandboxSpec(for_grading=True))).spec.room == "scoring"
        with pytest.raises(SandboxError, match="no memory for another sandbox"):
            await provider.create()


@pytest.mark.parametrize(
    ("spec", "weight"),
    [(SandboxSpec(), 256), (SandboxSpec(role="scoring"), 4096), (SandboxSpec(for_grading=True), 4096)],
)
def test_a_container_has_the_weight_of_what_it_is_for(spec: SandboxSpec, weight: int) -> None:
    api = docker.APIClient("unix:///nowhere", version="1.41")
    assert host_config(api, {}, spec, 1)["CpuShares"] == weight


def test_a_container_is_as_the_warden_needs_it_whatever_the_daemons_defaults_are() -> None:
    api = docker.APIClient("unix:///nowhere", version="1.41")
    many, one = {"CgroupVersion": "2", "NCPU": 8}, {"CgroupVersion": "1", "NCPU": 1}
    found = [host_config(api, info, SandboxSpec(cpus=2.0), UIDS.start) for info in (many, one)]
    assert [config["Init"] for config in found] == [False, False]
    assert [config["NanoCpus"] for config in found] == [2_000_000_000, 1_000_000_000]
    assert [config.get("CgroupnsMode") for config in found] == ["private", None]
    assert all("kernel.shmall" in config["Sysctls"] for config in found)
    limits = {
        "Memory": SandboxSpec().memory,
        "MemorySwap": SandboxSpec().memory,  # memory and swap together: so there is no swap
        "PidsLimit": SandboxSpec().pids,
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "ReadonlyRootfs": True,
        "AutoRemove": True,
        "LogConfig": {"Type": "none", "Config": {}},
    }
    assert [{name: config.get(name) for name in limits} for config in found] == [limits, limits]
    # Where ids are mapped, runc may not set it on older kernels, and no container would start.
    assert not host_config(api, many, SandboxSpec(), MAPPED_UIDS.start).get("Sysctls")


@pytest.mark.parametrize(
    ("kills", "most", "lacked"), [(0, 10, False), (1, 10, True), (1, 50, False), (1, 100, False), (1, None, False)]
)
@pytest.mark.parametrize(
    "files",
    [
        ("memory.events", "memory.peak", "memory.max"),
        ("memory.oom_control", "memory.max_usage_in_bytes", "memory.limit_in_bytes"),
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_a_process_that_ended_below_half_of_its_sandboxs_memory_lacked_anothers(
    kills: int, most: int | None, lacked: bool, files: tuple[str, str, str], tmp_path: Path
) -> None:
    for file, text in zip(files, (f"oom_kill {kills}\n", "" if most is None else f"{most}\n", "100\n"), strict=True):
        (tmp_path / file).write_text(text)
    assert SandboxGroup({"memory": tmp_path}).lacked_memory() == lacked


@pytest.mark.daemon
async def test_a_group_that_somebody_deleted_is_made_again(small: Groups) -> None:
    async with DockerSandboxes() as provider:
        await provider.budget()
        small.remove()
        await provider.create()
        assert (await provider.budget()).groups is small
        assert 0 < small.free("agent") < 300 * MIB


@pytest.mark.daemon
async def test_groups_that_do_not_hold_the_containers_are_given_up(
    small: Groups, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Groups, "folder", lambda *_: tmp_path)  # which has no container's
    async with DockerSandboxes() as provider:
        await (await provider.create()).ping()
        assert (await provider.budget()).groups is None
        await (await provider.create()).ping()


def test_a_grading_can_have_all_that_it_may_use_and_both_together_have_the_limit() -> None:
    found = shares(20 << 30, 2)
    assert found["scoring"] >= 2 * (2 << 30)
    assert sum(found.values()) == 20 << 30
    assert shares(2 << 30, 8) == {"agent": 1 << 30, "scoring": 1 << 30}


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


@pytest.mark.parametrize(
    ("controllers", "limits"),
    [
        ((".",), {"memory.max": str(MIB), "cpu.weight": "10", "cpu.max": "150000 100000", "pids.max": "8"}),
        (
            ("memory", "cpu", "cpuacct", "pids"),
            {
                "memory.limit_in_bytes": str(MIB),
                "memory.memsw.limit_in_bytes": str(MIB),
                "cpu.shares": "256",
                "cpu.cfs_quota_us": "150000",
                "cpu.cfs_period_us": "100000",
                "pids.max": "8",
            },
        ),
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_a_sandboxs_group_has_limits_below_another_also_after_somebody_deleted_that(
    controllers: tuple[str, ...], limits: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = ("cgroup.controllers", "cgroup.subtree_control") if controllers == (".",) else ()
    mkdir = Path.mkdir

    def as_the_kernel(self: Path, *given: Any, **options: Any) -> None:
        mkdir(self, *given, **options)
        for name in (*second, *limits):
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", as_the_kernel)
    for controller in controllers:
        (tmp_path / "root" / controller).mkdir(parents=True)
    groups = Groups(tmp_path / "root", "rtl-gym-1-0", {"agent": 100 * MIB, "scoring": 200 * MIB})
    made = groups.add("agent", "one", memory=MIB, cpus=1.5, pids=8, weight=256)
    assert {name: (made.folders[name.partition(".")[0]] / name).read_text() for name in limits} == limits
    assert (made.folders["memory"].parent / next(iter(limits))).read_text() == str(100 * MIB)


SESSION = "user.slice/user-1000.slice/user@1000.service"
SESSIONS_FILES = ("cgroup.controllers", "cgroup.procs", "cgroup.subtree_control")
DELEGATED = """
import json, sys
from pathlib import Path
from rtl_agent_gym.sandboxes import cgroups
root = Path(FOLDER)
cgroups.ROOT, cgroups.MEMBERSHIP = root, root / "membership"
found = cgroups.delegated_group()
made = cgroups.make_groups(cgroups.NO_DAEMON, 20 << 30, 2, local=True) if found else None
why = cgroups.why_none(cgroups.NO_DAEMON, local=True)
print(json.dumps([str(found), str(made and made.root), why]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders to another user")
@pytest.mark.parametrize(
    ("controllers", "inside", "found"),
    [
        ("cpuset cpu io memory pids", "", f"{SESSION}"),
        ("memory pids", "", None),  # as older versions of systemd delegate
        ("cpuset cpu io memory pids", "4711", f"{SESSION}/app.slice"),
    ],
    ids=["all controllers", "no cpu", "with a process in it"],
)
def test_the_delegated_groups_of_a_systemd_user_session(controllers: str, inside: str, found: str | None) -> None:
    """As recorded on a machine with cgroup 2, whose root and slices are root's."""
    with tempfile.TemporaryDirectory(prefix="rtl-gym-groups-") as name:
        top = Path(name)
        top.chmod(0o755)
        scope = top / SESSION / "app.slice" / "run-1.scope"
        scope.mkdir(parents=True)
        (top / "membership").write_text(f"0::/{scope.relative_to(top)}\n")
        for folder in (top, *(top / path for path in ("user.slice", "user.slice/user-1000.slice", SESSION))):
            for file in SESSIONS_FILES:
                (folder / file).write_text(f"{controllers}\n" if file == "cgroup.controllers" else "")
        for folder in (scope.parent, scope):
            for file in SESSIONS_FILES:
                (folder / file).write_text(f"{controllers}\n" if file == "cgroup.controllers" else "")
        (top / SESSION / "cgroup.procs").write_text(inside)
        (scope / "cgroup.procs").write_text("4712\n")
        for path in (top / SESSION, *(top / SESSION).rglob("*")):
            os.chown(path, USER_ID, USER_ID)
        answer, made, why = run_as(SINGLE, DELEGATED.replace("FOLDER", repr(name)))
    assert answer == (str(top / found) if found else "None")
    assert made == "None"  # these folders have no limits, as the kernel's would
    assert (why == "") == (found is not None)


def test_groups_of_processes_that_are_gone_are_deleted(tmp_path: Path) -> None:
    gone, here = "rtl-gym-4194999-0a-agent", f"rtl-gym-{os.getpid()}-0a-agent"
    for name in (gone, here, "rtl-gym-hog"):
        (tmp_path / "memory" / name).mkdir(parents=True)
    sweep_groups(tmp_path)
    assert sorted(os.listdir(tmp_path / "memory")) == sorted([here, "rtl-gym-hog"])


def test_other_daemons_have_none_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    for local, driver, why in (
        (False, "cgroupfs", "the daemon is on another machine"),
        (True, "systemd", "the daemon's cgroup driver is systemd, not cgroupfs"),
        (True, "cgroupfs", f"{tmp_path} has no control groups that limit memory"),
    ):
        assert make_groups(driver, 20 << 30, 2, local=local) is None
        assert f"the memory of sandboxes is not limited together: {why}" in caplog.text


def test_who_may_not_make_groups_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    assert cgroups.why_none("cgroupfs", local=True) == ""
    assert "Podman" in cgroups.why_none("cgroupfs", local=True, podman=True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root
    assert cgroups.why_none("cgroupfs", local=True) == "this process may not make control groups"


def test_limits_of_the_groups_above_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine itself, whose root has none, and not in a namespace of control groups."""
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")
    cgroups.MEMBERSHIP.write_text("0::/job/step\n")
    (tmp_path / "job/step").mkdir(parents=True)
    for folder, memory, cpus in (("job", f"{8 << 30}\n", "200000 100000\n"), ("job/step", "max\n", "150000 100000\n")):
        (tmp_path / folder / "memory.max").write_text(memory)
        (tmp_path / folder / "cpu.max").write_text(cpus)
    assert (group_memory(tmp_path), group_cpus(tmp_path)) == (8 << 30, 1.5)


@pytest.mark.parametrize(
    ("files", "memory", "cpus"),
    [
        ({"memory.max": "8589934592\n", "cpu.max": "150000 100000\n"}, 8 << 30, 1.5),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, 0, 0),
        ({"memory.max": "\n", "cpu.max": "150000\n"}, 0, 0),
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
