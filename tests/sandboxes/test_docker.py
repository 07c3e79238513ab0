"""Containers: what is in them, what they may do, and that none outlives its owner."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
import requests

from rtl_agent_gym.errors import DaemonError, ImageError, SandboxBroken, SandboxError, SandboxLost
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes, SandboxSpec, client, container, warden_sandbox
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.sandboxes.client import MAPPED_UIDS, MAX_INODES, UIDS, UserIds, uid_range
from rtl_agent_gym.sandboxes.container import cpu_time, own_doing
from rtl_agent_gym.sandboxes.image import connected, image_id
from rtl_agent_gym.sandboxes.image_build import BOOTSTRAPPED_BASE, PULLED_BASE
from rtl_agent_gym.sandboxes.warden_sandbox import CpuTime, WardenSandbox
from tests.sandboxes.providers import containers, docker_api, kill, owned, running
from tests.waiting import soon

pytestmark = pytest.mark.docker
shared = pytest.mark.asyncio(loop_scope="module")
"""For tests that need no sandbox of their own."""


async def gone(name: str, seconds: float, besides: Collection[str] = ()) -> bool:
    return await soon(lambda: containers(name, all=True) <= set(besides), seconds)


@pytest.mark.daemon
async def test_the_container_is_hardened_and_not_told_the_users_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://me:secret@proxy:1"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    async with DockerSandboxes() as provider:
        sandbox = await provider.create()
        with docker_api() as api:
            found = api.inspect_container(sandbox.id)
    assert "secret" not in str(found["Config"]["Env"])
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["ReadonlyRootfs"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["PidsLimit"] == 512
    assert host["Memory"] == 2 << 30
    assert not host["Privileged"]
    assert not found["Mounts"]
    assert found["Config"]["User"] == f"{sandbox.uid}:{sandbox.uid}"
    assert sandbox.uid in UIDS


SOCKETS = """
import socket
made = []
for family in range(64):
    for kind in (1, 2, 3):
        try:
            made.append(socket.socket(family, kind).family.real)
        except OSError:
            pass
print(*sorted(set(made)))
"""
"""Prints the families of which a command can make a socket; AF_VSOCK (40) leads from a virtual machine to its host."""
IO_URING = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 4, 0)
print(errno.errorcode[ctypes.get_errno()])
"""


@shared
async def test_what_a_command_may_do(shared_sandbox: DockerSandbox) -> None:
    for command, expected in (
        (
            "whoami; id -un; id -gn; echo $USER ~ ~agent; stat -c %U /code",
            "agent\nagent\nagent\nagent /home/agent /home/agent\nagent",
        ),
        ("python3 -c 'import getpass, pathlib; print(getpass.getuser(), pathlib.Path.home())'", "agent /home/agent"),
        (
            "for words in 'prlimit --pid 1 --cpu=1' 'renice 5 1' 'chrt -i -p 0 1' 'taskset -p 1 1'; do $words; done "
            "2>&1 | grep -c 'not permitted'",
            "4",
        ),
        ("nice -n 5 true && taskset 1 true && prlimit --nofile=9 true; echo $?", "0"),
        ("df -i /code | awk 'END { print $2 }'", str(MAX_INODES)),
        ("grep CapEff /proc/self/status | cut -f2", "0" * 16),
        ("grep NoNewPrivs /proc/self/status | cut -f2", "1"),
        ("grep -o '[a-z0-9]*:' /proc/net/dev", "lo:"),
        ("touch /etc/x /usr/x /venv/x 2>/dev/null; echo $?", "1"),
        ("ls /src /rundir | grep -c py", "0"),
        ("cat /proc/1/environ 2>/dev/null; ls /proc/1/fd 2>/dev/null; echo closed", "closed"),
        ("mknod /tmp/d c 1 1 2>/dev/null; echo $?", "1"),
        ("ulimit -c", "0"),
        (f"python3 -c '{SOCKETS}'", "1 2 10 16"),
        (f"python3 -c '{IO_URING}'", "ENOSYS"),
        ("python3 -c 'import socket; print(len(socket.socketpair()))'", "2"),
    ):
        assert (await shared_sandbox.run(command)).output.strip() == expected, command


@shared
async def test_zombies_are_reaped(shared_sandbox: DockerSandbox) -> None:
    await shared_sandbox.run("for i in $(seq 50); do (setsid true &) ; done; sleep 0.3")
    assert (await shared_sandbox.run("ps -eo stat= | grep -c Z")).output == "0\n"


