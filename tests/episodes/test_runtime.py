"""What the episodes of one event loop share, who owns it, and what becomes of it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes import runtime
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.errors import SandboxLost, UsageError
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, SandboxSpec
from rtl_agent_gym.sandboxes.admission import set_limits
from rtl_agent_gym.scoring import RewardWeights
from tests.sandboxes.providers import containers, owned

LEFT = """
import asyncio, time
from rtl_agent_gym.episodes import runtime
from rtl_agent_gym.problems import load_problems
from tests.sandboxes.providers import owned

async def use(release):
    lease = runtime.acquire()
    if release:
        await lease.release()
    else:
        await lease.runtime.scorer(None, None).prepare(load_problems("bundled")[0])
        print("waiting", len(owned()))

asyncio.run(use(False))
asyncio.run(use(False))
asyncio.run(use(True))
end = time.monotonic() + 10
while owned() and time.monotonic() < end:
    time.sleep(0.1)
print("left", len(owned()))
"""


@pytest.mark.docker
def test_a_loop_that_ends_without_a_release_leaves_nothing_to_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=120)
    words = [line.split() for line in done.stdout.splitlines()]
    assert [word for word, _ in words] == ["waiting", "waiting", "left"], done.stderr
    assert int(words[0][1]) == 4
    assert int(words[-1][1]) == 0


OPEN = """
import asyncio, os
from rtl_agent_gym.episodes import runtime

async def use(release):
    lease = runtime.acquire(sandbox="namespaces")
    if release:
        await lease.release()
    else:
        await lease.runtime.provider.create()

def left():
    asyncio.run(use(False))
    asyncio.run(use(True))
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return len(os.listdir("/proc/self/fd")), len(file.read().split())

