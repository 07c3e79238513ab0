"""What is counted for Prometheus, and how it is served."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rtl_agent_gym import logs
from rtl_agent_gym.cli import app
from rtl_agent_gym.envs import Episode
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.errors import SandboxError, SandboxLost, UsageError
from rtl_agent_gym.metrics import serving
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import Sandbox
from tests.arbiter import ARBITER

NAME, PARTS = re.compile(r"rtl_gym_\w+"), ("bucket", "count", "sum")


def read(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


@pytest.mark.docker
def test_an_evaluation_is_counted_and_its_queues_are_shown(tmp_path: Path) -> None:
    with serving(-1) as port:
        before = read(port)
        asked = ["--policy", "golden", "--problem", ARBITER, "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(app, ["eval", *asked])
        assert done.exit_code == 0, done.output
        after = read(port)

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grew('rtl_gym_episodes_total{outcome="passed"}') == 1
    assert grew('rtl_gym_container_starts_total{role="agent"}') == 1
    assert grew("rtl_gym_command_seconds_count") == 3
    assert grew("rtl_gym_grading_seconds_count") + grew("rtl_gym_cached_gradings_total") == 1
    assert after['rtl_gym_budget_used{kind="agent"}'] == 0
    assert after['rtl_gym_budget_capacity{kind="agent"}'] > 0
    line = f"INFO rtl_agent_gym.evaluation.evaluate episode={ARBITER}/0: ended, passed\n"
    assert line in (tmp_path / "out" / "logs.log").read_text()


async def test_an_episode_that_does_not_begin_is_counted() -> None:
    class Refusing:
        async def create(self, spec: object = None) -> Sandbox:
            raise SandboxLost("no daemon")

    [problem] = load_problems("bundled", ids=[ARBITER])
    parts: Any = {"provider": Refusing(), "grader": None, "renderer": get_renderer("qwen3")}
    with serving(-1) as port:
        before = read(port)
        async with Episode(problem, config=EpisodeConfig(start_attempts=1), **parts) as episode:
            with pytest.raises(SandboxError):
                await episode.start()
        after = read(port)
    for name in (
        'rtl_gym_episodes_total{outcome="fault"}',
        'rtl_gym_machine_faults_total{error="SandboxLost",where="start"}',
    ):
        assert after[name] == before.get(name, 0.0) + 1


def test_the_command_says_where_the_metrics_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["eval", "--policy", "nobody", "--metrics-port", "-1", "--out", str(tmp_path / "x")])
    assert re.search(r"metrics: http://127\.0\.0\.1:\d+/metrics", done.output)


def test_a_taken_port_is_named_and_without_one_nothing_is_served() -> None:
    with serving(0) as port:
        assert port == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^metrics_port: .*{port}"), serving(port):
            pass


def test_the_dashboard_shows_what_there_is() -> None:
    board = json.loads((Path(__file__).parent.parent / "docs/assets/grafana.json").read_text())
    asked = {name for panel in board["panels"] for one in panel["targets"] for name in NAME.findall(one["expr"])}
    with serving(-1) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    there = set(kinds) | {f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram" for part in PARTS}
    assert len(asked) >= 14
    assert asked <= there


def bare_logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """A logger of the package, as in a process that has set up no logging."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    return logging.getLogger("rtl_agent_gym.somewhere")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_log_in_a_file_hides_warnings_only_where_that_is_asked_for(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = bare_logger(monkeypatch)
    others = logging.getLogger("another.package")
    before = (logs.PACKAGE.level, logs.PACKAGE.propagate)
    with logs.logging_to(tmp_path / "log", "another.package", quiet=quiet), logs.logging_as("step 3"):
        logger.warning("no room")
        logger.info("room again")
        others.warning("a retry")
    logger.info("afterwards")
    text = (tmp_path / "log").read_text()
    assert re.findall(r"(\w+) ([\w.]+) episode=(.*): (.*)", text) == [
        ("WARNING", "rtl_agent_gym.somewhere", "step 3", "no room"),
        ("INFO", "rtl_agent_gym.somewhere", "step 3", "room again"),
        ("WARNING", "another.package", "step 3", "a retry"),
    ]
    shown = capsys.readouterr().err
    assert ("no room" in shown) != quiet
    assert "room again" not in shown
    assert logs.PACKAGE.handlers == others.handlers == []
    assert (logs.PACKAGE.level, logs.PACKAGE.propagate) == before
    with pytest.raises(UsageError, match="cannot be written"), logs.logging_to(tmp_path / "no" / "log"):
        pass


def test_a_full_disk_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    logger = bare_logger(monkeypatch)
    with logs.logging_to(Path("/dev/full"), quiet=True):
        logger.info("a line")
        logger.info("another one")
    assert capsys.readouterr().err == "the log: /dev/full cannot be written: No space left on device\n"


def test_what_a_program_shows_is_not_changed_by_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, shown = bare_logger(monkeypatch), io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(shown))  # no level of its own: the root's level decides
    with logs.logging_to(tmp_path / "log", quiet=True):
        logger.warning("a warning")
        logger.info("only in the file")
        logger.debug("nowhere")
    assert shown.getvalue() == "a warning\n"
    assert (tmp_path / "log").read_text().count("\n") == 2


async def test_runs_in_one_process_have_their_own_lines(tmp_path: Path) -> None:
    logger, ready = logging.getLogger("rtl_agent_gym.somewhere"), asyncio.Barrier(2)

    async def run(name: str, then: float) -> None:
        with logs.logging_to(tmp_path / name):
            await ready.wait()
            logger.info("of %s", name)
            await asyncio.sleep(then)
            logger.info("still of %s", name)
            with logs.logging_to(tmp_path / f"{name}-inside"):
                logger.info("inside %s", name)

    await asyncio.gather(run("first", 0.0), run("second", 0.2))
    for name in ("first", "second"):
        lines = [line.rpartition(": ")[2] for line in (tmp_path / name).read_text().splitlines()]
        assert lines == [f"of {name}", f"still of {name}", f"inside {name}"]
        assert (tmp_path / f"{name}-inside").read_text().count("\n") == 1
    assert logs.PACKAGE.handlers == []


def test_warnings_of_chosen_loggers_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare_logger(monkeypatch)
    shown: list[str] = []
    rooms = {name: logging.getLogger(f"rtl_agent_gym.{name}.inside") for name in ("sandboxes", "policies")}
    with logs.logging_to(tmp_path / "log", quiet=True), logs.showing(shown.append, "sandboxes"):
        for name, logger in rooms.items():
            logger.warning("%s wait", name)
            logger.info("nothing new")
    rooms["sandboxes"].warning("afterwards")
    assert shown == ["warning: sandboxes wait"]
    assert (tmp_path / "log").read_text().count("\n") == 4
