"""Sandboxes of namespaces: what they are made of, how they end, and how they work for an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ImageError, SandboxBroken, SandboxError, SandboxLost
from rtl_agent_gym.sandboxes import NamespaceSandbox, NamespaceSandboxes, SandboxSpec, root_folder, userns, zygote
from rtl_agent_gym.sandboxes.client import MAX_INODES, UIDS
from rtl_agent_gym.sandboxes.root_folder import run_in
from rtl_agent_gym.sandboxes.zygote import Launch, Started, Zygote
from tests.sandboxes.ordinary_user import RANGED, SINGLE, run_as
from tests.waiting import soon

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("root_folder")]

SETS = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
EVERY_PROCESS = "cat /proc/[0-9]*/status | grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid)'"


@pytest.fixture
async def provider() -> AsyncIterator[NamespaceSandboxes]:
    """A maker of sandboxes of this process's user."""
    async with NamespaceSandboxes() as made:
        yield made


@pytest.fixture
async def sandbox(provider: NamespaceSandboxes) -> NamespaceSandbox:
    """A fresh agent's sandbox."""
    return await provider.create()


def below(pid: int) -> set[int]:
    """A process and all of its descendants."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found |= below(int(child))
    return found


def above(pid: int) -> set[int]:
    """A process and those that started it, up to this one."""
    found = set[int]()
    while pid != os.getpid():
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


@pytest.mark.parametrize("role", ["agent", "scoring"])
async def test_no_process_has_a_capability_or_may_gain_one(provider: NamespaceSandboxes, role: str) -> None:
    sandbox = await provider.create(SandboxSpec(role="agent" if role == "agent" else "scoring"))
    found = (await sandbox.exec(["sh", "-c", EVERY_PROCESS])).output
    lines = [line.split() for line in found.splitlines()]
    assert len([line for line in lines if line[0] == "CapEff:"]) >= 3
    for name, *values in lines:
        if name.removesuffix(":") in SETS:
            assert int(values[0], 16) == 0
        elif name == "Uid:":
            assert {int(value) for value in values} <= {sandbox.uid, sandbox.uid + 1}
        else:
            assert values == [{"NoNewPrivs:": "1", "Seccomp:": "2"}[name]]


async def test_each_sandbox_has_namespaces_of_its_own(provider: NamespaceSandboxes) -> None:
    names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    made = [await provider.create() for _ in range(2)]
    paths = [f"/proc/self/ns/{name}" for name in names]
    inside = [(await sandbox.exec(["readlink", *paths])).output.split() for sandbox in made]
    outside = list(map(os.readlink, paths))
    for at, name in enumerate(names):
        assert inside[0][at] != outside[at]
        shared = name == "user" and provider._host.ranged  # by users who have different ids in it
        assert shared or inside[0][at] != inside[1][at]


async def test_the_network_is_its_own_loopback(sandbox: NamespaceSandbox) -> None:
    program = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), timeout=5)
print("connected", [name for _, name in socket.if_nameindex()])
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print(error.strerror)
"""
    assert (await sandbox.exec(["python3", "-c", program])).output == "connected ['lo']\nNetwork is unreachable\n"


WATCHING = """
import ctypes, fcntl, os, signal, time
libc, seen = ctypes.CDLL(None), set()
watch = libc.inotify_init1(0o4000)
libc.inotify_add_watch(watch, b"/usr/bin/nproc", 0x20)
libc.inotify_add_watch(watch, b"/dev/full", 0x20)
signal.signal(signal.SIGIO, lambda number, frame: seen.add("read"))
for path, request, value in (("/usr/bin", 1026, 0x80000001), ("/usr/bin/nproc", 1024, fcntl.F_WRLCK)):
    try:
        fcntl.fcntl(os.open(path, os.O_RDONLY), request, value)
    except OSError:
        pass
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/done"):
    time.sleep(0.02)
try:
    seen.add(f"opened {len(os.read(watch, 4096)) // 16} times")
except OSError:
    pass
print(sorted(seen))
"""


