"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import settings

from rtl_agent_gym.episodes.rules import Grader
from rtl_agent_gym.episodes.runtime import LocalRuntime, using
from rtl_agent_gym.errors import RTLGymError, SandboxError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes, NamespaceSandboxes, Sandbox, SandboxProvider
from rtl_agent_gym.sandboxes.budgeted import BudgetedSandboxes
from rtl_agent_gym.sandboxes.choice import kind, make_provider, resolved_kind
from rtl_agent_gym.sandboxes.image import connected, find_image
from rtl_agent_gym.sandboxes.root_folder import VARIABLE, roots_folder, unpack
from rtl_agent_gym.scoring import RewardWeights
from rtl_agent_gym.scoring.options import GradingOptions
from tests.arbiter import ARBITER
from tests.faults.moments import Moment

ROOT = Path(__file__).resolve().parent.parent

# Several workers share the processors: one thread each, where a library would take as many as there are processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without a daemon, what needs one must fail instead of taking namespaces. With the word `namespaces` the suite runs on
# those, and what is about Docker itself still has Docker; where there is none, it is skipped.
os.environ.setdefault("RTL_GYM_SANDBOX", "docker")

# Tests have caches of their own, and all use the one root of sandboxes without Docker.
os.environ.setdefault(VARIABLE, str(roots_folder()))

