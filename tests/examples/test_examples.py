"""The programs of examples/, run as a reader would: one command, real containers, and something worth seeing."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rtl_agent_gym.transcripts import read_transcript
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str) -> str:
    """What a program prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_program_has_a_test_and_says_how_it_is_run() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == {"custom_loop.py", "custom_policy.py", "custom_reward.py", "custom_renderer.py", "grpo_trl.py"}
    for name in programs:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert f"\n    .venv/bin/python examples/{name}" in text
        assert len(text.splitlines()) < 180


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("custom_loop.py", "grpo_trl.py")]


@pytest.mark.parametrize("name", ["custom_policy.py", *SLOW])
def test_arguments_are_explained(name: str) -> None:
    shown = run(name, "--help")
    usage = next(line for line in (EXAMPLES / name).read_text().splitlines() if f"examples/{name}" in line)
    for option in re.findall(r"--[\w-]+", usage):
        assert re.search(rf"^  {option} \S+\s+\w", shown, re.MULTILINE), option


@pytest.mark.docker
@pytest.mark.slow  # what it is made of has tests of its own: the vector of environments, and that training learns
def test_the_loop_learns() -> None:
    rows = [[float(cell) for cell in line.split()] for line in run("custom_loop.py").splitlines()[1:-1]]
    assert [row[0] for row in rows] == [1, 2, 3]
    first, last = rows[0], rows[-1]
    assert last[1] > first[1] + 0.3  # mean reward
    assert last[2] == 1.5  # the best is all there is
    assert min(last[3:]) > 0.8  # both choices


@pytest.mark.docker
@pytest.mark.slow
def test_the_careful_policy_passes_more_and_leaves_a_run_to_look_at(tmp_path: Path) -> None:
    shown = run("custom_policy.py", "--out", str(tmp_path))
    rows = {
        row[0]: row for line in shown.splitlines() if len(row := [cell.strip() for cell in line.split("│")[1:-1]]) == 6
    }
    hasty, careful = rows["hasty"], rows["careful, 8 drafts"]
    assert hasty[1] == careful[1] == "4"
    assert int(careful[2]) > int(hasty[2])
    assert float(careful[4]) > float(hasty[4]) == 2.0
    transcripts = [read_transcript(path) for path in tmp_path.rglob("*.jsonl") if path.parent.name == "transcripts"]
    assert len(transcripts) == 8
    assert all(transcript.complete for transcript in transcripts)
    assert run("custom_policy.py", "--out", str(tmp_path)) == shown  # resumed: nothing is played again
    assert len(list(tmp_path.glob("*/transcripts/*.jsonl"))) == 8


@pytest.mark.docker
@pytest.mark.slow
def test_each_reward_tells_designs_apart_in_its_own_way(capfd: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "custom_reward.py"), run_name="__main__")  # a process of its own would grade again
    shown, errors = capfd.readouterr()
    assert errors == ""
    rows = {row[0]: [float(cell) for cell in row[1:]] for line in shown.splitlines()[1:4] if (row := line.split())}
    assert rows["right"] == [1.4, 1.5, 0.9]
    assert rows["highest_bit_wins"][0] == rows["rst_n_for_reset"][0] == 0.4  # the default does not tell these two apart
    for column in (1, 2):
        assert rows["right"][column] > rows["highest_bit_wins"][column] > rows["rst_n_for_reset"][column]
    assert "3 turns: reward 0.85, of which bonus 0.0" in shown
    assert "2 turns: reward 1.40, of which bonus 0.5" in shown


@pytest.mark.docker
def test_the_dialect_plays_an_episode() -> None:
    shown = run("custom_renderer.py")
    assert (
        "\nturn 2, malformed: <bash>iverilog -V | head -n 1 → ERROR: a tag has no partner. Nothing was run.\n" in shown
    )
    assert "\nturn 3, command: The design: → compiled\n" in shown
    assert "<|shell|>compiled\n<|end|><|assistant|>The arbiter is written, and it compiles.<|end|>\n" in shown
    assert shown.endswith("reward 1.4: 7 of 7 hidden tests pass\n")
