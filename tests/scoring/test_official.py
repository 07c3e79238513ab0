"""Our verdict is the official one: for every bundled solution and every wrong design that lies beside it, and for the
designs of generated problems.

The official way is ``docker compose run`` of each service, with the exit status as the verdict and no guard, no witness
and no sifting in between: a volume of the work folder, the hidden tests mounted below it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from data.bundled import wrong_designs
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.compose import SIM_IMAGES
from rtl_agent_gym.problems.rows import problem_row
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.sandboxes.image import image_tag
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.compose import RUN_DIR, read_services
from rtl_agent_gym.sources.families import FAMILIES
from tests.integrations.compose import compose_variables
from tests.sources.family_designs import designs, members

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow]

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}
FOLDERS = ("docs", "rundir", "rtl", "verif", "src")


def _docker(*words: str, cwd: Path) -> int:
    environment = os.environ | compose_variables()
    return subprocess.run(
        ["docker", *words], cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    ).returncode


def official(problem: Problem, files: Mapping[str, str]) -> bool:
    """The verdict of the official way."""
    name, image = f"official{secrets.token_hex(4)}", image_tag()
    folder = Path(tempfile.mkdtemp(prefix="rtl-gym-official-"))
    try:
        for place in FOLDERS:
            (folder / place).mkdir()
        harness = dict(problem.harness)
        for template in SIM_IMAGES:
            harness = {path: text.replace(template, image) for path, text in harness.items()}
        for path, text in {**problem.context, **harness, **files}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        mounts = [word for place in FOLDERS for word in ("-v", f"{folder / place}:/code/{place}")]
        user = ("--user", f"{os.getuid()}:{os.getgid()}", "-e", f"HOME={RUN_DIR}", "-e", "PYTHONDONTWRITEBYTECODE=1")
        services = [service.name for service in read_services(problem)]
        run = ("compose", "-p", name, "run", "--rm", "-T", *user, *mounts)
        verdict = all(_docker(*run, service, cwd=folder) == 0 for service in services)
        _docker("compose", "-p", name, "down", "--remove-orphans", "--rmi", "local", cwd=folder)
        return verdict
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def compose() -> None:
    compose_variables()


MEMBERS = 5
"""Of each family."""


@pytest.mark.usefixtures("compose")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_the_verdict_is_the_official_one(problem: Problem, provider: DockerSandboxes) -> None:
    assert problem.golden is not None
    await agrees(problem, {"reference": problem.golden, **wrong_designs(problem.id)}, provider)


@pytest.mark.usefixtures("compose")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(MEMBERS))
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_verdict_on_a_generated_problem_is_the_official_one(
    family: str, number: int, provider: DockerSandboxes, tmp_path: Path
) -> None:
    """As ``problems generate`` writes it."""
    member, file = members(family, MEMBERS)[number], tmp_path / "problems.jsonl"
    file.write_text(json.dumps(problem_row(FAMILIES[family].problem(member))))
    [problem] = load_problems(file)
    await agrees(problem, designs(member), provider)


async def agrees(problem: Problem, tried: Mapping[str, Mapping[str, str]], provider: DockerSandboxes) -> None:
    """Assert that both verdicts accept the reference and reject all other designs."""
    async with Scorer(provider) as scorer:
        for name, files in tried.items():
            whole = {**problem.context, **files}
            score = await scorer.score(problem, whole)
            assert score.passed == await asyncio.to_thread(official, problem, whole), (name, score.reason)
            assert score.passed == (name == "reference"), (name, score.reason)
            assert score.violations == []
