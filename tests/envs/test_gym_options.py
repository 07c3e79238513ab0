"""The arguments of the Gymnasium environments: what is taken, and that anything else is refused at ``make``."""

from __future__ import annotations

import asyncio
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.envs import EpisodeConfig
from rtl_agent_gym.envs.gym_env import SingleCaller, read_problems
from rtl_agent_gym.episodes.rules import FunctionGrader, read_reward
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import SandboxSpec
from rtl_agent_gym.scoring import RewardWeights, Score
from tests.arbiter import RTL, call, golden_call, right

AGENTIC, SINGLE = "CVDPAgentic-v0", "CVDPSingleTurn-v0"


@pytest.fixture(scope="module")
def unscorable(arbiter: Problem) -> Problem:
    return arbiter.model_copy(update={"id": "cvdp_agentic_closed_0001", "unscorable": "it needs a closed tool"})


@pytest.fixture(scope="module")
def untested(arbiter: Problem) -> Problem:
    return arbiter.model_copy(update={"id": "cvdp_agentic_untested_0001", "harness": {}})


@pytest.mark.parametrize("name", [AGENTIC, SINGLE])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problems": []}, "`problems` is empty"),
        ({"problems": "/no/such/file.jsonl"}, "/no/such/file.jsonl"),
        ({"problems": 7}, "`problems` must be"),
        ({"problems": ["x"]}, "entry 0 of the problems has the type str; expected Problem"),
        ({"max_turns": 0}, "^max_turns "),
        ({"command_timeout": -1.0}, "^command_timeout "),
        ({"scoring_timeout": 0}, "^scoring_timeout "),
        ({"renderer": "qwen9"}, "qwen9"),
        ({"renderer": 7}, "renderer must be a dialect's name or a Renderer, got 7"),
        ({"transcript_dir": 7}, "transcript_dir must be a folder's path"),
        ({"transcript_dir": __file__}, "transcript_dir must be a folder, but .* is a file"),
        ({"reward": "nosuch"}, "no reward preset 'nosuch'"),
        ({"reward": {"tests": -1}}, "reward: tests: .*greater than or equal to 0"),
        ({"reward": {"test": 1}}, "reward: test: .*The weights are format, syntax"),
        ({"reward": 1.0}, "reward must be RewardWeights"),
        ({"reward": RewardWeights}, "reward must be RewardWeights"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_make(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gym.make(name, **options)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_turns", 2.5, "must be a whole number, got 2.5"),
        ("max_turns", True, "must be a whole number, got True"),
        ("max_turns", "5", "must be a whole number, got '5'"),
        ("max_output", None, "must be a whole number, got None"),
        ("harness_feedback", 0.5, "must be a whole number"),
        ("harness_feedback", -1, "must be 0 or more, got -1"),
        ("progress_coef", -1, "must be 0 or more, got -1"),
        ("command_timeout", math.inf, "must be a finite number, got inf"),
        ("command_timeout", math.nan, "must be a finite number, got nan"),
        ("command_timeout", "30", "must be a finite number, got '30'"),
        ("command_timeout", 1e10, "must be at most 604800"),
        ("progress_coef", math.inf, "must be a finite number"),
        ("on_output", 3, "must be a function of bytes or None, got 3"),
    ],
)
def test_numbers_are_checked_at_make(option: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"{option} {message}"):
        gym.make(AGENTIC, **{option: value})
    with pytest.raises(UsageError, match="scoring_timeout must be a finite number"):
        gym.make(SINGLE, scoring_timeout=math.inf)


def test_numbers_of_numpys_are_numbers() -> None:
    rules = EpisodeConfig(max_turns=np.int64(3), command_timeout=np.float32(2.0))  # type: ignore[arg-type]
    assert (type(rules.max_turns), type(rules.command_timeout)) == (int, float)


