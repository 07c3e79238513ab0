"""``rtl-agent-gym replay`` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.policies import heredoc
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers.qwen import QwenRenderer
from tests.arbiter import ARBITER
from tests.cli.in_process import call as run
from tests.cli.terminal import terminal


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    script = folder / "script.yaml"
    script.write_text(
        "- {run: \"cd rtl; LIST=(a 'b c'); greet() { echo hello $1; }; export KEPT=1; readonly FIXED=2; date\"}\n"
        "- {run: 'echo 2.5 > made; cat made'}\n"
        "- {run: 'rm made'}\n"
    )
    done = run("run", "--problem", ARBITER, "--policy", f"scripted {script}", "--transcript-dir", str(folder / "out"))
    assert done.returncode == 1, done.stderr
    (path,) = (folder / "out").iterdir()
    return path


@pytest.mark.docker
def test_identical_ends_with_0(recorded: Path) -> None:
    done = run("replay", str(recorded), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["identical"], found["compared_turns"], found["score_compared"]) == (True, 4, True)
    assert "identical" in done.stderr


@pytest.mark.docker
def test_a_divergence_ends_with_1_and_a_diff(recorded: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    lines[2]["observation"] = lines[2]["observation"].replace("2.5", "2.75")
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("replay", str(changed))
    assert done.returncode == 1, done.stderr
    assert "diverged at turn 2 (observation)" in done.stdout
    assert "\n-2.75\n+2.5\n" in done.stdout


class OwnRenderer(QwenRenderer):
    """Another package's dialect: Qwen3's by another name."""

    def __init__(self, name: str, tokenizer: Any = None) -> None:
        super().__init__("qwen3", tokenizer)
        self.name = name


@pytest.mark.docker
def test_a_recording_with_a_renderer_of_another_package_needs_its_name(tmp_path: Path) -> None:
    mine = f"{__name__}:{OwnRenderer.__name__}"
    with gym.make("CVDPAgentic-v0", renderer=mine, transcript_dir=tmp_path, reward="proxy") as env:
        env.reset(seed=0, options={"problem_id": ARBITER})
        env.step("All done.")
    (path,) = tmp_path.iterdir()
    done = run("replay", str(path))
    assert done.returncode == 2
    assert f"the renderer {mine!r}, which is not one of this package's; give it with --renderer" in done.stderr
    done = run("replay", str(path), "--renderer", mine)
    assert done.returncode == 0, done.stderr
    assert "identical (1 turn and the score)" in done.stdout


@pytest.mark.docker
def test_the_shell_before_a_turn_is_handed_over(recorded: Path) -> None:
    with terminal("replay", str(recorded), "--to-turn", "3", "--shell") as child:
        child.expect_exact("before turn 3")
        child.expect_exact("/code/rtl $ ")
        child.sendline('greet you; echo "${LIST[1]}-$(cat made)"; env | grep KEPT')
        child.expect_exact("hello you\r\nb c-2.5\r\nKEPT=1")
        child.sendline("exit")


@pytest.mark.docker
def test_submissions_before_the_shell_are_graded_by_the_recorded_weights(tmp_path: Path) -> None:
    [problem] = load_problems("bundled", ids=[ARBITER])
    design = [heredoc(*file) for file in (problem.golden or {}).items()]
    (tmp_path / "script.yaml").write_text(json.dumps([{"run": [*design, "submit"]}, {"run": "true"}]))
    played = ["--policy", f"scripted {tmp_path}/script.yaml", "--weights", "proxy", "--harness-feedback", "1"]
    assert run("run", "--problem", ARBITER, *played, "--transcript-dir", str(tmp_path / "out")).returncode == 1
    (path,) = (tmp_path / "out").iterdir()
    with terminal("replay", str(path), "--to-turn", "2", "--shell") as child:
        assert child.expect_exact(["before turn 2", "diverged"]) == 0
        child.expect_exact("/code $ ")
        child.sendline("exit")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("", [], "no complete line"),
        ('{"event": "header", "schema_version": 999}\n', [], "Update rtl-agent-gym"),
        (
            '{"event": "header", "problem_id": "elsewhere", "problem_digest": "", "renderer": "qwen3"}\n',
            [],
            "choose another source with --problems",
        ),
        ("", ["--shell"], "need each other"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, content: str, options: list[str], words: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(content)
    done = run("replay", str(path), *options)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
