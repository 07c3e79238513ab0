"""Errors while connecting to a Tinker service: reported soon, in one line, with the right exit code.

The SDK is the real one, and connects to a server on loopback.
"""

from __future__ import annotations

import os
import re
import runpy
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.training.launch import main
from tests.training.tinker_stub import Stub, serving

pytestmark = pytest.mark.filterwarnings(  # the SDK's own: old calls of pydantic, connections that it leaves open
    "default::DeprecationWarning",
    "default::FutureWarning",
    "default::ResourceWarning",
    "default::pytest.PytestUnraisableExceptionWarning",
)

NO = {"detail": "computer says no"}
PENDING = {"future_id": "future-1", "request_id": "request-1"}
SCRIPT = Path(__file__).parents[2] / "scripts" / "train_distillation_agentic.py"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)


def options(url: str, folder: Path, *, model: str = "Qwen/Qwen3-8B", wait: int = 3) -> list[str]:
    return [
        "engine=tinker", "baseline=running", f"base_url={url}", f"student_model={model}", f"log_path={folder / 'run'}",
        f"service_wait_seconds={wait}", "prices=none",
    ]  # fmt: skip


PREVIEW = re.compile("(student|teacher|data|prompts|limits|steps|cost|tokens of [^ ]+): ")


def lines(text: str) -> list[str]:
    """What is said of the service, without the warning of other tests that use the Docker host at this moment."""
    said = [line for line in text.splitlines() if line.strip() and "on this Docker host" not in line]
    return [line for line in said if not PREVIEW.match(line)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("answers", "code", "says"),
    [
        ({"*": (401, NO)}, 2, "TINKER_API_KEY: the service does not accept the key: .*401.*computer says no"),
        ({"create_session": (401, NO)}, 2, "TINKER_API_KEY: the service does not accept the key"),
        ({"*": (402, NO)}, 3, "the account has a billing problem: .*402"),
        ({"get_server_capabilities": (402, NO)}, 3, "the account has a billing problem: .*402"),
        ({"create_model": (402, NO)}, 3, "the account has a billing problem: .*402"),
        ({"*": (429, NO)}, 3, "base_url: http://127.0.0.1:.*429.*given up after 3 s"),
        ({"*": (503, NO)}, 3, "base_url: http://127.0.0.1:.*503.*given up after 3 s"),
        ({"*": (404, NO)}, 2, "base_url: there is no Tinker service at http://127.0.0.1"),
        ({"create_model": (404, NO)}, 2, "student_model: the service refuses 'Qwen/Qwen3-8B': .*404"),
        ({"create_model": (422, NO)}, 2, "student_model: the service refuses 'Qwen/Qwen3-8B': .*422"),
        ({"create_model": (400, NO)}, 2, "student_model: the service refuses 'Qwen/Qwen3-8B': .*400"),
        (
            {"create_model": (200, PENDING), "retrieve_future": (200, {"error": "rank too high", "category": "user"})},
            2,
            "student_model: the service refuses .* Request failed: rank too high$",
        ),
        (
            {"create_model": (200, PENDING), "retrieve_future": (200, {"error": "boom", "category": "server"})},
            3,
            "creating the trainer: Request failed: boom; given up after 9 s",
        ),
    ],
)
def test_a_service_that_refuses_ends_the_run_with_one_line(
    answers: dict[str, Any], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Long enough to get as far as `says` on a busy machine; only what is given up takes all of it.
    wait = int(given_up[1]) if (given_up := re.search(r"given up after (\d+) s", says)) else 60
    with serving(answers) as stub:
        found = main(options(stub.url, tmp_path, wait=wait))
    said = lines(capsys.readouterr().err)
    assert found == code, said
    assert re.search(says, said[-1].removeprefix("error: ")), said
    assert said[-1].startswith("error: ")
    assert len(said) <= 4, said


def test_a_model_that_the_service_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as stub:
        code = main(options(stub.url, tmp_path, model="Qwen/Qwen3-9B", wait=60))
    assert code == 2
    assert "student_model: the service has no model 'Qwen/Qwen3-9B'; it has Qwen/Qwen3-8B" in capsys.readouterr().err


def test_a_key_of_another_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "sk-something")
    with serving({}) as stub:
        assert main(options(stub.url, tmp_path)) == 2
    assert not stub.seen
    [said] = lines(capsys.readouterr().err)
    assert re.fullmatch(r"error: TINKER_API_KEY: .*'tml-' prefix", said)


