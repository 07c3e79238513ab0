"""The Gymnasium face, on real containers and the real harness."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

import rtl_agent_gym  # noqa: F401 - registers the environment
from rtl_agent_gym.envs import CVDPAgenticEnv, CVDPSingleTurnEnv, UnicodeText
from rtl_agent_gym.envs.text_space import SHARED_CHARS
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import SandboxSpec
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import call, golden_call
from tests.counters import counted

pytestmark = pytest.mark.docker


@pytest.fixture
def env() -> Iterator[gym.Env[str, str]]:
    made = gym.make("CVDPAgentic-v0", command_timeout=5.0)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["CVDPAgentic-v0", "CVDPSingleTurn-v0"])
def test_check_env_passes_without_warnings(name: str, tmp_path: Path, arbiter: Problem) -> None:
    made = gym.make(name, problems=[arbiter], render_mode="ansi", transcript_dir=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)
    made.close()


def test_the_contract_of_reset_and_step(env: gym.Env[str, str], arbiter: Problem) -> None:
    observation, info = env.reset(seed=0, options={"problem_id": arbiter.id})
    assert arbiter.prompt.strip() in observation
    assert "execute_bash" in observation
    assert {key: info[key] for key in ("problem_id", "category", "difficulty")} == {
        "problem_id": arbiter.id,
        "category": 3,
        "difficulty": "easy",
    }
    assert [message["role"] for message in info["messages"]] == ["system", "user"]

    observation, reward, terminated, truncated, info = env.step(call("cd docs && ls && false"))
    assert "specification.md" in observation
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["seconds"] >= 0
    assert {k: v for k, v in info.items() if k != "seconds"} == {
        "turn": 1,
        "action": "command",
        "command": "cd docs && ls && false",
        "exit_code": 1,
        "timed_out": False,
        "truncated_output": False,
    }

    observation, reward, terminated, truncated, info = env.step('<tool_call>\n{"name": "execute_bash"\n</tool_call>')
    assert (info["turn"], info["action"], reward, terminated, truncated) == (2, "malformed", 0.0, False, False)
    assert "execute_bash" in observation

    env.step(call("pwd; cd /code"))
    env.step(golden_call(arbiter))
    observation, reward, terminated, truncated, info = env.step("All done.")
    assert (reward, terminated, truncated) == (pytest.approx(1.4), True, False)
    assert (info["action"], info["stop_reason"], info["score"]["passed"]) == ("final", "completed", True)
    assert json.loads(json.dumps(info["score"])) == info["score"]
    numbers = info["numbers"]
    assert (numbers["reward"], numbers["tests_passed"], numbers["turns"]) == (reward, 1.0, 5.0)
    assert (numbers["malformed_turns"], numbers["stop/completed"]) == (1.0, 1.0)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("more")


def test_the_shell_lasts_from_turn_to_turn_and_runs_calls_in_order(env: gym.Env[str, str]) -> None:
    env.reset(seed=1)
    env.step(call("cd /tmp; X=kept; f() { echo $X; }; (sleep 0.2; touch /tmp/later) &"))
    assert "kept" in env.step(call("f; sleep 0.5"))[0]
    assert "/tmp\n/tmp/later" in env.step(call("pwd; ls /tmp/later"))[0]
    env.reset(seed=1)
    assert "kept" not in env.step(call("f; pwd"))[0]
    observation, *_, info = env.step(call("echo one; X=2", "echo $X"))
    assert observation.index("one") < observation.index("2")
    assert observation.count("<tool_response>") == 2
    assert info["command"] == "echo one; X=2\necho $X"


def test_a_timed_out_command_is_said(arbiter: Problem) -> None:
    env = gym.make("CVDPAgentic-v0", problems=[arbiter], command_timeout=1.0)
    env.reset(seed=1)
    before = counted("command_timeouts")
    observation, *_, info = env.step(call("echo begun; sleep 60"))
    assert counted("command_timeouts") == before + 1
    assert info["timed_out"]
    assert info["exit_code"] == -1
    assert "begun" in observation
    assert "timed out after 1 s" in observation
    env.close()


def test_three_malformed_turns_end_the_episode(env: gym.Env[str, str], arbiter: Problem) -> None:
    env.reset(options={"problem_id": arbiter.id})
    env.step("")
    env.step(call("true"))
    for _ in range(2):
        assert env.step("")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step("")
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "parse_error")
    assert (reward, info["score"]["passed"]) == (0.0, False)
    assert info["score"]["reason"]


@pytest.mark.usefixtures("shared_gradings")
def test_max_turns_truncates_and_scores(arbiter: Problem) -> None:
    env = gym.make("CVDPAgentic-v0", problems=[arbiter], max_turns=2)
    env.reset(seed=0)
    assert env.step(golden_call(arbiter))[3] is False
    _, reward, terminated, truncated, info = env.step(call("true"))
    assert (reward, terminated, truncated, info["stop_reason"]) == (pytest.approx(1.4), False, True, "max_turns")
    env.close()


def test_seeds_decide_the_problems_and_the_episodes_that_follow() -> None:
    env: Any = gym.make("CVDPSingleTurn-v0").unwrapped
    drawn = []
    for _ in range(2):
        chosen = [(env.reset(seed=seed)[1]["problem_id"], env.episode.seed) for seed in (7, None, None)]
        drawn.append(chosen)
    env.close()
    assert drawn[0] == drawn[1]
    problems, seeds = zip(*drawn[0], strict=True)
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert len(set(problems)) > 1


@pytest.mark.usefixtures("shared_gradings")
def test_the_transcript_and_the_screen_are_written_as_it_happens(tmp_path: Path, arbiter: Problem) -> None:
    env = gym.make("CVDPAgentic-v0", problems=[arbiter], transcript_dir=tmp_path, render_mode="ansi")
    env.reset(seed=3)
    command = "echo rec''orded"  # only the output has the word
    env.step(call(command))
    screen = env.render()
    assert isinstance(screen, str)
    assert "── turn 1 ──" in screen
    assert "recorded" in screen
    (path,) = tmp_path.iterdir()
    running = read_transcript(path)
    assert not running.complete
    assert running.header.problem_digest == arbiter.digest
    assert running.header.seed == 3
    assert running.header.image_digest.startswith("sha256:")
    assert running.turns[0].commands[0].command == command
    assert "recorded" in running.turns[0].observation
    env.step(golden_call(arbiter))
    *_, info = env.step("done")
    done = read_transcript(path)
    assert done.complete
    assert done.score is not None
    assert done.score.score == info["score"]
    assert done.score.files == arbiter.golden
    assert done.end is not None
    assert (done.end.stop_reason, done.end.turns) == ("completed", 3)
    env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.slow
def test_eight_episodes_in_a_vector(mode: str, arbiter: Problem) -> None:
    envs = gym.make_vec("CVDPAgentic-v0", num_envs=8, vectorization_mode=mode, problems=[arbiter])
    try:
        observations, _ = envs.reset(seed=0)
        assert len(observations) == 8
        assert all(arbiter.prompt.strip() in text for text in observations)
        observations, *_ = envs.step(tuple(call(f"echo shell {i}; NUMBER={i}") for i in range(8)))
        assert [f"shell {i}" in text for i, text in enumerate(observations)] == [True] * 8
        envs.step(tuple(golden_call(arbiter) if i % 2 else call("echo $NUMBER") for i in range(8)))
        _, rewards, terminated, _, _ = envs.step(("done",) * 8)
        assert list(rewards) == [pytest.approx(1.4 if i % 2 else 0.0) for i in range(8)]
        assert all(terminated)
    finally:
        envs.close()


@pytest.mark.parametrize("environment", [CVDPAgenticEnv, CVDPSingleTurnEnv])
def test_an_unknown_render_mode_is_refused(environment: type[CVDPAgenticEnv]) -> None:
    with pytest.raises(UsageError, match=r"^render_mode .*'human'"):
        environment(render_mode="human")


@pytest.mark.parametrize("name", ["CVDPSingleTurn-v0", pytest.param("CVDPAgentic-v0", marks=pytest.mark.slow)])
def test_an_unknown_problem_is_refused(name: str) -> None:
    env = gym.make(name)
    for _ in range(2):
        with pytest.raises(UsageError, match="'nosuch'"):
            env.reset(options={"problem_id": "nosuch"})
        with pytest.raises(gym.error.ResetNeeded):
            env.step("x")
        env.reset(seed=0)  # a second time from a running episode
    env.close()


def test_a_reset_that_fails_must_be_repeated(arbiter: Problem) -> None:
    env = gym.make("CVDPAgentic-v0", problems=[arbiter], sandbox=SandboxSpec(image="no.such/image:1"), start_attempts=1)
    for _ in range(2):
        with pytest.raises(SandboxError):
            env.reset()
        with pytest.raises(gym.error.ResetNeeded):
            env.step("x")
    env.close()


@pytest.mark.parametrize("text", ["", "é漢🙂\ud800\0", "x" * 100_000])
def test_the_space_takes_any_text(text: str) -> None:
    space = UnicodeText()
    assert text in space
    assert 3 not in space
    assert space.sample() in space
    assert space == UnicodeText()


def test_a_text_that_is_too_long_for_shared_memory_is_cut_in_the_middle() -> None:
    space = UnicodeText()
    memory = create_shared_memory(space, n=2)
    written = "a" * SHARED_CHARS + "z" * 9
    texts: list[Any] = [written, "y" * SHARED_CHARS]
    for index, text in enumerate(texts):
        write_to_shared_memory(space, index, text, memory)
    cut, whole = read_from_shared_memory(space, memory, n=2)
    assert whole == "y" * SHARED_CHARS
    assert len(cut) <= SHARED_CHARS
    assert (cut[:9], cut[-9:]) == ("a" * 9, "z" * 9)
    assert f"[output cut from {len(written)} to " in cut
