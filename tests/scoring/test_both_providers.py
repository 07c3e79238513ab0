"""A submission has the same verdict in a container and in a sandbox of namespaces, field by field: also where sandboxes
have a second user, and where an ordinary user has only one.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re

import pytest

from data.bundled import wrong_designs
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, SandboxProvider
from rtl_agent_gym.scoring import Score, Scorer
from tests.sandboxes.ordinary_user import SINGLE, run_as
from tests.scoring.attacks.test_attacks import ATTACKS
from tests.scoring.attacks.thieves import shell

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.usefixtures("root_folder")]

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}
QUICK = min(PROBLEMS)
"""The problem whose reference and first wrong design the default suite grades twice; the slow suite grades all."""
_MEASURED = {"seconds", "cached", "retries"}
_CHANGING = re.compile(r"\b\d+\.\d+ ?s\b|\bin \d+\.\d+|0x[0-9a-f]+|\d+\.\d+(?=\s)")
"""Times and addresses in a log."""


def record(score: Score) -> str:
    """A verdict without what two gradings of the same submission differ in."""
    text = json.dumps(score.model_dump(mode="json", exclude=_MEASURED), indent=1, sort_keys=True)
    return _CHANGING.sub("#", text)


async def verdicts(provider: SandboxProvider, problem: str, names: list[str]) -> dict[str, str]:
    """The records of a problem's designs, or of attacks if there is no problem; a fault is its class."""
    found = {}
    async with Scorer(provider, cache=None) as scorer:
        for name in names:
            if problem:
                designs = {"reference": PROBLEMS[problem].golden or {}, **wrong_designs(problem)}
                score = scorer.score(PROBLEMS[problem], {**PROBLEMS[problem].context, **designs[name]})
            else:
                [attack] = [attack for attack in ATTACKS if attack.name == name]
                score = scorer.score(attack.problem, attack.files, timeout=attack.seconds)
            try:
                found[name] = record(await score)
            except SandboxError as error:
                found[name] = type(error).__name__
    return found


BY_SINGLE = """
import asyncio, json
from rtl_agent_gym.sandboxes import NamespaceSandboxes
from tests.scoring.test_both_providers import verdicts

async def main():
    async with NamespaceSandboxes() as provider:
        return await verdicts(provider, *ARGUMENTS)

print(json.dumps(asyncio.run(main())))
"""


async def compare(problem: str, names: list[str], *, single: bool) -> dict[str, str]:
    """Grade in containers and in sandboxes of namespaces, and compare."""

    async def docker() -> dict[str, str]:
        async with DockerSandboxes() as provider:
            return await verdicts(provider, problem, names)

    async def namespaces() -> dict[str, str]:
        if single:
            program = BY_SINGLE.replace("ARGUMENTS", repr((problem, names)))
            return dict(await asyncio.to_thread(run_as, SINGLE, program))
        async with NamespaceSandboxes() as provider:
            return await verdicts(provider, problem, names)

    first, second = await asyncio.gather(docker(), namespaces())
    for name in names:
        pair = first[name].splitlines(), second[name].splitlines()
        assert pair[0] == pair[1], "\n".join(difflib.unified_diff(*pair, lineterm=""))
        assert not problem or json.loads(first[name])["passed"] == (name == "reference")
    return second


USERS = pytest.mark.parametrize("single", [False, True], ids=["two users", "one user"])


@pytest.mark.sampled(1)
@USERS
async def test_one_problem(single: bool) -> None:
    await compare(QUICK, ["reference", min(wrong_designs(QUICK))], single=single)


@pytest.mark.slow  # each grading takes seconds, and these are 153 on each provider
@pytest.mark.timeout(900)
@USERS
@pytest.mark.parametrize("problem", PROBLEMS)
async def test_every_bundled_problem_with_its_wrong_designs(problem: str, single: bool) -> None:
    await compare(problem, ["reference", *sorted(wrong_designs(problem))], single=single)


@pytest.mark.slow  # each grading takes seconds
@pytest.mark.timeout(900)
@USERS
@pytest.mark.parametrize("threat", sorted({attack.threat for attack in ATTACKS} - {6}))
async def test_attacks_earn_as_little(threat: int, single: bool) -> None:
    found = await compare("", [attack.name for attack in ATTACKS if attack.threat == threat], single=single)
    assert not any(json.loads(text)["passed"] for text in found.values())


HOGS = shell(
    "for n in 1 2 3 4; do python3 -c 'import time; x = b\"x\" * (700 << 20); time.sleep(2)' & done; wait; false"
)
"""A harness whose processes need more memory together than a grading has, and none of them alone."""

SCORE_HOGS = """
import asyncio, json
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.sandboxes import NamespaceSandboxes
from rtl_agent_gym.scoring import Scorer
from tests.scoring.test_both_providers import hogs

async def main():
    async with NamespaceSandboxes() as provider, Scorer(provider, cache=None) as scorer:
        try:
            return (await scorer.score(hogs(), dict(hogs().golden or {}))).reason
        except SandboxError as error:
            return f"{type(error).__name__}: {error}"

print(json.dumps(asyncio.run(main())))
"""


def hogs() -> Problem:
    """The quick problem with that harness."""
    plain = PROBLEMS[QUICK]
    return plain.model_copy(update={"harness": {**plain.harness, **HOGS}})


@pytest.mark.slow  # processes of 700 MiB, on each provider
async def test_without_a_control_group_who_ran_out_of_memory_is_unknown() -> None:
    async with DockerSandboxes() as provider, Scorer(provider, cache=None) as scorer:
        score = await scorer.score(hogs(), dict(hogs().golden or {}))
    assert "needed more memory than a grading has" in score.reason
    found = await asyncio.to_thread(run_as, SINGLE, SCORE_HOGS)
    assert found.startswith("HarnessError: ")
    assert "got SIGKILL from outside" in found