def test_the_session_is_finished_as_failed(tmp_path: Path) -> None:
    with serving({"create_model": (404, NO)}) as stub:
        assert main(options(stub.url, tmp_path, wait=60)) == 2
    assert ("sessions/session-1/finish", {"reason": {"type": "errored"}, "detail": None}) in stub.seen


class Run:
    """The script in a process of its own, with its stderr in a file."""

    def __init__(self, forks: ForkServerContext, arguments: Sequence[str], folder: Path) -> None:
        self._stderr = folder / f"{secrets.token_hex(4)}.stderr"
        self.process = forks.Process(target=run_script_here, args=(arguments, self._stderr))
        self.process.start()

    @property
    def stderr(self) -> str:
        """What it has printed so far."""
        return self._stderr.read_text() if self._stderr.exists() else ""

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code; None where it has not ended by then."""
        self.process.join(timeout)
        return self.process.exitcode


def run_script_here(arguments: Sequence[str], stderr: Path) -> None:
    os.dup2(os.open(stderr, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    os.environ["TINKER_API_KEY"] = "tml-test"
    sys.argv = [str(SCRIPT), *arguments]
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.fixture
def run_script(forks: ForkServerContext, tmp_path: Path) -> Iterator[Callable[[Sequence[str]], Run]]:
    """Starts the script; what still runs when the test ends is killed."""
    begun: list[Run] = []

    def start(arguments: Sequence[str]) -> Run:
        begun.append(Run(forks, arguments, tmp_path))
        return begun[-1]

    yield start
    for run in begun:
        run.process.kill()
        run.wait()


def closed_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("where", "sent"),
    [
        ("create_session", signal.SIGTERM),
        pytest.param("client/config", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("client/config", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("create_session", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_connecting_can_be_stopped(
    run_script: Any, sent: signal.Signals, where: str, tmp_path: Path
) -> None:
    with serving({where: None}) as stub:
        run = run_script(options(stub.url, tmp_path, wait=60))
        wait_for(stub, where, run)
        begun = time.monotonic()
        os.kill(run.process.pid, sent)
        code = run.wait(50)
        took = time.monotonic() - begun
    assert code == 130, run.stderr
    assert lines(run.stderr) == ["stopped; the same command resumes the run"]
    assert took < 50, took  # of the 60 that it would wait; 1 to 2 on a machine with nothing else to do


def wait_for(stub: Stub, path: str, run: Run) -> None:
    deadline = time.monotonic() + 60
    while path not in stub.paths() and time.monotonic() < deadline and run.wait(0.05) is None:
        pass
    assert path in stub.paths()


@pytest.mark.slow
def test_by_default_a_service_that_is_not_there_is_told_of_at_once_and_given_up_within_a_minute(
    run_script: Any, tmp_path: Path
) -> None:
    arguments = [one for one in options(closed_port(), tmp_path) if not one.startswith("service_wait")]
    begun = time.monotonic()
    run = run_script(arguments)
    while not lines(run.stderr) and time.monotonic() - begun < 15:
        time.sleep(0.05)
    first = lines(run.stderr)[0]
    assert "Connection refused" in first
    assert time.monotonic() - begun < 15
    assert run.wait() == 3
    assert time.monotonic() - begun < 65
    assert len(lines(run.stderr)) <= 7