left()
print(*left(), *left())
"""


@pytest.mark.docker
@pytest.mark.usefixtures("root_folder")
def test_a_closed_loop_leaves_no_open_files_and_processes() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, timeout=120)
    files, children, files_later, children_later = map(int, done.stdout.split())
    assert (files, children) == (files_later, children_later), done.stderr
    assert children == 0


async def test_users_of_a_loop_share_until_the_last_releases() -> None:
    first, second = runtime.acquire(), runtime.acquire()
    shared = first.runtime
    assert second.runtime is shared
    assert shared.scorer(None) is shared.scorer(None)
    assert shared.scorer(None) is not shared.scorer(RewardWeights.preset("proxy"))
    await first.release()
    await first.release()  # idempotent: the second user's hold stays
    assert shared.users == 1
    await second.release()
    third = runtime.acquire()
    assert third.runtime is not shared
    with pytest.raises(SandboxLost, match="closed"):
        await shared.provider.create()
    await third.release()


def test_callers_that_do_not_await_share_the_background_loops() -> None:
    async def mine() -> runtime.Lease:
        return runtime.acquire()

    lease, other = runtime.acquire(runtime.background_loop()), runtime.run_sync(mine())
    elsewhere = asyncio.run(mine())  # another loop's
    assert lease.runtime is other.runtime is not elsewhere.runtime
    runtime.run_sync(lease.release())
    assert other.runtime.users == 1
    runtime.run_sync(other.release())


def test_what_the_work_raises_reaches_the_caller_and_is_not_kept() -> None:
    class Trouble(Exception):
        pass

    held: list[weakref.ref[Trouble]] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        error = Trouble()
        held.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(Trouble):
                runtime.run_sync(fails())
        runtime.run_sync(asyncio.sleep(0))
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()


def late(*_: object) -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("number", "handler", "error"),
    [(signal.SIGINT, signal.default_int_handler, KeyboardInterrupt), (signal.SIGUSR1, late, TimeoutError)],
)
def test_a_signal_whose_handler_raises_ends_the_wait_and_cancels_the_work(
    number: signal.Signals, handler: Any, error: type[BaseException]
) -> None:
    cancelled = threading.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    before = signal.signal(number, handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    timer.start()
    try:
        with pytest.raises(error):
            runtime.run_sync(long())
    finally:
        timer.join()
        signal.signal(number, before)
    assert cancelled.wait(5)


def test_the_background_loop_does_not_wait_for_itself() -> None:
    async def inside() -> None:
        runtime.run_sync(asyncio.sleep(0))

    with pytest.raises(UsageError, match="inside on_output"):
        runtime.run_sync(inside())


def test_a_forked_child_starts_with_none() -> None:
    lease = runtime.acquire(runtime.background_loop())
    child = os.fork()
    if child == 0:
        mine = runtime.acquire(runtime.background_loop())
        fresh = mine.runtime is not lease.runtime and mine.runtime.users == 1
        runtime.run_sync(mine.release())
        os._exit(0 if fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    runtime.run_sync(lease.release())


async def test_gradings_have_the_variables_that_are_in_their_file_now(tmp_path: Path) -> None:
    file = tmp_path / "licence.env"
    config = EpisodeConfig(harness_images=("VERIF_EDA_IMAGE=my/simulator:1",), harness_env=file)
    lease = runtime.acquire()
    scorers: list[Any] = []
    for text in ("PLACE=1234@old", "PLACE=1234@new", "PLACE=1234@new"):
        file.write_text(text)
        scorers.append(lease.runtime.scorer(None, options=config.grading))
    assert [dict(scorer._harness.env)["PLACE"] for scorer in scorers] == ["1234@old", "1234@new", "1234@new"]
    assert scorers[1] is scorers[2]
    await lease.release()


class UnhashableJudge:
    name = "mine"
    __hash__ = None  # type: ignore[assignment]

    async def ask(self, system: str, user: str) -> str | None:
        return None


async def test_any_object_can_be_a_judge() -> None:
    lease = runtime.acquire()
    judges = UnhashableJudge(), UnhashableJudge()
    scorers: list[Any] = [
        lease.runtime.scorer(None, options=EpisodeConfig(judge=judge).grading) for judge in (*judges, judges[0])
    ]
    assert [scorer._judge for scorer in scorers] == [*judges, judges[0]]
    assert scorers[0] is scorers[2] is not scorers[1]
    await lease.release()


@pytest.mark.docker
async def test_episodes_get_sandboxes_that_were_started_before() -> None:
    set_limits("ready=2")
    lease = runtime.acquire()
    try:
        agents = lease.runtime.agents
        await agents.prepare(SandboxSpec())
        known = containers(f"rtl-gym-agent-{os.getpid()}-")
        assert len(known) == 2
        sandbox = await agents.create()
        assert sandbox.id in known
        await sandbox.close()
    finally:
        set_limits("")
        await lease.release()
    assert not owned()


async def test_a_loop_has_a_runtime_for_each_kind_of_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTL_GYM_SANDBOX", "docker")
    leases = [runtime.acquire(sandbox=kind) for kind in ("auto", "docker", "namespaces", "namespaces")]
    usual, docker, namespaces, again = [lease.runtime for lease in leases]
    assert usual is docker is not namespaces is again
    assert isinstance(usual.provider, DockerSandboxes)
    assert isinstance(namespaces.provider, NamespaceSandboxes)
    for lease in leases[:3]:
        await lease.release()
    assert runtime.acquire(sandbox="namespaces").runtime is again
    await again.close()


def test_an_episodes_sandboxes_are_named_by_a_word_or_a_spec() -> None:
    for given in ("namespaces", SandboxSpec(kind="namespaces")):
        assert EpisodeConfig(sandbox=given).sandbox.kind == "namespaces"  # type: ignore[arg-type]
    assert EpisodeConfig().sandbox.kind == "auto"
    rules = EpisodeConfig(sandbox="docker").with_options(max_turns=3)  # type: ignore[arg-type]
    assert rules.sandbox.kind == "docker"
    for wrong in ("vm", SandboxSpec(kind="vm"), 3):
        with pytest.raises(UsageError, match="sandbox must be a SandboxSpec or one of auto, docker, podman"):
            EpisodeConfig(sandbox=wrong)  # type: ignore[arg-type]