# A shell ignores Ctrl-C for what it starts in the background, and so would everything that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same commit always gives the same verdict. `./scripts/test --slow` searches with fresh seeds instead; what that
# finds becomes an explicit example. No deadlines: how long an example takes depends on what runs beside it.
settings.register_profile("default", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("default")


# While the tests are collected, the garbage collector would look at all modules again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, among what the tests make."""
    gc.freeze()
    gc.enable()


LONGEST = (
    "tests/scoring/test_both_providers",
    "tests/docs/test_site",
    "tests/evaluation/test_replay",
    "tests/sandboxes/test_root_folder",
    "tests/integrations/test_trl",
    "tests/integrations/test_conformance",
    "tests/faults/test_signals",
    "tests/sources",
    "tests/training",
    "tests/scoring",
    "tests/sandboxes",
    "tests/evaluation",
    "tests/envs",
    "tests/episodes",
    "tests/examples",
    "tests/cli",
)
"""Files and folders that take longest, in this order: workers that begin with them end at about the same time."""


def _place(item: pytest.Item) -> int:
    return next((place for place, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))


def _is_about_docker(item: pytest.Item) -> bool:
    """Whether a test needs Docker itself: by its mark, or as one of the kinds of sandboxes that it is run with."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return item.get_closest_marker("daemon") is not None or "docker" in params.values()


def _has_image() -> bool:
    """Whether a Docker daemon answers that has the simulation image."""
    try:
        with connected() as client:
            return bool(find_image(client))
    except SandboxError:
        return False


def mark_samples(items: list[pytest.Item]) -> None:
    """Mark as slow what `sampled` leaves out: of each function's cases, all but as many as it says.

    Which they are depends on the function's name alone. Cases that are slow by themselves do not count.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in functions.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        random.Random(name).shuffle(cases)
        for case in cases[mark.args[0] :]:
            case.add_marker("slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and mark the property tests, so that they can be asked for.

    A test with containers that fails is run a second time, as a busy machine can make it miss a deadline. The summary
    names each that passed only then: that is a race to be mended, and the nightly run fails.
    """
    items.sort(key=_place)
    mark_samples(items)
    without_docker = kind() == "namespaces" and not _has_image()
    for item in items:
        if without_docker and _is_about_docker(item):
            item.add_marker(pytest.mark.skip(reason="Docker"))
        if item.get_closest_marker("docker"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("property")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is about Docker have Docker's sandboxes, whichever the others have."""
    with pytest.MonkeyPatch.context() as patch:
        if _is_about_docker(item):
            patch.setenv("RTL_GYM_SANDBOX", "docker")
        return (yield)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail if a test passed only at its second try and ``RTL_GYM_TESTS_MAY_NOT_RERUN`` is set, as every night."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = reporter.stats.get("rerun") if reporter is not None else None
    if exitstatus == pytest.ExitCode.OK and again and os.environ.get("RTL_GYM_TESTS_MAY_NOT_RERUN"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def cvdp_data() -> Path:
    """The folder of NVIDIA's CVDP rows, which the project does not ship."""
    folder = ROOT.parent / "shared" / "data" / "cvdp"
    if not folder.is_dir():
        pytest.skip(f"NVIDIA's CVDP rows are not at {folder.parent.name}/{folder.name} beside the checkout")
    return folder


@pytest.fixture(scope="session")
def arbiter() -> Problem:
    """The bundled problem that most tests play."""
    return load_problems("bundled", ids=[ARBITER])[0]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Trainers of tinker-cookbook log to the screen. Without this, so would every later test of the same worker."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in list(root.handlers):
        if not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
            handler.close()


@pytest.fixture(scope="session")
def gradings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run's gradings that all workers share. It begins empty, so each verdict is computed once."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "gradings"


class FewContainers(LocalRuntime):
    """A runtime that grades equal files once in a run of the suite, and keeps no scoring sandbox ready.

    Args:
        gradings: Its cache, where the caller names none.
    """

    def __init__(self, gradings: Path) -> None:
        super().__init__()
        self._gradings = gradings

    def scorer(
        self,
        weights: RewardWeights | None,
        cache: Path | None = None,
        *,
        waiting: int = 0,
        options: GradingOptions | None = None,
    ) -> Grader:
        return super().scorer(weights, cache or self._gradings, waiting=0, options=options)


@pytest.fixture
def shared_gradings(gradings: Path) -> Iterator[None]:
    """Episodes need fewer containers: for tests that play many, and test neither gradings nor sandboxes."""
    with using(lambda: FewContainers(gradings)):
        yield


@pytest.fixture
async def provider() -> AsyncIterator[BudgetedSandboxes[Any]]:
    """A maker of real containers. Without a daemon and an image this fails: ./scripts/test sets both up.

    With the variable RTL_GYM_SANDBOX, of sandboxes of another kind: for tests that are not about Docker.
    """
    if resolved_kind() == "namespaces":
        unpack()
    async with make_provider() as made:
        yield made


@pytest.fixture
async def sandbox(provider: DockerSandboxes) -> DockerSandbox:
    """A fresh agent's container."""
    return await provider.create()


@pytest.fixture(scope="session")
def root_folder() -> Path:
    """The simulation image's files, which sandboxes of namespaces need. Unpacked once for each version of the image."""
    return unpack().folder


FOLDERS = "/code /tmp /rundir /home/agent"
CLEAN = f"kill -9 -1; chmod -R u+rwx {FOLDERS}; find {FOLDERS} -mindepth 1 -delete"
STATE = f"""
ps -e -o stat=,comm=; ls -A {FOLDERS} /dev/shm; stat -c %a {FOLDERS}; ls -l /proc/$$/fd | wc -l
pwd; env; set -o; shopt; alias; trap; declare -F; enable; ulimit -a; jobs; umask
"""


class SharedSandbox:
    """One agent's container for many tests. Each test gets it clean; what cannot be cleaned is replaced."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._sandbox: Sandbox | None = None
        self._state = ""
        """What a clean one prints for `STATE`."""

    async def get(self) -> Sandbox:
        """The sandbox with no process, file or shell setting of an earlier test."""
        if self._sandbox is not None:
            try:
                if await self._clean(self._sandbox) == self._state:
                    return self._sandbox
            except RTLGymError:
                pass
            await self._sandbox.close()
        self._sandbox = await self._provider.create()
        self._state = await self._clean(self._sandbox)
        return self._sandbox

    async def _clean(self, sandbox: Sandbox) -> str:
        await sandbox.exec(["/bin/sh", "-c", CLEAN])
        for _ in range(3):
            if (await sandbox.run("cd /code", timeout=20.0)).restarted is None:
                break
        return (await sandbox.run(STATE, timeout=20.0)).output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _shared(request: pytest.FixtureRequest) -> AsyncIterator[SharedSandbox]:
    if getattr(request, "param", resolved_kind()) == "namespaces":
        request.getfixturevalue("root_folder")
        made: SandboxProvider = NamespaceSandboxes()
    else:
        made = DockerSandboxes()
    async with made as provider:
        yield SharedSandbox(provider)


@pytest_asyncio.fixture(loop_scope="module")
async def shared_sandbox(_shared: SharedSandbox) -> Sandbox:
    """An agent's container without anything of an earlier test; one serves a file's tests.

    Tests that use it run in their module's event loop: ``@pytest.mark.asyncio(loop_scope="module")``.
    """
    return await _shared.get()


@pytest.fixture
def moment() -> Moment:
    """When a fault hits, from a seed that is shown if the test fails; the variable RTL_GYM_FAULT_SEED repeats one."""
    return Moment()