@pytest.mark.docker
def test_the_folder_of_transcripts_may_be_anywhere(
    arbiter: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        assert EpisodeConfig().with_options(transcript_dir="~/runs").transcript_dir == tmp_path / "runs"
    with pytest.raises(UsageError, match="there is no home folder for ~nosuchuser"):
        gym.make(SINGLE, transcript_dir="~nosuchuser/runs")
    monkeypatch.chdir(tmp_path)
    env = gym.make(SINGLE, problems=[arbiter], transcript_dir=300 * "x")
    with pytest.raises(UsageError, match=r"transcripts: x+ cannot be written: File name too long"):
        env.reset(seed=0)
    env.close()


def test_a_problem_alone_is_no_list(arbiter: Problem) -> None:
    with pytest.raises(UsageError, match="put the one problem into a list"):
        gym.make(AGENTIC, problems=arbiter)


@pytest.mark.parametrize(
    "options",
    [["x"], ["problem_id"], "problem_id", 5, {"problem_id": ["x"]}, {"problem_id": 5}, {"problem": "x", 1: 2}],
)
def test_options_of_reset_are_checked(arbiter: Problem, options: Any) -> None:
    env: Any = gym.make(AGENTIC, problems=[arbiter]).unwrapped
    with pytest.raises(UsageError, match=r"options of reset must be \{'problem_id': ID\} or None, got"):
        env.reset(options=options)


# Rules


@pytest.mark.parametrize("name", [AGENTIC, SINGLE])
def test_all_rules_can_be_given_at_once_and_options_replace_them(name: str, tmp_path: Path) -> None:
    rules = EpisodeConfig(
        system_prompt="Be brief.", user_prompt="Do it.", scoring_timeout=77.0, sandbox=SandboxSpec(cpus=1.0)
    )
    made: Any = gym.make(name, config=rules, transcript_dir=str(tmp_path), max_turns=7).unwrapped
    workspace: Any = "shell" if name == AGENTIC else "answer"
    assert made.config == rules.with_options(workspace=workspace, transcript_dir=tmp_path, max_turns=7)
    spec = gym.make(name, config=rules).spec
    assert spec is not None
    again: Any = gym.make(spec).unwrapped
    assert again.config.scoring_timeout == 77.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 3}, "unknown option 'max_steps'; the rules of an episode are max_turns, command_timeout, "),
        ({"config": {"max_turns": 3}}, "config must be an EpisodeConfig or None"),
        ({"workspace": "desk"}, "workspace must be 'shell' or 'answer', got 'desk'"),
        ({"workspace": "answer"}, "CVDPSingleTurn-v0 for answers"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be greater than 0, or None for no limit, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number, or None for no limit, got 1.5"),
    ],
)
def test_rules_that_there_are_not_are_refused_at_make(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gym.make(AGENTIC, **options)
    with pytest.raises(UsageError, match="harness_feedback must be 0 in an episode of one answer"):
        gym.make(SINGLE, harness_feedback=1)


@pytest.mark.docker
def test_prompts_and_sandbox_are_those_of_the_rules(arbiter: Problem) -> None:
    rules = EpisodeConfig(system_prompt="", user_prompt="Look around.", sandbox=SandboxSpec(env={"COLOUR": "blue"}))
    env = gym.make(AGENTIC, problems=[arbiter], config=rules, reward="proxy")
    prompt, info = env.reset(seed=0)
    assert info["messages"][-1]["content"] == "Look around."
    assert "You are a digital design engineer" not in prompt
    assert "blue" in env.step(call("echo $COLOUR"))[0]
    env.close()


# Limits on steps


@pytest.mark.parametrize("name", [AGENTIC, SINGLE])
def test_a_limit_that_would_not_grade_is_refused_at_make(name: str) -> None:
    with pytest.raises(UsageError, match="use max_turns"):
        gym.make(name, max_episode_steps=5)
    with pytest.raises(UsageError, match="use max_turns"):
        gym.make(gym.make(name).spec, max_episode_steps=5)  # type: ignore[arg-type]
    assert gym.make(name, max_episode_steps=-1).spec.max_episode_steps is None  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_and_so_it_is_in_a_vector(mode: str) -> None:
    with pytest.raises(UsageError, match="use max_turns"):
        gym.make_vec(AGENTIC, num_envs=2, vectorization_mode=mode, max_episode_steps=5)


def test_an_environment_can_be_made_again_from_its_spec() -> None:
    spec = gym.make(AGENTIC, max_turns=3).spec
    assert spec is not None
    again = gym.make(spec)
    assert again.spec == spec
    assert not isinstance(again, TimeLimit)


def test_whoever_is_copied_is_used_by_nobody() -> None:
    caller = SingleCaller()
    with caller.calling("step"), pickle.loads(pickle.dumps(caller)).calling("step"):
        pass


# Problems that cannot be scored


def test_what_cannot_be_scored_is_refused_before_it_is_played(unscorable: Problem, untested: Problem) -> None:
    for name in (AGENTIC, SINGLE):
        with pytest.raises(UsageError, match="closed_0001"):
            gym.make(name, problems=[unscorable, untested])
        with pytest.raises(UsageError, match="no hidden tests"):
            gym.make(name, problems=[untested])


@pytest.mark.parametrize(
    ("field", "more", "message"),
    [
        ("harness", {"/src/test_more.py": ""}, "harness.'/src/test_more.py': .* is absolute"),
        ("harness", {"./src/test_more.py": ""}, "harness.'./src/test_more.py': .* has an empty or . component"),
        ("context", {"/code/rtl/top.sv": ""}, "context.'/code/rtl/top.sv': .* is absolute"),
        ("context", {"rtl/top.sv": "\ud800"}, "context.'rtl/top.sv': character 0 is a lone surrogate"),
        ("context", {"rtl/\ud800.sv": ""}, "context.*character 4 is a lone surrogate"),
        ("golden", {"rtl/a": "", "rtl/a/b.sv": ""}, "golden: 'rtl/a' is a file, but 'rtl/a/b.sv' lies below it"),
        ("targets", ("/code/rtl/top.sv",), "targets: .* is absolute"),
        ("targets", ("src/top.sv",), "targets: 'src/top.sv': a solution may only change files below rtl/, verif/"),
        ("prompt", "\ud800", "prompt: character 0 is a lone surrogate"),
    ],
)
def test_problems_made_in_python_are_checked_as_rows_are(field: str, more: Any, message: str, arbiter: Problem) -> None:
    value = {**(getattr(arbiter, field) or {}), **more} if isinstance(more, dict) else more
    made = arbiter.model_copy(update={"id": "made", field: value})
    for name in (AGENTIC, SINGLE):
        with pytest.raises(UsageError, match=f"can be scored here: made: {message}"):
            gym.make(name, problems=[made])
    with pytest.warns(UserWarning, match="1 of 2 .* are left out: made"):
        assert read_problems([arbiter, made])[0] == [arbiter]


def test_two_problems_with_one_id_are_refused(arbiter: Problem) -> None:
    with pytest.raises(UsageError, match=r"entry 1: .*the id is repeated, here and at entry 0"):
        gym.make(AGENTIC, problems=[arbiter, arbiter])


def test_among_others_it_is_left_out_with_a_warning(arbiter: Problem, unscorable: Problem) -> None:
    with pytest.warns(UserWarning, match="1 of 2 .*cvdp_agentic_closed"):
        kept, left = read_problems([arbiter, unscorable])
    assert (kept, left) == ([arbiter], {unscorable.id: "it needs a closed tool"})
    for name in (AGENTIC, SINGLE):
        with pytest.warns(UserWarning, match="left out"):
            env = gym.make(name, problems=[arbiter, unscorable])
        with pytest.raises(UsageError, match=unscorable.id):
            env.reset(options={"problem_id": unscorable.id})
        env.close()


# Rewards


def test_rewards_are_read() -> None:
    assert read_reward(None) == (None, None)
    assert read_reward("dense") == (RewardWeights(partial_tests=True), None)
    assert read_reward({"tests": 2.0}) == (RewardWeights(tests=2.0), None)
    assert read_reward(len) == (None, len)  # type: ignore[arg-type]


class Passed:
    """A grader to whom everything is right."""

    async def score(self, *_: Any, **__: Any) -> Score:
        return Score(passed=True, tests_passed=3, tests_total=4, reward=1.4)


@pytest.mark.parametrize("value", [None, "1", math.nan, -math.inf, 10**400])
async def test_a_function_must_return_a_finite_number(arbiter: Problem, value: Any) -> None:
    def strange(score: Score) -> Any:
        return value

    with pytest.raises(UsageError, match=f"strange .*{arbiter.id}"):
        await FunctionGrader(Passed(), strange).score(arbiter, {})


async def test_a_function_that_raises_stop_iteration_is_no_endless_wait(arbiter: Problem) -> None:
    def strange(score: Score) -> float:
        return next(iter(()))

    with pytest.raises(UsageError, match="strange raised StopIteration"):
        await asyncio.wait_for(FunctionGrader(Passed(), strange).score(arbiter, {}), timeout=10)


async def test_a_function_may_return_any_kind_of_number(arbiter: Problem) -> None:
    values: list[Any] = [2, np.float32(2.0), np.int64(2), True]
    for value in values:
        score = await FunctionGrader(Passed(), lambda score: value).score(arbiter, {})  # noqa: B023
        assert type(score.reward) is float


@dataclass
class Share:
    """A reward that cannot be hashed."""

    of: float

    def __call__(self, score: Score) -> float:
        return self.of * score.tests_passed / score.tests_total


def dense_share(score: Score) -> int:
    """Of four tests each."""
    return 10 * score.tests_passed


@pytest.mark.docker
@pytest.mark.usefixtures("shared_gradings")
@pytest.mark.parametrize(
    ("name", "reward", "earned"),
    [
        (AGENTIC, {"format": 0.0, "syntax": 0.0, "tests": 3.0, "partial_tests": True}, 3.0),
        (SINGLE, RewardWeights(format=1.0, syntax=2.0, tests=4.0), 7.0),
        (AGENTIC, dense_share, 70.0),
        (SINGLE, Share(5.0), 5.0),
    ],
)
def test_each_kind_of_reward_is_paid(name: str, reward: Any, earned: float, arbiter: Problem, tmp_path: Path) -> None:
    env = gym.make(name, problems=[arbiter], reward=reward, transcript_dir=tmp_path)
    env.reset(seed=0)
    if name == AGENTIC:
        env.step(golden_call(arbiter))
        *_, info = done = env.step("Done.")
    else:
        *_, info = done = env.step(f"```systemverilog {RTL}\n{right(arbiter)}\n```")
    assert done[1] == pytest.approx(earned)
    assert info["score"]["reward"] == pytest.approx(earned)
    env.close()
