"""`submit`: what an agent is told of the hidden tests, what it is never told, and what its progress earns."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import gymnasium as gym
import pytest

from rtl_agent_gym.envs import Episode, EpisodeConfig
from rtl_agent_gym.episodes import submissions
from rtl_agent_gym.episodes.submissions import (
    Submissions,
    all_pass,
    answer_time,
    failing,
    fraction,
    plain_name,
    stimuli_seed,
    verdict,
)
from rtl_agent_gym.errors import DaemonError, SandboxError
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import RewardWeights, Score, Scorer, TestOutcome
from rtl_agent_gym.scoring.compose import HarnessImages, read_services
from rtl_agent_gym.scoring.harness import run_harness
from rtl_agent_gym.scoring.submission import sift
from tests.arbiter import RTL, call, right, write, wrong

TESTS = {
    "test_widths", "test_reset_clears", "test_reset_is_synchronous", "test_every_request", "test_every_override",
    "test_outputs_are_registered", "test_random",
}  # fmt: skip
"""Of the arbiter."""


@pytest.fixture(autouse=True)
def quick_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come at fixed times; the times themselves are tested apart."""
    monkeypatch.setattr(submissions, "FIRST_ANSWER", 0.05)


def score(**changes: Any) -> Score:
    tests = [TestOutcome(name=f"test_runner.py::test_x/test_x.{n}", outcome="failed" if n > 4 else "passed") for n in
             range(8)]  # fmt: skip
    values: dict[str, Any] = {"format": 1.0, "syntax": 1.0, "interface": 1.0, "compile": 1.0, "tests": tests}
    return Score(**({"passed": False, "tests_passed": 5, "tests_total": 8, "credit": 5 / 8} | values | changes))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("test_runner.py::test_arbiter/test_arbiter.test_widths", "test_widths"),
        ("test_runner.py::test_arbiter", "test_arbiter"),
        ("direct: test_runner.py::test_top[8-255]/test_top.counts", "direct: counts"),
        ("counter: test_runner.py::test_width[None]", "counter: test_width"),
        ("test_runner.py::test_x[a: b]/test_x.one", "one"),
        ("test_runner.py::test_x/test_x.one/step=3/data=0xff", "one"),
        ("0xff]/test_x.one", "one"),  # what is left of a parameter with a slash in it
        ("direct: 0xff]/test_x.one", "direct: one"),
        ("0xff]", "a test"),
        ("01-new-tb", "01-new-tb"),
        ("simulation/test_x.one", "one"),
        ("test_runner.py", "test_runner"),
        ("t::\x07ev\u202eil\n" + "x" * 500, "evil" + "x" * 76),
    ],
)
def test_of_a_tests_name_its_own_is_told_and_no_file_module_or_value(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_stages_come_before_tests_and_runs_are_counted() -> None:
    tests = [
        TestOutcome(name=f"test_runner.py::test_x[{width}]/test_x.{test}", outcome=outcome)
        for width, outcomes in ((8, "pff"), (4, "ppf"), (2, "pse"))
        for test, outcome in zip(
            ("one", "two", "three"),
            ({"p": "passed", "f": "failed", "e": "error", "s": "skipped"}[one] for one in outcomes),
            strict=True,
        )
    ]
    found = score(tests=tests, interface=0.75, compile=0.5)
    assert failing(found) == ["interface", "compile", "two (in 1 of 2 runs)", "three"]
    assert verdict(found) == "these checks fail:\n- interface\n- compile\n- two (in 1 of 2 runs)\n- three"


def test_the_order_of_names_does_not_tell_which_run_fails() -> None:
    def told(*outcomes: str) -> str:
        names = [f"t.py::test_x[{width}]/test_x.{test}" for width in (8, 4) for test in ("one", "two")]
        pairs = zip(names, outcomes, strict=True)
        return verdict(score(tests=[TestOutcome(name=name, outcome=outcome) for name, outcome in pairs]))

    assert told("failed", "passed", "passed", "failed") == told("passed", "failed", "failed", "passed")


def test_an_attack_is_told_as_a_fact_alone() -> None:
    attacked = score(violations=["rtl/x.sv:3: $fopen writes a file"], reason="tried to reach the checker: $fopen")
    told = verdict(attacked)
    assert "refused" in told
    for secret in ("$fopen", "rtl/", ":3", "file ", "5", "7"):
        assert secret not in told
    assert fraction(attacked) == 0.0
    assert not all_pass(attacked)


def test_without_tests_the_stages_are_told_and_no_progress_is_measured() -> None:
    static = score(tests=[], tests_passed=0, tests_total=0, compile=0.0)
    assert verdict(static, tested=False) == "syntax and interface are right; nothing else is checked here"
    assert all_pass(static, tested=False)
    bad = static.model_copy(update={"syntax": 0.5, "format": 0.5})
    assert failing(bad, tested=False) == ["files (one is missing or empty)", "syntax"]
    assert fraction(static) == 0.0


def test_what_does_not_compile_is_no_progress() -> None:
    assert fraction(score()) == 5 / 8
    assert fraction(score(compile=0.0)) == 0.0
    assert fraction(score(credit=0.0)) == 0.0  # what the tests would have been is unknown
    assert fraction(score(passed=True, compile=0.0)) == 5 / 8  # a harness that compiles nothing
    assert verdict(score(tests=[])) == "it does not pass"


# On real containers and the real harness


@pytest.fixture
def make(arbiter: Problem) -> Iterator[Callable[..., Any]]:
    """Makes environments, each of them with a running episode."""
    with contextlib.ExitStack() as closing:

        def made(**rules: Any) -> Any:
            env = gym.make("CVDPAgentic-v0", problems=[arbiter], command_timeout=10.0, **rules)
            closing.callback(env.close)
            env.reset(seed=0)
            return env

        yield made


@pytest.fixture
def env(make: Callable[..., Any]) -> Any:
    return make(harness_feedback=2, progress_coef=0.6)


def names(observation: str) -> set[str]:
    return set(re.findall(r"^- (.*)$", observation, re.MULTILINE))


def assert_no_leak(observation: str, problem: Problem) -> None:
    """Nothing of the hidden files but names of tests."""
    for text in problem.harness.values():
        for line in map(str.strip, text.splitlines()):
            assert len(line) < 12 or line not in observation, line
    for word in ("assert", "Traceback", "test_runner", ".py", "/src", "expected", "cocotb", "sim_build"):
        assert word not in observation, word


@pytest.mark.docker
def test_the_failing_checks_are_named_and_progress_is_paid(env: Any, arbiter: Problem) -> None:
    env.step(call(write(wrong("rst_n_for_reset"))))
    observation, first, terminated, truncated, info = env.step(call("submit"))
    assert names(observation) == {"interface"} | TESTS - {"test_widths"}
    assert "submission 1 of 2" in observation
    assert_no_leak(observation, arbiter)
    assert (first, terminated, truncated) == (pytest.approx(0.6 / 7), False, False)
    assert info["submission"] == {"number": 1, "left": 1, "fraction": pytest.approx(1 / 7), "reward": first}
    assert (info["command"], info["exit_code"]) == ("submit", 1)

    assert env.step(call(write(right(arbiter))))[1] == 0.0
    observation, second, _, _, info = env.step(call("  submit\n"))
    assert "submission 2 of 2: all checks pass" in observation
    assert names(observation) == set()
    assert second == pytest.approx(0.6 * 6 / 7)
    assert (info["submission"]["left"], info["exit_code"]) == (0, 0)

    observation, third, _, _, info = env.step(call("submit"))
    assert "all 2 submissions are used up; nothing was checked" in observation
    assert (third, info["exit_code"], "submission" in info) == (0.0, 2, False)

    _, last, terminated, _, info = env.step("Done.")
    assert (last, terminated) == (pytest.approx(1.4), True)
    assert first + second == pytest.approx(0.6)


@pytest.mark.docker
@pytest.mark.slow
def test_going_back_and_forth_earns_nothing(make: Callable[..., Any], arbiter: Problem) -> None:
    env = make(harness_feedback=6, progress_coef=1.0)
    bad, good = write(wrong("override_merged_with_requests")), write(right(arbiter))
    rewards, fractions = [], []
    for design in (bad, good, bad, good, write("module broken"), good):
        _, reward, _, _, info = env.step(call(design, "submit"))
        rewards.append(reward)
        fractions.append(info["submission"]["fraction"])
    assert 0 < fractions[0] < 1
    assert fractions[1:] == [1.0, fractions[0], 1.0, 0.0, 1.0]
    assert rewards == [pytest.approx(fractions[0]), pytest.approx(1 - fractions[0]), 0.0, 0.0, 0.0, 0.0]
    assert sum(rewards) == pytest.approx(1.0)
    assert env.step("Done.")[1] == pytest.approx(1.4)


@pytest.mark.docker
def test_each_call_of_a_turn_is_looked_at_on_its_own(env: Any, arbiter: Problem) -> None:
    observation, reward, _, _, info = env.step(
        call(write("module broken"), "submit", "echo between", write(right(arbiter)), "submit")
    )
    parts = observation.split("</tool_response>")
    assert names(parts[1]) >= {"syntax", "compile"}
    assert "between" in parts[2]
    assert "all checks pass" in parts[4]
    assert reward == pytest.approx(0.6)
    assert info["submission"] == {"number": 2, "left": 0, "fraction": 1.0, "reward": reward}
    assert info["command"].count("submit") == 2
    assert env.step("x")[1] == pytest.approx(1.4)


@pytest.mark.docker
def test_within_a_longer_command_it_is_told_how_and_the_word_alone_is_no_call(env: Any) -> None:
    for command in ("cd /code && submit", "submit rtl/x.sv", "echo a; submit; echo b", "(submit)"):
        observation, _, _, _, info = env.step(call(command))
        assert "[note] submit must be a command of its own" in observation, command
        assert "submission" not in info
    for command in ("nosuchprogram submit", "echo submit", "ls submit", "submitx"):
        assert "[note]" not in env.step(call(command))[0], command


@pytest.mark.docker
def test_without_feedback_it_is_a_command_like_any_other(make: Callable[..., Any]) -> None:
    env = make()
    opening, _ = env.reset()
    assert "submit" not in opening
    observation, reward, _, _, info = env.step(call("submit"))
    assert "submit: command not found" in observation
    assert "[note]" not in observation
    assert (reward, info["exit_code"], "submission" in info) == (0.0, 127, False)


@pytest.mark.docker
def test_an_attack_is_refused_without_a_word_on_how_it_was_seen(env: Any, arbiter: Problem) -> None:
    thief = right(arbiter).replace(
        "endmodule", 'integer f;\ninitial f = $fopen("/code/src/test_fixed_priority_arbiter.py", "w");\nendmodule'
    )
    observation, reward, _, _, info = env.step(call(write(thief), "submit"))
    told = observation.split("</tool_response>")[1]
    assert "refused" in told
    assert names(told) == set()
    assert not re.search(r"fopen|rtl/|:\d|/code", told)
    assert (reward, info["submission"]["fraction"]) == (0.0, 0.0)
    assert env.step("Done.")[4]["score"]["violations"]


@pytest.mark.docker
def test_weights_without_tests_tell_of_the_stages_alone(make: Callable[..., Any], arbiter: Problem) -> None:
    env = make(harness_feedback=2, reward="proxy")
    observation, reward, *_ = env.step(call(write(wrong("rst_n_for_reset")), "submit"))
    assert names(observation) == {"interface"}
    assert reward == 0.0
    observation, reward, *_ = env.step(call(write(right(arbiter)), "submit"))
    assert "syntax and interface are right; nothing else is checked here" in observation
    assert reward == 0.0


@pytest.mark.docker
@pytest.mark.usefixtures("shared_gradings")
def test_no_more_is_shown_than_of_any_output(make: Callable[..., Any]) -> None:
    env = make(harness_feedback=1, max_output=60)
    observation, *_, info = env.step(call(write(wrong("rst_n_for_reset")), "submit"))
    assert "output cut from" in observation
    assert info["truncated_output"]


@pytest.mark.docker
@pytest.mark.parametrize("renderer", ["gpt_oss", pytest.param("qwen3_instruct", marks=pytest.mark.slow)])
async def test_every_dialect_calls_it_as_any_command(
    provider: DockerSandboxes, arbiter: Problem, renderer: str
) -> None:
    dialect = get_renderer(renderer)
    seen: list[bytes] = []
    async with (
        Scorer(provider, weights=RewardWeights.preset("proxy")) as scorer,
        Episode(
            arbiter,
            provider=provider,
            grader=scorer,
            renderer=dialect,
            config=EpisodeConfig(harness_feedback=1),
            on_output=seen.append,
        ) as episode,
    ):
        opening = await episode.start()
        assert "You may submit once." in opening.system
        turn = await episode.step(write_turn(dialect, "", ["submit"]))
        assert "files (one is missing or empty)" in turn.outputs[0]
        assert len(turn.submissions) == 1
    assert b"submission 1 of 1" in b"".join(seen)


class Patient:
    """A grader that takes its time and remembers the seeds."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.seeds = list(seconds), list[int | None]()

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, *, seed: int | None = None
    ) -> Score:
        self.seeds.append(seed)
        await asyncio.sleep(self.seconds.pop(0) if self.seconds else 0.0)
        return score()


FILES: dict[str, str | bytes] = {RTL: b"module m; endmodule"}


async def read() -> tuple[dict[str, str | bytes], str]:
    return FILES, ""


def rules(count: int) -> EpisodeConfig:
    return EpisodeConfig(harness_feedback=count)


async def test_the_clock_tells_little_of_what_the_tests_did(arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "FIRST_ANSWER", 0.5)
    clock = Clock()  # an answer that a busy machine holds up comes at a later one of these times
    monkeypatch.setattr(submissions, "time", clock)
    monkeypatch.setattr(submissions, "asyncio", clock)
    monkeypatch.setitem(globals(), "asyncio", clock)  # for `Patient`
    made = Submissions(arbiter, Patient(0.0, 0.2, 0.3, 0.7), rules(4))
    waited = []
    for _ in range(4):
        begun = clock.monotonic()
        await made.submit(read)
        waited.append(clock.monotonic() - begun)
    assert waited == pytest.approx([0.5, 0.5, 0.5, 1.0])
    begun = clock.monotonic()
    assert (await made.submit(read)).exit_code == 2
    assert clock.monotonic() == begun  # nothing was graded, so there is nothing to hide


async def test_going_back_to_what_was_reached_earns_nothing(arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(submissions, "time", clock)
    monkeypatch.setattr(submissions, "asyncio", clock)
    grader = Mock(score=AsyncMock(side_effect=[score(credit=credit) for credit in (0.5, 0.0, 0.5)]))
    made = Submissions(arbiter, grader, EpisodeConfig(harness_feedback=3, progress_coef=1.0))
    found = [(await made.submit(read)).submission for _ in range(3)]
    assert [submission.reward for submission in found if submission] == [0.5, 0.0, 0.0]


async def test_an_answer_comes_no_earlier(arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "FIRST_ANSWER", 0.5)
    begun = time.monotonic()
    await Submissions(arbiter, Patient(0.0), rules(1)).submit(read)
    assert time.monotonic() - begun >= 0.5


class Clock:
    """The time and the sleep of a machine with nothing else to do."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


def test_answers_come_at_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert submissions.FIRST_ANSWER == 1.0
    times = {answer_time(seconds / 10) for seconds in range(6000)}
    assert sorted(times) == [2.0**n for n in range(11)]  # 11 times in ten minutes: 3.5 bits
    assert all(answer_time(seconds / 10) >= seconds / 10 for seconds in range(6000))


async def test_each_submission_has_stimuli_of_its_own_and_the_end_the_problems(arbiter: Problem) -> None:
    drawn = []
    for seed in (1, 1, 2):
        grader = Patient()
        made = Submissions(arbiter, grader, rules(2), seed)
        made_seeds = [stimuli_seed(arbiter, seed, number) for number in (1, 2)]
        for number in (1, 2):
            await made.grade(FILES, seed=stimuli_seed(arbiter, seed, number))
        await made.grade(FILES)
        assert grader.seeds == [*made_seeds, None]
        drawn.append(grader.seeds)
    assert drawn[0] == drawn[1]  # a replay draws the same
    assert len({seed for seeds in drawn for seed in seeds}) == 5
    other = arbiter.model_copy(update={"harness": {**arbiter.harness, "src/more.py": ""}})
    assert stimuli_seed(other, 1, 1) != stimuli_seed(arbiter, 1, 1)  # an agent knows the name, but no hidden file


def test_siblings_in_training_share_no_stimuli(arbiter: Problem) -> None:
    pytest.importorskip("tinker_cookbook")
    from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
    from rtl_agent_gym.envs.tinker_env import CVDPEnv

    def seed(feedback: int) -> int:
        parts: Any = {
            "renderer": get_renderer("qwen3"),
            "provider": object(),
            "grader": Patient(),
            "seed": 3,
        }
        return CVDPEnv(arbiter, TinkerEnvConfig(harness_feedback=feedback), **parts).episode.seed

    assert (seed(0), seed(0)) == (3, 3)
    assert len({seed(2) for _ in range(3)}) == 3


@pytest.mark.docker
async def test_an_episode_draws_them_from_its_seed(provider: DockerSandboxes, arbiter: Problem) -> None:
    grader = Patient()
    async with Episode(
        arbiter, provider=provider, grader=grader, renderer=get_renderer("qwen3"), config=rules(2), seed=7
    ) as episode:
        await episode.start()
        await episode.step(call("submit", "submit"))
        await episode.step("Done.")
    assert grader.seeds == [stimuli_seed(arbiter, 7, 1), stimuli_seed(arbiter, 7, 2), None]


@pytest.mark.docker
@pytest.mark.slow
async def test_the_shells_random_numbers_come_from_the_seed(provider: DockerSandboxes, arbiter: Problem) -> None:
    heard = []
    for seed in (5, 5, 2**40 + 6, None):
        async with Episode(
            arbiter, provider=provider, grader=Patient(), renderer=get_renderer("qwen3"), seed=seed
        ) as episode:
            await episode.start()
            heard.append((await episode.step(call("echo $RANDOM $RANDOM", "echo $RANDOM"))).outputs)
    assert heard[0] == heard[1]
    assert len(set(heard)) == 3


SEEDED = """
import cocotb, os, random
from cocotb.triggers import Timer

@cocotb.test()
async def tells_the_seed(dut):
    await Timer(1, "ns")
    raise AssertionError(f"SEED {random.randrange(2**32)}")
"""


@pytest.mark.docker
@pytest.mark.slow
async def test_a_seed_reaches_the_tests_and_the_harnesss_own_wins(provider: DockerSandboxes, arbiter: Problem) -> None:
    """As in the official run, where cocotb draws a seed unless the harness sets one."""
    name = next(path for path in arbiter.harness if path.startswith("src/test_") and "runner" not in path)
    seeded = arbiter.model_copy(update={"harness": {**arbiter.harness, name: SEEDED}})
    environment = next(path for path in seeded.harness if path.endswith(".env"))
    fixed = {**seeded.harness, environment: seeded.harness[environment] + "\nRANDOM_SEED = 5\n"}
    files = {RTL: right(arbiter)}
    async with Scorer(provider, waiting=0) as scorer:

        async def drawn(problem: Problem, seed: int | None) -> str:
            services = read_services(problem)
            run = await run_harness(sift(problem, files), services, provider, HarnessImages(), seed=seed, lint=False)
            found = re.findall(r"SEED \d+", "".join(service["log"] for service in run.services))
            assert found, run.services[0]["log"][-2000:]
            return str(found[0])

        own = [await drawn(seeded, seed) for seed in (None, None, 1, 2)]
        assert own[0] == own[1]
        assert len(set(own)) == 3
        kept = seeded.model_copy(update={"harness": fixed})
        assert await drawn(kept, 1) == await drawn(kept, 2)
        assert (await scorer.score(arbiter, files, seed=12345)).passed


class Broken:
    """A grader whose machine is gone."""

    async def score(self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, **_: Any) -> Score:
        raise DaemonError("the daemon is gone")


@pytest.mark.docker
async def test_a_machines_fault_is_raised_and_is_no_feedback(provider: DockerSandboxes, arbiter: Problem) -> None:
    config = EpisodeConfig(harness_feedback=1)
    async with Episode(
        arbiter, provider=provider, grader=Broken(), renderer=get_renderer("qwen3"), config=config
    ) as episode:
        await episode.start()
        with pytest.raises(SandboxError, match="the daemon is gone"):
            await episode.step(call("submit"))
        assert episode.over
        assert episode.turns == []