@shared
async def test_exec_runs_beside_the_shell(shared_sandbox: DockerSandbox) -> None:
    slow = asyncio.create_task(shared_sandbox.run("until [ -e /tmp/go ]; do sleep 0.05; done; echo shell"))
    result = await shared_sandbox.exec(["sh", "-c", "echo $A; pwd; exit 4"], env={"A": "b c"}, cwd="/tmp")
    assert not slow.done()
    await shared_sandbox.exec(["touch", "/tmp/go"])
    assert (result.output, result.exit_code) == ("b c\n/tmp\n", 4)
    assert (await slow).output == "shell\n"


@shared
async def test_only_plain_files_come_out(shared_sandbox: DockerSandbox) -> None:
    await shared_sandbox.run(
        "mkdir -p rtl real && echo real > real/x && cd rtl && echo ok > ok.sv && ln -s /etc/passwd link.sv && "
        "ln -s ../real folder && mkfifo pipe && ln ok.sv hard.sv && head -c 1000 /dev/zero > large"
    )
    found = await shared_sandbox.read_files(["rtl"], max_file=999)
    assert sorted(found) == ["rtl/hard.sv", "rtl/ok.sv"]
    assert await shared_sandbox.read_files(["rtl/folder/x"]) == {}


@shared
async def test_writing_never_follows_a_link(shared_sandbox: DockerSandbox) -> None:
    await shared_sandbox.run("mkdir /tmp/away; echo mine > /tmp/away/f; ln -s /tmp/away rtl; ln -s /tmp/away/f docs")
    await shared_sandbox.write_files({"rtl/f": "new", "docs": "new"})
    assert (
        await shared_sandbox.run("cat /tmp/away/f; cat rtl/f docs; test -L rtl || echo folder")
    ).output == "mine\nnewnewfolder\n"


@shared
async def test_a_path_that_leaves_the_folder_is_refused(shared_sandbox: DockerSandbox) -> None:
    for path in ("/etc/x", "../x", "a/../../x", "a//b", "", "a/./b", "a\0b", "a\ud800"):
        with pytest.raises(ValueError, match="relative file path"):
            await shared_sandbox.write_files({path: "x"})


async def test_the_scoring_roles_processes_cannot_touch_the_keepers_files(provider: DockerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(role="scoring"))
    await sandbox.write_files({"test_x.py": "hidden"}, root="/src", keeper=True)
    await sandbox.write_files({"rtl/x.sv": "module x;"})
    script = "id -u; cat /src/test_x.py; echo y > /src/test_x.py; rm -f /src/test_x.py; touch /src/new"
    script += "; kill -9 1; cat /src/*"
    result = await sandbox.exec(["bash", "-c", script + " 2>&1"])
    assert result.output.startswith(f"{sandbox.uid}\nhidden")
    assert result.output.endswith("hidden")
    assert "Permission denied" in result.output
    assert "not permitted" in result.output
    # No process has a right when work begins.
    script = r"""
        for status in /proc/[0-9]*/status; do
            grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs):' "$status" | xargs
        done
    """
    lines = (await sandbox.exec(["bash", "-c", script])).output.splitlines()
    rights = "CapInh: {0} CapPrm: {0} CapEff: {0} CapAmb: {0} NoNewPrivs: 1".format("0" * 16)
    who = [line.removesuffix(rights).split() for line in lines]
    assert all(line.endswith(rights) for line in lines), lines
    assert all(len(set(words[1:5])) == 1 and words[1:5] == words[6:10] for words in who), lines
    assert {words[1] for words in who} == {str(sandbox.uid), str(sandbox.uid + 1)}
    assert all(words[10:] == ["Groups:"] for words in who), lines
    keeper = sandbox.uid + 1
    for program in ("import os; os.setuid(0)", f"import os; os.setgid({keeper})", f"import os; os.setuid({keeper})"):
        result = await sandbox.exec(["python3", "-c", program])
        assert "Operation not permitted" in result.output


async def test_much_goes_in_while_much_comes_out(provider: DockerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(role="scoring"))
    noise = sandbox.exec(["sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x"], max_output=4_000_000)
    files: dict[str, str | bytes] = {f"rtl/{n}.sv": bytes([65 + n]) * 4_000_000 for n in range(6)}
    result, _, _ = await asyncio.gather(
        noise, sandbox.write_files(files), sandbox.write_files(files, root="/src", keeper=True)
    )
    assert result.output_chars == 20_000_000
    assert await sandbox.read_files(["rtl"]) == files


