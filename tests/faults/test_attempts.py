"""An agent attacks what is around it: it gains nothing, its neighbour plays on, it is graded like any other."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from rtl_agent_gym import load_problems
from rtl_agent_gym.sandboxes.image import image_tag

from .attempts import Attempt, made, succeeded
from .attempts_inside import EXHAUSTING, WARDEN
from .attempts_outwards import LEAVING, NETWORK
from .attempts_sideways import HIDDEN, NEIGHBOURS
from .worlds import PROBLEM, World, attempted, host, run_unguarded, world

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ATTEMPTS = (*LEAVING, *NETWORK, *HIDDEN, *NEIGHBOURS, *EXHAUSTING, *WARDEN)
ALWAYS = {"host's file by path", "TCP to the host", "files of tests anywhere", "its files", "open files of one process"}
"""Attempts of the default suite; the others are slow."""


def cases(attempts: tuple[Attempt, ...], always: set[str]) -> list[Any]:
    found = []
    for attempt in attempts:
        marks = [] if attempt.name in always else [pytest.mark.slow]
        if "libc.syscall(" in attempt.command and platform.machine() != "x86_64":
            marks.append(pytest.mark.skip(reason="its system calls are numbered for x86_64"))
        found.append(pytest.param(attempt, id=f"{attempt.aim}-{attempt.name}", marks=marks))
    return found


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
@pytest.mark.parametrize("attempt", cases(ATTEMPTS, ALWAYS))
async def test_an_attempt_gains_nothing(here: World, attempt: Attempt) -> None:
    outcome = await attempted(here, attempt)
    print(outcome.output[-2000:])
    assert not succeeded(attempt, outcome.output, here.secrets, here.listeners.told)
    assert not [line for line in here.hidden if line in outcome.transcript]
    if attempt.least:
        assert (made(outcome.output) or 0) >= attempt.least, "the attempt was not made"
    assert outcome.last.score is not None
    assert outcome.last.score.passed, outcome.last.score.reason


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Any]:
    [problem] = load_problems("bundled", ids=[PROBLEM])
    with host(problem) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("attempt", cases(tuple(one for one in ATTEMPTS if one.unguarded is not None), set()))
def test_the_same_attempt_succeeds_where_there_are_no_guards(unguarded: Any, attempt: Attempt) -> None:
    """Otherwise the test above would notice nothing."""
    _, values, listeners, hidden = unguarded
    listeners.told.clear()
    output = run_unguarded(attempt, values, image_tag())
    assert succeeded(attempt, output, [values["SECRET"], values["KEPT"], *hidden], listeners.told), output[-2000:]
