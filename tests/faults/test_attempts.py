"""An agent attacks what is around it: it gains nothing, its neighbour plays on, it is graded like any other."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from rtl_agent_gym import load_problems
from rtl_agent_gym.sandboxes.image import image_tag
from tests.arbiter import ARBITER

from .attempts import Attempt, made, succeeded
from .attempts_inside import EXHAUSTING, WARDEN
from .attempts_outwards import LEAVING, NETWORK
from .attempts_sideways import HIDDEN, NEIGHBOURS
from .worlds import World, attempted, host, run_unguarded, world

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ATTEMPTS = (*LEAVING, *NETWORK, *HIDDEN, *NEIGHBOURS, *EXHAUSTING, *WARDEN)
ALWAYS = {
    "host's file by path", "TCP to the host", "files of tests anywhere", "its files", "open files of one process",
    "its limits",
}  # fmt: skip
"""Attempts of the default suite, one of each aim, which are all made in one episode."""


def each(attempts: Sequence[Attempt]) -> list[Any]:
    """Slow cases, one for each attempt."""
    found = []
    for attempt in attempts:
        marks = [pytest.mark.slow]
        if "libc.syscall(" in attempt.command and platform.machine() != "x86_64":
            marks.append(pytest.mark.skip(reason="its system calls are numbered for x86_64"))
        found.append(pytest.param((attempt,), id=f"{attempt.aim}-{attempt.name}", marks=marks))
    return found


def one_of_each_aim() -> Any:
    return pytest.param([attempt for attempt in ATTEMPTS if attempt.name in ALWAYS], id="one of each aim")


def test_there_are_fifty_and_each_has_a_name() -> None:
    assert len(ATTEMPTS) >= 50
    assert len({(attempt.aim, attempt.name) for attempt in ATTEMPTS}) == len(ATTEMPTS)
    assert {attempt.name for attempt in ATTEMPTS} >= ALWAYS
    assert {attempt.aim for attempt in ATTEMPTS} == {"leave", "network", "hidden", "neighbour", "exhaust", "warden"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["docker", "namespaces"])
async def here(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "namespaces":
        request.getfixturevalue("root_folder")
    async with world(request.param) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("attempts", [one_of_each_aim(), *each(ATTEMPTS)])
async def test_an_attempt_gains_nothing(here: World, attempts: Sequence[Attempt]) -> None:
    outcome = await attempted(here, attempts)
    print(outcome.output[-2000:])
    for attempt in attempts:
        assert not succeeded(attempt, outcome.output, here.secrets, here.listeners.told), attempt.name
        if attempt.least:
            assert (made(outcome.output) or 0) >= attempt.least, "the attempt was not made"
    assert not [line for line in here.hidden if line in outcome.transcript]
    assert outcome.last.score is not None
    assert outcome.last.score.passed, outcome.last.score.reason


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Any]:
    [problem] = load_problems("bundled", ids=[ARBITER])
    with host(problem) as made:
        yield made


@pytest.mark.parametrize("attempts", each([attempt for attempt in ATTEMPTS if attempt.unguarded is not None]))
def test_the_same_attempt_succeeds_where_there_are_no_guards(unguarded: Any, attempts: Sequence[Attempt]) -> None:
    """Otherwise the test above would notice nothing."""
    [attempt] = attempts
    _, values, listeners, hidden = unguarded
    listeners.told.clear()
    output = run_unguarded(attempt, values, image_tag())
    assert succeeded(attempt, output, [values["SECRET"], values["KEPT"], *hidden], listeners.told), output[-2000:]
