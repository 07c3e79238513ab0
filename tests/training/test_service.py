"""Errors while connecting to a Tinker service: reported soon, in one line, with the right exit code.

The SDK is the real one, and connects to a server on loopback.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
        f"service_wait_seconds={wait}",
    ]  # fmt: skip


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


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
            "creating the trainer: Request failed: boom; given up after 3 s",
        ),
    ],
)
def test_a_service_that_refuses_ends_the_run_with_one_line(
    answers: dict[str, Any], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(answers) as stub:
        found = main(options(stub.url, tmp_path))
    said = lines(capsys.readouterr().err)
    assert found == code, said
    assert re.search(says, said[-1].removeprefix("error: ")), said
    assert said[-1].startswith("error: ")
    assert len(said) <= 4, said


def test_a_model_that_the_service_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as stub:
        code = main(options(stub.url, tmp_path, model="Qwen/Qwen3-9B"))
    assert code == 2
    assert "student_model: the service has no model 'Qwen/Qwen3-9B'; it has Qwen/Qwen3-8B" in capsys.readouterr().err


def test_a_key_of_another_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "sk-something")
    with serving({}) as stub:
        assert main(options(stub.url, tmp_path)) == 2
    assert not stub.seen
    assert re.fullmatch(r"error: TINKER_API_KEY: .*'tml-' prefix\n", capsys.readouterr().err)


def test_the_session_is_finished_as_failed(tmp_path: Path) -> None:
    with serving({"create_model": (404, NO)}) as stub:
        assert main(options(stub.url, tmp_path)) == 2
    assert ("sessions/session-1/finish", {"reason": {"type": "errored"}, "detail": None}) in stub.seen


@pytest.fixture
def run_script() -> Iterator[Callable[[Sequence[str]], subprocess.Popen[str]]]:
    """Starts the script; processes that still run at the end of the test are killed."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1]), "TINKER_API_KEY": "tml-test"}
    begun: list[subprocess.Popen[str]] = []

    def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPT), *arguments]
        begun.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for process in begun:
        if process.returncode is None:
            process.kill()
            process.communicate()


def closed_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_the_script_says_so_of_a_closed_port_and_of_a_wrong_key(run_script: Any, tmp_path: Path) -> None:
    with serving({"*": (401, NO)}) as stub:
        wrong_key = run_script(options(stub.url, tmp_path / "key"))
        nobody = run_script(options(closed_port(), tmp_path / "port"))
        said_of_key, said_of_port = lines(wrong_key.communicate()[1]), lines(nobody.communicate()[1])
    assert (wrong_key.returncode, nobody.returncode) == (2, 3)
    assert len(said_of_key) == 1
    assert re.search(r"base_url: http://127.*Connection refused.* retrying in 1 s", said_of_port[0])
    assert re.search(r"^error: base_url: http://127.*Connection refused.* given up after 3 s", said_of_port[-1])
    assert len(said_of_port) <= 3


@pytest.mark.parametrize(
    ("where", "sent"),
    [
        ("client/config", signal.SIGINT),
        ("create_session", signal.SIGTERM),
        pytest.param("client/config", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("create_session", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_connecting_can_be_stopped(
    run_script: Any, sent: signal.Signals, where: str, tmp_path: Path
) -> None:
    with serving({where: None}) as stub:
        process = run_script(options(stub.url, tmp_path, wait=60))
        wait_for(stub, where, process)
        begun = time.monotonic()
        process.send_signal(sent)
        said = process.communicate(timeout=30)[1]
        took = time.monotonic() - begun
    assert process.returncode == 130, said
    assert lines(said) == ["stopped; the same command resumes the run"]
    assert took < 6, took  # 1 to 2 seconds on a machine with nothing else to do


def wait_for(stub: Stub, path: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while path not in stub.paths() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert path in stub.paths()


@pytest.mark.slow
def test_by_default_a_service_that_is_not_there_is_told_of_at_once_and_given_up_within_a_minute(
    run_script: Any, tmp_path: Path
) -> None:
    arguments = [one for one in options(closed_port(), tmp_path) if not one.startswith("service_wait")]
    begun = time.monotonic()
    process = run_script(arguments)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "Connection refused" in first
    assert time.monotonic() - begun < 15
    rest = lines(process.communicate()[1])
    assert time.monotonic() - begun < 65
    assert process.returncode == 3
    assert len(rest) <= 6