@pytest.mark.parametrize("guarded", [True, False])
async def test_one_does_not_see_what_another_opens(
    provider: NamespaceSandboxes, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the inodes of the root's files and of the devices. A design can open a device during its grading."""
    if not guarded:
        monkeypatch.setattr(zygote, "compile_filter", lambda: struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
    watcher, other = await provider.create(), await provider.create()
    watching = asyncio.ensure_future(watcher.exec(["python3", "-c", WATCHING]))
    await watcher.run("until test -e /tmp/ready; do sleep 0.05; done", timeout=60)
    assert (await other.run("nproc > /tmp/n; for i in 1 2 3; do : > /dev/full; done")).exit_code == 0
    await watcher.run("touch /tmp/done")
    seen = (await watching).output
    assert (seen == "[]\n") is guarded, seen
    assert (await watcher.run("timeout 1 tail -n 1 -f /etc/debian_version 2>&1")).output.count("polling") == guarded


async def test_folders_have_their_sizes_and_the_rest_is_read_only(sandbox: NamespaceSandbox) -> None:
    result = await sandbox.run(f"cd /tmp && python3 -c 'for n in range({MAX_INODES + 1}): open(str(n), \"w\").close()'")
    assert "No space left on device" in result.output
    result = await sandbox.run("head -c 70M /dev/zero > /home/agent/x; echo; head -c 70M /dev/zero > /dev/shm/x")
    assert result.output.count("No space left on device") == 2
    result = await sandbox.run("for f in / /usr /etc /dev /sys /proc/sys/kernel /var; do touch $f/x; done")
    assert len(result.output.splitlines()) == 7
    assert result.exit_code == 1
    result = await sandbox.run("grep -vE ' (ro|rw),nosuid' /proc/self/mounts; echo $(stat -f -c %T /code /rundir)")
    assert result.output == "tmpfs tmpfs\n"


async def test_it_is_gone_when_it_is_closed(provider: NamespaceSandboxes) -> None:
    await (await provider.create()).close()
    before = len(os.listdir("/proc/self/fd"))
    sandbox = await provider.create()
    await sandbox.run("sleep 1000 & setsid sleep 1000 & trap '' TERM HUP INT")
    processes = below(sandbox.pid)
    assert len(processes) >= 4
    group = sandbox._group
    await sandbox.close()
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert group is None or not any(folder.exists() for folder in group.folders.values())
    assert str(root_folder.find_root().folder) not in Path("/proc/self/mountinfo").read_text()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_nothing_is_left_when_its_provider_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with NamespaceSandboxes() as provider:
        sandboxes = [await provider.create(SandboxSpec(role=role)) for role in ("agent", "scoring")]
        processes = {pid for sandbox in sandboxes for pid in above(sandbox.pid)}
        assert len(processes) >= 4  # what starts them, and bubblewrap
        # Ctrl-C in the owner's terminal is for the processes of its group.
        assert os.getpgrp() not in {os.getpgid(pid) for pid in processes}
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert len(os.listdir("/proc/self/fd")) == before


async def test_when_what_starts_sandboxes_is_killed_they_are_lost_and_others_can_be_started(
    provider: NamespaceSandboxes,
) -> None:
    sandbox = await provider.create()
    zygote = max(above(sandbox.pid) - {sandbox.pid})
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await sandbox.run("sleep 10")
    await sandbox.close()
    assert not Path(f"/proc/{sandbox.pid}").exists()
    assert (await (await provider.create()).run("echo there")).output == "there\n"


@pytest.mark.parametrize("wanted", ["a start", "the end of one", "the end of all"])
async def test_what_starts_sandboxes_and_stands_still_is_ended(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = NamespaceSandboxes()
    sandbox = await provider.create()
    processes = above(sandbox.pid)
    zygote = max(processes - {sandbox.pid})
    if wanted == "the end of all":
        await sandbox.close()
    os.kill(zygote, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        for name in ("zygote.START_PATIENCE", "zygote.ENDING", "namespaces.START_PATIENCE", "namespaces.ENDING"):
            patch.setattr(f"rtl_agent_gym.sandboxes.{name}", 0.5)
        if wanted == "a start":
            with pytest.raises(SandboxLost, match="has not answered for 1 s"):
                await asyncio.wait_for(provider.create(), 30)
        else:
            await asyncio.wait_for(sandbox.close() if wanted == "the end of one" else provider.close(), 30)
    if wanted != "the end of all":
        assert (await (await provider.create()).run("echo there")).output == "there\n"
    await provider.close()
    assert await soon(lambda: not [pid for pid in processes if Path(f"/proc/{pid}").exists()])


async def test_answers_that_this_process_could_not_read_in_time_count(
    provider: NamespaceSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = await provider.create()
    [zygote] = provider._host._zygotes.values()
    monkeypatch.setattr("rtl_agent_gym.sandboxes.zygote.START_PATIENCE", 0.5)
    zygote._loop.remove_reader(zygote._control)  # messages wait
    starts = [asyncio.ensure_future(provider.create()) for _ in range(3)]
    assert await soon(lambda: len(zygote._starting) == 3, 20)
    time.sleep(1)  # as on Ctrl-Z
    zygote._loop.add_reader(zygote._control, zygote._on_message)
    for sandbox in (earlier, *await asyncio.gather(*starts)):
        assert (await sandbox.run("echo there")).output == "there\n"


async def test_a_start_that_is_reported_after_the_starters_end_is_over(
    provider: NamespaceSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await provider.create()
    [zygote] = provider._host._zygotes.values()
    take, late = zygote._on_message, list[int]()
    monkeypatch.setattr(Zygote, "_on_message", lambda self: late.append(1))
    zygote._loop.add_reader(zygote._control, zygote._on_message)  # messages wait
    start = asyncio.ensure_future(provider.create())
    assert await soon(lambda: late, 20)
    os.kill(max(above(first.pid) - {first.pid}), signal.SIGKILL)
    assert await soon(zygote.ended.is_set, 20)
    monkeypatch.undo()
    zygote._loop.add_reader(zygote._control, take)
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(start, 30)


async def test_without_room_for_open_files_a_start_fails_and_everything_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed = 0
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        async with NamespaceSandboxes() as provider:
            monkeypatch.setattr(provider._host, "grouped", False)
            await (await provider.create()).close()
            raised = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert raised[0] == min(hard, 1 << 16)
            before = len(os.listdir("/proc/self/fd"))
            for room in range(12):
                taken = {int(name) for name in os.listdir("/proc/self/fd")}
                free = [number for number in range(max(taken) + 20) if number not in taken]
                resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], hard))
                try:
                    await asyncio.wait_for(provider.create(), 60)
                except SandboxError:
                    failed += 1
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, raised)
                for sandbox in list(provider._sandboxes):
                    await sandbox.close()
                assert len(os.listdir("/proc/self/fd")) == before
        assert 4 <= failed < 12
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_failed_set_up_says_why(provider: NamespaceSandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, enter = NamespaceSandbox._wanted, NamespaceSandbox._enter

    def impossible(self: NamespaceSandbox) -> dict[str, Any]:
        return wanted(self) | {"folders": {"/tmp": "size=nothing"}}

    def late(self: NamespaceSandbox, *group: Any) -> None:
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.01)
        enter(self, *group)

    monkeypatch.setattr(NamespaceSandbox, "_wanted", impossible)
    monkeypatch.setattr(NamespaceSandbox, "_enter", late)
    with pytest.raises(SandboxLost, match="mounting /tmp"):
        await provider.create()


async def test_a_start_that_is_cancelled_leaves_no_control_group(
    provider: NamespaceSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = (await provider.budget()).groups
    if groups is None:
        pytest.skip("this process may not make control groups")
    begun, go, made, add = threading.Event(), threading.Event(), list[Any](), groups.add

    def slow(*given: Any, **limits: Any) -> Any:
        begun.set()
        go.wait(60)
        made.append(add(*given, **limits))
        return made[-1]

    monkeypatch.setattr(groups, "add", slow)
    start = asyncio.ensure_future(provider.create())
    assert await soon(begun.is_set, 20)
    start.cancel()
    await asyncio.sleep(0.1)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert await soon(lambda: made, 20)
    assert not any(folder.exists() for folder in made[0].folders.values())


OWNER = """
import asyncio, os
from rtl_agent_gym.sandboxes import NamespaceSandboxes, SandboxSpec
async def main():
    async with NamespaceSandboxes() as provider:
        for role in ROLES:
            sandbox = await provider.create(SandboxSpec(role=role))
            await sandbox.spawn(["sh", "-c", "trap '' TERM; sleep 1000 & setsid sleep 1000"])
            print(sandbox.pid, flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
async def test_everything_ends_with_its_owner(stopped: bool) -> None:
    roles = ["agent", "scoring"]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("ROLES", repr(roles))], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        tops = [int(owner.stdout.readline()) for _ in roles]
        assert await soon(lambda: all(len(below(top)) >= 5 for top in tops), 20)
        processes = set[int]().union(*map(below, tops))
        if stopped:  # from outside; then nothing inside notices that the socket is closed
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
        owner.kill()
        assert await soon(lambda: not [pid for pid in processes if Path(f"/proc/{pid}").exists()], 20)


async def test_a_sandbox_whose_commands_end_it_is_broken(provider: NamespaceSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(memory=200 << 20))
    if sandbox._group is None:
        pytest.skip("this process may not make control groups")
    # Files in memory can be given to no process, so the kernel kills them all. The pause is for the warden to report
    # that more than half is in use: without that, the end could be the machine's. If bash is the first to be killed,
    # which ends the loop, another one takes its place.
    fill = "head -c 150M /dev/zero > /tmp/x; sleep 2; while :; do head -c 150M /dev/zero > /code/x; done"

    async def fill_up() -> None:
        for _ in range(5):
            await sandbox.run(fill)

    with pytest.raises(SandboxBroken, match="took most of its memory"):
        await fill_up()


FORKS = """
import os, time
number = 0
try:
    for number in range(60):
        if not os.fork():
            time.sleep(5)
            os._exit(0)
except BlockingIOError:
    pass
print(number)
"""


async def test_its_own_limit_of_processes(provider: NamespaceSandboxes) -> None:
    made = [await provider.create(SandboxSpec(pids=pids)) for pids in (40, 200)]
    found = [int((await sandbox.exec(["python3", "-c", FORKS])).output) for sandbox in made]
    assert 30 < found[0] < 40
    assert found[1] == 59


async def test_a_keepers_folder_need_not_be_in_the_image(provider: NamespaceSandboxes) -> None:
    sandbox = await provider.create(
        SandboxSpec(role="scoring", keeper_folders=("/nowhere",), files={"/nowhere/x": "y"})
    )
    result = await sandbox.exec(["sh", "-c", "cat /nowhere/x; touch /x; ls /usr/bin/iverilog /usr/local/bin/iverilog"])
    assert result.output.startswith("ytouch: cannot touch '/x': Read-only file system\n")
    with pytest.raises(SandboxError, match="not in the image"):
        await provider.create(SandboxSpec(role="scoring", keeper_folders=("/usr/nowhere",)))


async def test_what_it_does_not_have_is_refused(provider: NamespaceSandboxes) -> None:
    with pytest.raises(ImageError, match="only the simulation image"):
        await provider.create(SandboxSpec(image="debian"))
    with pytest.raises(SandboxError, match="network"):
        await provider.create(SandboxSpec(network="tests"))


async def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(root_folder.VARIABLE, str(tmp_path))
    async with NamespaceSandboxes() as provider:
        with pytest.raises(ImageError, match="rtl-agent-gym image unpack"):
            await provider.create()
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SandboxError, match="install the package bubblewrap"):
            await provider.create()


SEEN = """
import os, signal
print(*[pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()])
try:
    os.kill(1, signal.SIGKILL)
except PermissionError:
    pass
for name in ("root", "cwd", "mem", "fd"):
    try:
        os.stat(f"/proc/1/{name}/.") if name != "mem" else open("/proc/1/mem", "r+b")
        print("reached", name)
    except PermissionError:
        pass
"""
"""What a process of a scoring sandbox sees of others, and can do to process 1."""

USER = """
import asyncio, json
from rtl_agent_gym.sandboxes import NamespaceSandboxes, SandboxSpec

HOGS = "for n in 1 2 3 4; do python3 -c 'import time; x = b\\"x\\" * (120 << 20); time.sleep(6)' & done; wait"
SHARED = "import mmap, time; m = mmap.mmap(-1, 320 << 20); [m.write(bytes(1 << 20)) for _ in range(320)]; time.sleep(5)"

def killed_on_machine():
    return [line for line in open("/proc/vmstat") if line.startswith("oom_kill ")]

async def main():
    found = {}
    async with NamespaceSandboxes() as provider:
        earlier = killed_on_machine()
        sandbox = await provider.create(SandboxSpec(memory=300 << 20, pids=100))
        async def run(command):
            return (await sandbox.run(command)).output.strip()
        found["who"] = (await run("id -un; id -u; touch /code/x && stat -c %U /code/x")).split()
        found["uid"] = str(sandbox.uid)
        found["status"] = await run("cat /proc/[0-9]*/status | grep -E '^Cap|^NoNew' | sort -u | tr -d '\\t'")
        found["alone"] = await run("python3 -c 'x = bytearray(1 << 30)'")
        found["refused"] = await sandbox.oom_kills()
        await run(HOGS)
        found["kills"] = await sandbox.oom_kills()
        found["others"] = killed_on_machine() != earlier
        found["shared"] = await run(f"python3 -c '{SHARED}'; echo $?")
        found["loop"] = await run("python3 -c 'import asyncio; print(asyncio.run(asyncio.sleep(0, 7)))'")
        found["watches"] = await run("python3 -c 'import select; select.epoll()'")
        found["uncounted"] = await run("python3 -c 'import os; os.memfd_create(\\"x\\")'")
        other = await provider.create(SandboxSpec(pids=100))
        count = "for n in $(seq 60); do sleep 3 & done 2>/dev/null; jobs -r | wc -l"
        found["processes"] = [result.output for result in await asyncio.gather(sandbox.run(count), other.run(count))]
        scoring = await provider.create(SandboxSpec(role="scoring", files={"/src/x": "text"}))
        change = "echo > /src/x || rm /src/x || chmod 777 /src || echo refused"
        result = await scoring.exec(["sh", "-c", f"cat /src/x; {change}"])
        found["scoring"] = result.output
        result = await scoring.exec(["python3", "-c", SEEN])
        found["seen"] = result.output.splitlines()
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.mark.parametrize("user", [RANGED, SINGLE])
def test_it_works_as_an_ordinary_user(user: str) -> None:
    found = run_as(user, USER.replace("SEEN", repr(SEEN)))
    assert found["who"] == ["agent", found["uid"], "agent"]
    assert found["status"].split() == [f"{name}:0000000000000000" for name in sorted(SETS)] + ["NoNewPrivs:1"]
    assert "MemoryError" in found["alone"]
    assert found["refused"] is None  # not 0: the warden does not see it
    # Where the kernel has killed any process meanwhile, such as another test's, the warden says that it does not know.
    assert found["kills"] is None if found["others"] else found["kills"] >= 1
    assert found["shared"].split()[-1] == "137"
    assert found["uncounted"].endswith("PermissionError: [Errno 1] Operation not permitted")
    assert found["loop"] == "7"
    # The kernel counts watches by user, and with one user the commands' is the provider's.
    assert found["watches"].endswith("PermissionError: [Errno 1] Operation not permitted") is (user == SINGLE)
    assert found["processes"] == ["60\n", "60\n"]  # two sandboxes of one user do not share a limit
    assert found["scoring"].startswith("text")
    assert found["scoring"].endswith("refused\n")
    assert found["seen"] == (["1 2"] if user == RANGED else ["1"])  # the wardens of the keeper and of the worker


SHARED = """
import asyncio, json
from rtl_agent_gym.sandboxes import NamespaceSandbox, NamespaceSandboxes

wanted = NamespaceSandbox._wanted
NamespaceSandbox._wanted = lambda self: {**wanted(self), "shared_pages": 4096, "refused": []}  # as with control groups
MAKE = "import ctypes; print(ctypes.CDLL(None).shmget(0, 32 << 20, 0o1600))"

async def main():
    async with NamespaceSandboxes() as provider:
        print(json.dumps((await (await provider.create()).exec(["python3", "-c", MAKE])).output))

asyncio.run(main())
"""


@pytest.mark.parametrize("user", [RANGED, SINGLE])
def test_system_v_memory_is_limited_or_else_refused(user: str) -> None:
    """Where its user namespace has no root, a sandbox cannot limit it."""
    assert run_as(user, SHARED) == "-1\n"


LOWERED = """
import asyncio, json, resource
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.sandboxes import NamespaceSandboxes, SandboxSpec
from rtl_agent_gym.sandboxes.namespaces import check_namespaces

def lower(name, most):
    kind = getattr(resource, "RLIMIT_" + name)
    most = min(limit for limit in (most, resource.getrlimit(kind)[1]) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(kind, (most, most))
    return str(most)

async def main():
    found = {"wanted": ["a", lower("NOFILE", 1000), lower("NPROC", 1 << 16), "unlimited", "unlimited", "8192"]}
    for name, soft in (("AS", 16 << 30), ("CPU", 3000), ("STACK", 1 << 20)):
        kind = getattr(resource, "RLIMIT_" + name)
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
    async with NamespaceSandboxes() as provider:
        provider._host.grouped = False
        sandbox = await provider.create(SandboxSpec(pids=1 << 20))
        shown = await sandbox.run("echo a; ulimit -Hn; ulimit -Hu; ulimit -v; ulimit -t; ulimit -s")
        found["inside"] = shown.output.split()
        for name, most in (("DATA", 1 << 30), ("FSIZE", 1 << 20)):
            lower(name, most)
            try:
                await provider.create()
            except SandboxError as error:
                found[name] = str(error)
    try:
        check_namespaces()
    except SandboxError as error:
        found["check"] = str(error)
    print(json.dumps(found))

asyncio.run(main())
"""


def test_a_users_lower_limits_hold_unless_a_verdict_could_depend_on_them() -> None:
    done = subprocess.run([sys.executable, "-c", LOWERED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["inside"] == found["wanted"]
    assert found["DATA"].startswith("`ulimit -Hd` is 1048576 KiB here")
    assert found["FSIZE"].startswith("`ulimit -Hf` is 1024 KiB here")
    assert found["check"] == found["FSIZE"]


WITH_GROUPS = """
import os, resource
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.sandboxes import SandboxSpec
from rtl_agent_gym.sandboxes.namespaces import _own_limits

for name, most in (("DATA", 1 << 30), ("AS", 1 << 30), ("CPU", 1000), ("NOFILE", 256)):
    if not os.fork():
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
        try:
            print(_own_limits(SandboxSpec(), guarded=False), flush=True)
        except SandboxError as error:
            print(str(error).partition(" here")[0], flush=True)
        os._exit(0)
    os.wait()
"""


def test_each_limit_of_the_user_that_is_too_low_is_named_where_control_groups_limit_the_memory_too() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_GROUPS], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "`ulimit -Hd` is 1048576 KiB",
        "`ulimit -Hv` is 1048576 KiB",
        "`ulimit -Ht` is 1000 s",
        "`ulimit -Hn` is 256",
    ], done.stderr


IN_OTHER_LOCALE = """
import asyncio, sys
from rtl_agent_gym.sandboxes import NamespaceSandboxes

async def main():
    async with NamespaceSandboxes() as provider:
        print((await (await provider.create()).run("echo $((6 * 7))")).output, sys.getfilesystemencoding())

asyncio.run(main())
"""


def test_a_locale_that_is_not_utf_8_serves() -> None:
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", IN_OTHER_LOCALE], env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["42", "ascii"], done.stderr


async def test_a_python_that_was_built_for_old_systems_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((os, "memfd_create"), (os, "pidfd_open"), (signal, "pidfd_send_signal")):
        monkeypatch.delattr(module, name)
    starter = Zygote(Launch(["/bin/sh", "-c", "exec sleep 60"], single=True))
    started = Started(os.dup(starter._descriptor))
    assert started.pid == starter._process.pid
    started.kill()
    started.close()
    await starter.close()
    assert starter._process.returncode == -signal.SIGKILL


def test_bubblewrap_0_4_knows_all_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = zygote.bubblewrap_options(tmp_path, ("/new",), ranged=True, groups=True, programs=tmp_path)
    assert not {"--clearenv", "--perms", "--size"} & set(options)
    (tmp_path / "bwrap").write_text('#!/bin/sh\necho "$@"; /usr/bin/env\n')
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SECRET", "1")
    said = run_in(tmp_path, ["true"]).stdout
    assert said.startswith("--unshare-all ")
    assert "--clearenv" not in said
    assert "SECRET" not in said


def test_user_namespaces_that_the_kernel_refuses_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for make in (userns.open_ranged, lambda: userns.open_single(UIDS.start)):
        with pytest.raises(SandboxError, match=r"Operation not permitted.*max_user_namespaces"):
            make()


READ_ONLY = """#!/bin/sh
exec {0} --mount sh -c 'mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec {0} "$@"' sh "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a folder takes root")
def test_where_proc_sys_is_read_only_no_setting_of_the_kernel_is_blamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = READ_ONLY.format(shutil.which("unshare"))
    (tmp_path / "unshare").write_text(script)
    (tmp_path / "unshare").chmod(0o755)
    if subprocess.run([tmp_path / "unshare", "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"^/proc/sys is read-only here.*; make it writable"):
        userns.open_ranged()
