"""Podman instead of Docker: the verdicts are the same; without enforced limits nothing is graded."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.errors import DaemonError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.sandboxes.admission import WEAK_VARIABLE
from rtl_agent_gym.sandboxes.daemon import find_daemon
from rtl_agent_gym.scoring import Scorer
from tests.podman_service import podman_service
from tests.waiting import until

from .conftest import EMPTY, GOLDEN, TARGET

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["rootful", "rootless"])
def podman(request: pytest.FixtureRequest) -> Iterator[str]:
    with podman_service(rootless=request.param == "rootless") as host:
        yield host


@pytest.fixture
def host(podman: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DOCKER_HOST", podman)
    return podman


@pytest.fixture
def weak_limits(host: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The limits that the host cannot enforce; gradings accept that."""
    monkeypatch.setenv(WEAK_VARIABLE, "1")
    return find_daemon().missing_limits


def left(host: str) -> list[str]:
    """Containers and volumes."""
    found = []
    for words in (["ps", "-aq"], ["volume", "ls", "-q"]):
        done = subprocess.run(["docker", "-H", host, *words], capture_output=True, text=True, check=True)
        found += done.stdout.split()
    return found


async def verdicts(adder: Problem) -> tuple[list[dict[str, Any]], str]:
    """The verdicts on a right and a wrong design by the daemon that is found, and its image's digest."""
    async with Scorer() as scorer:
        scores = [await scorer.score(adder, {TARGET: text}) for text in (GOLDEN, EMPTY)]
        digest = await scorer._images.digest(scorer._sandboxes())
    return [score.model_dump(exclude={"seconds", "retries"}) for score in scores], digest


async def test_verdicts_are_those_of_docker(
    host: str, weak_limits: tuple[str, ...], adder: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    podmans, digest = await verdicts(adder)
    assert left(host) == []
    monkeypatch.delenv("DOCKER_HOST")
    assert (podmans, digest) == await verdicts(adder)
    assert [verdict["passed"] for verdict in podmans] == [True, False]


async def test_the_folders_of_a_sandbox_are_as_on_docker(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (
        "for d in /code /tmp /home/agent /rundir /var/lib/extrausers; do stat -c '%n %a %u %g' $d; "
        "df --output=size,itotal $d | tail -1; done | sed s/$(id -u)/UID/g; touch /code/x /tmp/x; "
        "ulimit -n; ulimit -f; grep -E 'NoNew|CapEff|Seccomp:' /proc/self/status; ls /sys/class/net; "
        "touch /x 2>&1; ipcmk -M 32M 2> /tmp/x || echo none"
    )
    outputs = []
    for address in (host, ""):
        monkeypatch.setenv("DOCKER_HOST", address)
        async with DockerSandboxes() as provider:
            outputs.append((await (await provider.create()).run(command)).output.split())
    assert outputs[0] == outputs[1]


async def connected() -> None:
    """A client that comes and goes."""
    async with DockerSandboxes() as provider:
        await provider.image()


def test_a_client_that_is_killed_leaves_no_container(host: str) -> None:
    program = (
        "import asyncio\nfrom rtl_agent_gym.sandboxes import DockerSandboxes\n"
        "async def main():\n    made = await DockerSandboxes().create()\n"
        "    print(made.id, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline().startswith(b"rtl-gym-agent-")
        client.kill()
    until(lambda: all("rtl-gym" in name for name in left(host)))
    assert all(name.startswith("rtl-gym-agent-") for name in left(host)), "a container outlived its client"
    asyncio.run(connected())
    assert left(host) == [], "volumes of a killed client outlived the next one"


async def test_a_host_that_cannot_enforce_limits_does_not_grade(
    host: str, adder: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WEAK_VARIABLE, raising=False)
    missing = find_daemon().missing_limits
    done = subprocess.run(
        [sys.executable, "-m", "rtl_agent_gym", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    (cgroup,) = [check for check in json.loads(done.stdout)["checks"] if check["part"] == "cgroup"]
    if not missing:
        assert cgroup["state"] == "ok"
        pytest.skip("this Podman enforces every limit")
    assert cgroup["state"] == "missing"
    assert all(name in cgroup["found"] for name in missing)
    assert "--allow-weak-limits" in cgroup["todo"]
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(longest=0.1))
    async with Scorer() as scorer:
        with pytest.raises(DaemonError, match=r"cannot enforce MemoryLimit.*--allow-weak-limits"):
            await scorer.score(adder, {TARGET: GOLDEN})


def test_the_option_lets_it_grade(host: str) -> None:
    words = ["run", "--policy", "golden", "--json", "--problem", "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"]
    command = [sys.executable, "-m", "rtl_agent_gym", "--allow-weak-limits", *words]
    environment = {name: value for name, value in os.environ.items() if name != WEAK_VARIABLE}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["score"]["passed"]