async def test_a_scoring_sandbox_ends_when_one_of_its_users_cannot_go_on(provider: DockerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(role="scoring"))
    with pytest.raises(SandboxLost):
        await sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 5"])
    assert await gone(sandbox.id, 5)


ECHO = ("python3", "-c", "import os, sys; print(os.getpid(), len(sys.stdin.buffer.read()))")


async def test_a_process_on_standby_is_found_running_once_or_says_how_it_ended(provider: DockerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(role="scoring", standby=ECHO))
    ended = await provider.create(SandboxSpec(standby=("sh", "-c", "echo early; exit 3")))
    await asyncio.sleep(0.5)
    found = (await sandbox.exec(["pgrep", "-f", "^python3 -c .*sys.stdin.buffer"])).output
    assert found.strip().isdigit()
    assert sandbox.standby is not None
    first = await sandbox.standby.communicate(b"x" * 3_000_000)
    assert first.output == f"{found.strip()} 3000000\n"
    second = await sandbox.exec(ECHO, cwd="/")
    pid, size = second.output.split()
    assert (pid == found.strip(), size) == (False, "0"), "without stdin there is nothing to read"
    assert ended.standby is not None
    result = await ended.standby.communicate(b"x" * 1_000_000)
    assert (result.output, result.exit_code) == ("early\n", 3)


async def test_a_process_on_standby_has_its_time_from_when_it_got_its_stdin(provider: DockerSandboxes) -> None:
    words = ("sh", "-c", "cat > /dev/null; sleep 60")
    sandbox = await provider.create(SandboxSpec(role="scoring", standby=words))
    begun = time.monotonic()
    await asyncio.sleep(1)
    assert sandbox.standby is not None
    waited = time.monotonic() - begun
    result = await sandbox.standby.communicate(b"x", timeout=0.5)
    assert result.timed_out
    assert 0.5 <= result.seconds < time.monotonic() - begun - waited + 0.1
    assert (await sandbox.exec(["pgrep", "-c", "sleep"])).output == "0\n"


async def test_many_at_once(provider: DockerSandboxes) -> None:
    sandboxes = await asyncio.gather(*(provider.create() for _ in range(4)))
    results = await asyncio.gather(*(box.run(f"echo {i}") for i, box in enumerate(sandboxes)))
    assert [result.output for result in results] == [f"{i}\n" for i in range(4)]


@pytest.mark.parametrize(
    "seconds", [0.0, *(pytest.param(time, marks=pytest.mark.slow) for time in (0.02, 0.05, 0.1, 0.2)), 0.15, 0.3]
)
async def test_a_provider_that_closes_while_one_starts_leaves_nothing(seconds: float) -> None:
    provider = make_provider()
    creating = asyncio.ensure_future(provider.create(SandboxSpec(role="scoring")))
    await asyncio.sleep(seconds)
    started = list(provider._sandboxes)
    await provider.close()
    found: list[object] = await asyncio.gather(creating, return_exceptions=True)
    assert isinstance(found[0], SandboxLost | WardenSandbox), found
    for sandbox in started:
        assert await gone(sandbox.id, 3)


async def test_close_leaves_nothing(provider: DockerSandboxes) -> None:
    sandbox = await provider.create()
    assert containers(sandbox.id, all=True)
    await sandbox.close()
    assert not containers(sandbox.id, all=True)
    await sandbox.close()
    with pytest.raises(SandboxLost, match="closed"):
        await sandbox.run("true")


