"""``rtl-agent-gym run`` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym.evaluation.outcome import episode_seed
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import ARBITER, write, wrong
from tests.cli.in_process import ROOT
from tests.cli.in_process import call as run
from tests.policies.stub_server import ChatServer, call

pytestmark = pytest.mark.docker


def test_golden_is_shown_live_and_scored(tmp_path: Path) -> None:
    done = run("run", "--problem", ARBITER, "--policy", "golden", "--transcript-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "specification.md" in done.stdout
    assert "1.400" in done.stdout
    assert "passed" in done.stdout
    (path,) = tmp_path.iterdir()
    assert read_transcript(path).complete


def test_a_script_that_fails_and_repairs(tmp_path: Path) -> None:
    script = "scripted examples/policies/arbiter_repair.yaml"
    done = run("run", "--problem", ARBITER, "--policy", script, "--transcript-dir", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["score"]["reward"] == pytest.approx(1.4)
    assert last["stop_reason"] == "completed"
    turns = read_transcript(Path(last["transcript"])).turns
    assert "compiled" in turns[1].observation
    assert "rst_n" in turns[2].observation
    assert "PASS" in turns[3].observation


def test_a_wrong_design_with_prompts_of_the_callers_own(tmp_path: Path) -> None:
    """The prompts are as those of a training run, so that its student reads here what it was trained on."""
    script, text, where = tmp_path / "wrong.yaml", tmp_path / "system.txt", tmp_path / "t"
    script.write_text(json.dumps([{"say": "", "run": f"echo x > rtl/conftest.py\n{write(wrong('rst_n_for_reset'))}"}]))
    text.write_text("You design hardware.\n")
    prompts = ["--system-prompt", f"@{text}", "--user-prompt", "Write it."]
    options = ["--policy", f"scripted {script}", "--transcript-dir", str(where), "--json", *prompts]
    done = run("run", "--problem", ARBITER, *options)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["score"]["reward"] < 1.0
    assert "not counted: " in done.stderr
    (path,) = where.iterdir()
    header = read_transcript(path).header
    assert header.system.startswith("You design hardware.\n")
    assert header.user == "Write it."
    missing = run("run", "--problem", ARBITER, "--system-prompt", f"@{tmp_path}/none")
    assert missing.returncode == 2
    assert f"system_prompt: {tmp_path}/none cannot be read" in missing.stderr


@pytest.mark.slow  # gradings of it have tests of their own
def test_the_real_cvdp_row(cvdp_data: Path, tmp_path: Path) -> None:
    source = cvdp_data / "cvdp_v1.1.0_example_agentic_code_generation_no_commercial_with_solutions.jsonl"
    arguments = ["--problems", str(source), "--problem", "cvdp_agentic_fixed_arbiter_0001"]
    done = run("run", *arguments, "--policy", "golden", "--transcript-dir", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout.splitlines()[-1])["score"]
    assert score["passed"]
    assert score["reward"] == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--problem", "nosuch"], "nosuch"),
        (["run"], "choose one with --problem"),
        (["run", "--problem", ARBITER, "--policy", "wizard"], "no policy 'wizard'"),
        (["run", "--problem", ARBITER, "--renderer", "llama"], "llama"),
        (["run", "--no-such-option"], "No such option"),
        (["run", "--problems", "/no/such.jsonl"], "/no/such.jsonl"),
        (["run", "--problem", ARBITER, "--transcript-dir", "/proc/x"], "--transcript-dir /proc/x: cannot be created"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_one_clear_message(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_may_begin_with_the_home_folder(tmp_path: Path) -> None:
    options = ["--transcript-dir=~/transcripts", "--policy", "scripted /none"]
    done = run("run", "--problem", ARBITER, *options, HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "/none" in done.stderr
    assert (tmp_path / "transcripts").is_dir()
    assert not (ROOT / "~").exists()


@pytest.mark.slow
def test_a_chat_model_is_asked_as_eval_asks_it(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b]52;c;cm0=\x07\u200b"
    with ChatServer([{**call(f"printf '{evil}'"), "content": evil}, {"content": "No."}]) as server:
        options = ["--policy", "chat:org/model", "--base-url", server.url, "--api-key", "sesame", "--top-p", "0.9"]
        options += ["--weights", "proxy", "--seed", "5", "--transcript-dir", str(tmp_path), "--json"]
        done = run("run", "--problem", ARBITER, *options)
    assert done.returncode == 1, done.stderr
    assert not set("\x07\u200b") & set(done.stderr)
    assert "\x1b]" not in done.stderr
    assert "⟨U+001B⟩]0;owned" in done.stderr
    request = server.requests[0]
    assert "tool_call" not in request["messages"][0]["content"]  # the service teaches its own form of calls
    assert (request["top_p"], request["seed"]) == (0.9, episode_seed(5, ARBITER, 0))
    assert server.authorizations == {"Bearer sesame"}
    assert json.loads(done.stdout)["score"]["compile"] == 0.0  # the weights that were asked for run nothing


def test_without_tools_the_dialect_is_taught(tmp_path: Path) -> None:
    with ChatServer([{"content": "No."}]) as server:
        options = ["--policy", "chat:org/model", "--base-url", server.url, "--no-tools", "--weights", "proxy"]
        assert run("run", "--problem", ARBITER, *options, "--transcript-dir", str(tmp_path)).returncode == 1
    assert "tool_call" in server.requests[0]["messages"][0]["content"]
    assert "tools" not in server.requests[0]


def test_no_daemon_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///tmp/no-such-daemon.sock")
    monkeypatch.setenv("RTL_GYM_SANDBOX", "docker")
    done = run("run", "--problem", ARBITER)
    assert done.returncode == 3
    assert "no Docker daemon" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_submissions_are_shown_live(tmp_path: Path) -> None:
    script = tmp_path / "submits.yaml"
    script.write_text("- {run: submit}\n- {run: submit}\n")
    where = ["--transcript-dir", str(tmp_path / "t"), "--harness-feedback", "1"]
    done = run("run", "--problem", ARBITER, "--policy", f"scripted {script}", *where)
    assert done.returncode == 1, done.stderr
    assert "submission 1 of 1: these checks fail:\n- files (one is missing or empty)" in done.stdout
    assert "submission 1, 0 left: 0/1 tests, reward +0.000)" in done.stdout
    assert "the one submission is used up; nothing was checked" in done.stdout
    (path,) = (tmp_path / "t").iterdir()
    assert read_transcript(path).header.options["harness_feedback"] == 1
    assert run("run", "--harness-feedback", "-1").returncode == 2


def test_what_cannot_be_scored_is_not_played(tmp_path: Path) -> None:
    bundled = ROOT / "rtl_agent_gym" / "problems" / "problems.jsonl"
    row = json.loads(next(line for line in bundled.read_text().splitlines() if ARBITER in line))
    source = tmp_path / "untested.jsonl"
    source.write_text(json.dumps(row | {"harness": {}}))
    done = run("run", "--problems", str(source), "--policy", "golden", "--transcript-dir", str(tmp_path / "out"))
    assert done.returncode == 2, done.stderr
    assert "cannot be scored here" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_single_turn_episode(tmp_path: Path) -> None:
    where = ["--transcript-dir", str(tmp_path / "t"), "--json"]
    done = run("run", "--problem", ARBITER, "--env", "single-turn", *where)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["turns"], last["stop_reason"], last["score"]["passed"]) == (1, "completed", True)
    assert read_transcript(Path(last["transcript"])).header.options["single_turn"] is True
    refused = run("run", "--problem", ARBITER, "--env", "single-turn", "--harness-feedback", "1")
    assert refused.returncode == 2
    assert "harness_feedback must be 0" in refused.stderr