@pytest.mark.daemon
async def test_close_waits_for_a_removal_in_progress(
    provider: DockerSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker answers 409 while it removes a container, as it does by itself when the warden ends."""
    sandbox = await provider.create()
    answers = [404, 409, 409, 409]

    def refuse(*_: Any, **__: Any) -> None:
        response = requests.Response()
        response.status_code = answers.pop()
        kind = docker.errors.NotFound if response.status_code == 404 else docker.errors.APIError
        raise kind("removal already in progress", response)

    monkeypatch.setattr(docker.APIClient, "remove_container", refuse)
    await sandbox.close()
    assert answers == []


async def test_an_exception_and_a_cancellation_leave_nothing() -> None:
    names: list[str] = []

    async def work() -> None:
        async with make_provider() as provider:
            names.append((await provider.create()).id)
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await soon(lambda: names or task.done())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(names[0], 2)


async def test_cancelled_while_starting_leaves_nothing() -> None:
    mine = f"rtl-gym-agent-{os.getpid()}-"
    before = containers(mine, all=True)
    async with make_provider() as provider:
        for delay in (0.0, 0.01, 0.05, 0.1, 0.15, 0.2):
            task = asyncio.create_task(provider.create())
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert await gone(mine, 5, besides=before)


INOTIFY = "python3 -c 'import ctypes; c = ctypes.CDLL(None); print(sum(c.inotify_init() >= 0 for _ in range({0})))'"


@pytest.mark.daemon
async def test_what_one_container_uses_up_the_others_still_have(
    provider: DockerSandboxes, sandbox: DockerSandbox
) -> None:
    """The kernel grants each user so many inotify instances, in all containers together."""
    other = await provider.create(SandboxSpec(role="scoring"))
    assert len({sandbox.uid, sandbox.uid + 1, other.uid, other.uid + 1}) == 4
    hold = INOTIFY.format(3000).replace("range(3000)))", "range(3000)), flush=True); input()")
    taken = await sandbox.run(f"mkfifo f; ({hold} < f > n &) ; exec 9> f; until test -s n; do sleep 0.05; done; cat n")
    assert 0 < int(taken.output) < 3000
    assert (await sandbox.run(INOTIFY.format(1))).output == "0\n"
    assert (await other.exec(["sh", "-c", INOTIFY.format(1)])).output == "1\n"
    assert (await other.exec(["whoami"])).output == "agent\n"


def test_user_ids_are_drawn_from_what_the_daemon_can_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert uid_range({"SecurityOptions": ["name=seccomp,profile=default"]}) == UIDS
    assert uid_range({}) == UIDS
    for option in ("name=rootless", "name=userns"):
        assert uid_range({"SecurityOptions": [option]}) == MAPPED_UIDS
    assert max(MAPPED_UIDS) + 1 < 65_536
    monkeypatch.setattr(client, "_UID_MAP", tmp_path / "uid_map")
    for lines, drawn in (("0 100000 65536\n", MAPPED_UIDS), ("0 1000 1\n1 100000 4294967294\n", UIDS)):
        client._UID_MAP.write_text(lines)
        assert uid_range({}, local=True) == drawn
        assert uid_range({}) == UIDS
    ids = UserIds(range(2, 8, 2))
    assert {ids.take() for _ in range(3)} == {2, 4, 6}
    ids.give_back(4)
    assert ids.take() == 4
    single = UserIds([7])
    assert (single.take(), single.take()) == (7, 7)


@pytest.mark.daemon
async def test_a_paused_container_is_a_machine_fault(sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtl_agent_gym.sandboxes.warden_sandbox.GRACE", 0.5)
    await sandbox.run("true")
    with docker_api() as api:
        api.pause(sandbox.id)
        with pytest.raises(SandboxLost, match="has not answered"):
            await sandbox.run("true", timeout=0.5)
        api.unpause(sandbox.id)
    with pytest.raises(SandboxLost):
        await sandbox.read_files(["."])


@pytest.mark.daemon
async def test_a_silent_sandbox_is_judged_by_its_whole_silence(
    sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def own_doing(*given: Any) -> str:
        judged.append((given[-1], cpu_time(*given[:2])))
        return ""

    monkeypatch.setattr(warden_sandbox, "GRACE", 1.0)
    monkeypatch.setattr(warden_sandbox, "LATE", 0.2)
    monkeypatch.setattr(container, "own_doing", own_doing)
    await sandbox.run("true")
    with docker_api() as api:
        api.pause(sandbox.id)
        with pytest.raises(SandboxLost, match="has not answered"):
            await sandbox.run("true", timeout=0.5)
        api.unpause(sandbox.id)
    [(before, after)] = judged
    assert 0 < before.seconds <= after.seconds
    assert 0.2 < after.at - before.at < 60.0


@pytest.mark.parametrize(("used", "blamed"), [(112.0, True), (40.0, False)])
def test_commands_that_starved_the_warden_until_a_moment_ago(used: float, blamed: bool) -> None:
    """The container is idle by the time at which the daemon looks."""

    class Idle:
        def inspect_container(self, name: str) -> dict[str, Any]:
            return {"State": {"Running": True}}

        def stats(self, name: str, **options: Any) -> dict[str, Any]:
            total = {"cpu_usage": {"total_usage": int((5.0 + used) * 1e9)}, "online_cpus": 8}
            times = {"preread": "2026-01-01T00:01:00.5Z", "read": "2026-01-01T00:01:02Z"}
            return {"cpu_stats": total, "precpu_stats": total, **times}

    begun = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
    found = own_doing(Idle(), "name", SandboxSpec(cpus=2.0), False, CpuTime(5.0, begun))
    assert bool(found) == blamed
    assert not own_doing(Idle(), "name", SandboxSpec(cpus=2.0), False)


async def test_a_warden_that_says_it_cannot_go_on_was_broken_by_the_commands(provider: DockerSandboxes) -> None:
    for used, expected in ((False, SandboxLost), (True, SandboxBroken)):
        sandbox = await provider.create()
        if used:
            await sandbox.run("true")
        for _ in range(2):
            with pytest.raises(expected):
                await sandbox._ask(b"R", {}, patience=5.0)  # no client asks like this


async def test_bash_starts_nothing_between_commands(provider: DockerSandboxes) -> None:
    """Nobody watches the memory then: what fills it would look like the machine's fault."""
    limits = ("TMOUT=1", "readonly TMOUT=1")
    sandboxes = [await provider.create() for _ in limits]
    for sandbox, limit in zip(sandboxes, limits, strict=True):
        await sandbox.run(f"trap 'exec touch /code/late' EXIT; {limit}")
    await asyncio.sleep(2.0)
    assert [await sandbox.read_files(["late"]) for sandbox in sandboxes] == [{}, {}]
    # Where the limit can be changed: otherwise bash may notice now that its time is over.
    assert (await sandboxes[0].run("echo alive")).output == "alive\n"


async def test_a_memory_that_is_filled_is_reported(provider: DockerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(memory=256 << 20, disk=200 << 20))
    channel = sandbox._channel
    assert channel is not None
    await sandbox.run("fallocate -l 150M large")
    assert channel.memory_full
    await sandbox.run("rm large")
    assert not channel.memory_full
    await sandbox.spawn(["sh", "-c", "fallocate -l 150M large; sleep 60"])
    assert await soon(lambda: channel.memory_full, 20)


async def test_a_container_killed_from_outside_is_a_machine_fault(sandbox: DockerSandbox) -> None:
    running = asyncio.create_task(sandbox.run("sleep 30"))
    await asyncio.sleep(0.3)
    kill(sandbox)
    with pytest.raises(SandboxLost, match="went away"):
        await running
    with pytest.raises(SandboxLost):
        await sandbox.run("true")


OWNER = """
import asyncio, os, sys
from rtl_agent_gym.sandboxes.choice import make_provider
async def main():
    provider = make_provider()
    sandbox = await provider.create()
    await sandbox.run("(while :; do sleep 1; done) &")
    if len(sys.argv) > 1 and os.fork() == 0:
        import time
        time.sleep(30)
        os._exit(0)
    print(sandbox.id, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("forks", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_killed_owner_leaves_nothing(number: signal.Signals, forks: bool) -> None:
    command = [sys.executable, "-c", OWNER, *(["fork"] if forks else [])]
    owner = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        # A shell gives its background jobs an ignored SIGINT, and these tests may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline()
        found = owned(owner.pid, every=True)
        assert found
        owner.send_signal(number)
        owner.wait(60)
        await soon(lambda: not owned(owner.pid, every=True) and not running(found))
        assert not owned(owner.pid, every=True)
        assert not running(found)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.stdout.close()


@pytest.mark.daemon
async def test_no_daemon_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///tmp/no-such-daemon.sock")
    async with DockerSandboxes() as provider:
        with pytest.raises(DaemonError, match=r"no Docker daemon: .*does not exist"):
            await provider.create()


@pytest.mark.daemon
async def test_a_missing_image_is_said_clearly(provider: DockerSandboxes) -> None:
    with pytest.raises(ImageError, match="rtl-agent-gym image build"):
        await provider.create(SandboxSpec(image="rtl-agent-gym/sim:nowhere"))


@pytest.mark.daemon
async def test_an_image_without_python_is_a_machine_fault(provider: DockerSandboxes) -> None:
    with connected() as client:
        base = next((name for name in (PULLED_BASE, BOOTSTRAPPED_BASE) if image_id(client, name)), None)
    if base is None:
        pytest.skip("the daemon has no Debian")
    with pytest.raises(SandboxError, match="python3") as raised:
        await provider.create(SandboxSpec(image=base))
    assert not isinstance(raised.value, ImageError)
