"""What each turn of an episode earned: measured on its files, within a budget of time, never at the price of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rtl_agent_gym.envs import Episode, EpisodeConfig
from rtl_agent_gym.episodes.submissions import Submission, Submitted
from rtl_agent_gym.episodes.turn_rewards import TurnBudget, TurnRewards
from rtl_agent_gym.episodes.turns import Turn
from rtl_agent_gym.errors import SandboxLost, UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Action, get_renderer
from rtl_agent_gym.sandboxes import CommandResult, SandboxProvider
from rtl_agent_gym.scoring import Score, Scorer
from tests.arbiter import RTL, call, right, write, wrong


def score(reward: float, *, seconds: float = 1.0, cached: bool = False) -> Score:
    return Score(passed=reward == 1.4, reward=reward, seconds=seconds, cached=cached)


def turn(number: int) -> Turn:
    return Turn(number, Action("command", ("true",)), (CommandResult("", 0),))


class Grades:
    """Grades files by their text, which is their reward, when it is allowed to."""

    def __init__(self, error: BaseException | None = None, *, at_once: bool = True) -> None:
        self.graded: list[float] = []
        self.may, self.error = asyncio.Event(), error
        if at_once:
            self.may.set()

    async def __call__(self, files: dict[str, str | bytes]) -> Score:
        await self.may.wait()
        if self.error is not None:
            raise self.error
        reward = float(files[RTL])
        self.graded.append(reward)
        return score(reward)


def rewards_of(problem: Problem, grades: Grades | None = None, budget: TurnBudget | None = None) -> TurnRewards:
    return TurnRewards(problem, "files", grades or Grades(), budget or TurnBudget(None))


def files(reward: float) -> dict[str, str | bytes]:
    return {RTL: str(reward)}


async def test_the_sum_is_the_episodes_reward_whatever_is_known(arbiter: Problem) -> None:
    grades = Grades(at_once=False)
    rewards = rewards_of(arbiter, grades)
    for number, reward in enumerate([0.4, 0.4, 1.4, 0.1], 1):
        rewards.after(turn(number), files(reward))
    assert grades.graded == []  # begun, not awaited
    grades.may.set()
    turns = [turn(number) for number in range(1, 6)]
    found = await rewards.values(turns, score(0.5))
    assert found == pytest.approx([0.4, 0.0, 1.0, -1.3, 0.4])
    assert sum(found) == pytest.approx(0.5)
    assert sorted(grades.graded) == [0.1, 0.4, 1.4]  # the second turn changed nothing


async def test_a_turn_without_calls_may_have_changed_files(arbiter: Problem) -> None:
    """As that of an agent's own program; one that is malformed may not."""
    rewards = rewards_of(arbiter)
    reads = iter([0.4, 1.4])

    async def read() -> tuple[dict[str, str | bytes], str]:
        return files(next(reads)), ""

    turns: list[Turn] = []
    for action in (Action("command"), Action("malformed"), Action("command")):
        turns.append(Turn(len(turns) + 1, action))
        assert await rewards.share(turns, None, read) == []
    turns.append(Turn(4, Action("final")))
    assert await rewards.share(turns, score(0.5), read) == pytest.approx([0.4, 0.0, 1.0, -0.9])


async def test_a_submission_is_what_is_known_of_a_turn_unless_a_command_follows_it(arbiter: Problem) -> None:
    command = CommandResult("", 0)
    submitted = Submitted("", 0, submission=Submission(1, 2, score(1.4), fraction=1.0, reward=0.25))
    for results, expected in (([submitted], 1.4), ([command, submitted], 1.4), ([submitted, command], 0.4)):
        rewards = rewards_of(arbiter)
        played = [Turn(1, Action("command", ("x",)), tuple(results)), turn(2)]
        rewards.after(played[0], files(0.4))
        assert await rewards.values(played, score(1.4)) == pytest.approx([expected + 0.25, 1.4 - expected])


async def test_a_turn_after_a_submission_is_graded_if_it_changes_the_submitted_files(arbiter: Problem) -> None:
    submitted = Submitted("", 0, submission=Submission(1, 2, score(1.4), fraction=1.0, reward=0.0))
    for third, last_two in ((0.2, [-1.2, 1.2]), (1.4, [0.0, 0.0])):  # undoes it, and changes nothing
        grades = Grades()
        rewards = rewards_of(arbiter, grades)
        played = [turn(1), Turn(2, Action("command", ("x",)), (submitted,)), turn(3), turn(4)]
        for earlier, reward in zip(played, (0.2, 1.4, third), strict=False):
            rewards.after(earlier, files(reward))
        assert await rewards.values(played, score(1.4)) == pytest.approx([0.2, 1.2, *last_two])
        assert set(grades.graded) == {0.2}, "the submission's score is known"


def test_problems_of_one_name_share_no_gradings(arbiter: Problem) -> None:
    other = arbiter.model_copy(update={"harness": arbiter.harness | {"src/more.py": "pass"}})
    keys = {rewards_of(problem)._key(files(1.0)) for problem in (arbiter, other)}
    assert len(keys) == 2
    rewards = rewards_of(arbiter)
    several = {"rtl/a": "bc"}, {"rtl/ab": "c"}, {"rtl/abc": ""}, {"rtl/b": "bc"}, {"rtl/a": "b", "rtl/b": "c"}
    assert len({rewards._key(found) for found in several}) == len(several)


async def test_neither_given_files_nor_a_cached_score_take_time(arbiter: Problem) -> None:
    async def grade(files: object) -> Score:
        return score(0.4, seconds=9.0, cached=True)

    rewards = TurnRewards(arbiter, "files", grade, TurnBudget(None))
    rewards.after(turn(1), arbiter.context)
    rewards.after(turn(2), files(0.4))
    assert await rewards.values([turn(number) for number in (1, 2, 3)], score(1.4)) == pytest.approx([0.0, 0.4, 1.0])
    assert (rewards.numbers(), rewards.budget.spent) == ({"turns_graded": 1, "turn_grading_seconds": 0.0}, 0.0)


async def test_a_file_name_need_not_be_utf_8(arbiter: Problem) -> None:
    rewards = rewards_of(arbiter)
    odd = files(0.4) | {"rtl/\udcff.sv": b"x"}
    rewards.after(turn(1), odd)
    rewards.ended(odd, score(1.4))
    assert await rewards.values([turn(1), turn(2)], score(1.4)) == pytest.approx([0.4, 1.0])


async def test_a_grading_that_failed_with_the_machine_is_unknown_and_another_error_is_raised(arbiter: Problem) -> None:
    for error in (SandboxLost("gone"), UsageError("no number")):
        rewards = rewards_of(arbiter, Grades(error))
        rewards.after(turn(1), files(0.4))
        if isinstance(error, SandboxLost):
            assert await rewards.values([turn(1), turn(2)], score(1.4)) == [0.0, 1.4]
            assert rewards.numbers()["turns_graded"] == 0
            assert rewards.budget.spent > 0  # its time is gone all the same
        else:
            with pytest.raises(UsageError, match="no number"):
                await rewards.values([turn(1), turn(2)], score(1.4))


async def test_turns_are_graded_within_a_share_of_the_time_of_final_gradings(arbiter: Problem) -> None:
    grades, budget = Grades(), TurnBudget(0.2)

    async def episode(number: int) -> list[float]:
        rewards = rewards_of(arbiter, grades, budget)
        rewards.after(turn(1), files(0.1 + number / 1000))
        final = score(1.0)
        rewards.ended(files(0.5 + number / 1000), final)
        return await rewards.values([turn(1), turn(2)], final)

    found = [await episode(number) for number in range(21)]
    assert found[0] == [0.0, 1.0]  # nothing was known of what a grading takes
    assert len(grades.graded) == 4
    assert budget.spent <= 0.2 * budget.final
    assert all(sum(rewards) == pytest.approx(1.0) for rewards in found)


async def test_a_grading_that_runs_has_its_time_reserved(arbiter: Problem) -> None:
    grades, budget = Grades(at_once=False), TurnBudget(1.0)
    budget.learn(b"another episode's", score(1.0), final=True)  # so gradings take a second, and one is allowed
    rewards = rewards_of(arbiter, grades, budget)
    for number in (1, 2):
        rewards.after(turn(number), files(number / 10))
    grades.may.set()
    assert await rewards.values([turn(number) for number in (1, 2, 3)], score(1.4)) == pytest.approx([0.1, 0.0, 1.3])
    assert grades.graded == [0.1]


async def test_what_came_from_a_cache_says_nothing_of_the_time_that_gradings_take(arbiter: Problem) -> None:
    budget = TurnBudget(1.0)
    budget.learn(b"first", score(1.0, seconds=2.0), final=True)
    budget.learn(b"second", score(1.0, seconds=0.01, cached=True), final=True)
    assert budget.final == 2.0
    assert budget.reserve(0) == 2.0
    assert budget.reserve(0) is None


async def test_the_files_of_gradings_that_have_not_ended_are_limited(
    arbiter: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all episodes of a run. What is not graded is unknown, as without time."""
    monkeypatch.setattr("rtl_agent_gym.episodes.turn_rewards.MOST_WAITING", 2_500_000)
    grades, budget = Grades(at_once=False), TurnBudget(None)
    first, second = (rewards_of(arbiter, grades, budget) for _ in range(2))
    played = [turn(number) for number in range(1, 5)]
    large = [files(reward) | {"rtl/large.bin": bytes(1_000_000)} for reward in (0.1, 0.2, 0.3, 0.4)]
    first.after(played[0], large[0])
    for at in (1, 2):
        second.after(played[at], large[at])
    await asyncio.sleep(0)
    grades.may.set()
    assert await second.values(played, score(1.4)) == pytest.approx([0.0, 0.2, 0.0, 1.2])
    await first.values(played, score(1.4))
    first.after(played[3], large[3])  # there is room again
    assert await first.values([*played, turn(5)], score(1.4)) == pytest.approx([0.1, 0.0, 0.0, 0.3, 1.0])
    assert (grades.graded, budget.waiting) == ([0.1, 0.2, 0.4], 0)


async def test_files_graded_before_cost_nothing(arbiter: Problem) -> None:
    grades, budget = Grades(), TurnBudget(0.0)
    first, second = (rewards_of(arbiter, grades, budget) for _ in range(2))
    first.ended(files(0.4), score(0.4))
    second.after(turn(1), files(0.4))
    assert await second.values([turn(1), turn(2)], score(1.4)) == pytest.approx([0.4, 1.0])
    assert grades.graded == []


async def test_files_that_turn_out_to_be_the_final_ones_count_as_a_final_grading(arbiter: Problem) -> None:
    budget = TurnBudget(1.0)
    budget.learn(b"another episode's", score(1.0), final=True)
    rewards = rewards_of(arbiter, budget=budget)
    rewards.after(turn(1), files(1.4))
    await rewards.values([turn(1)], score(1.4))
    assert (budget.final, budget.spent) == (1.0, 1.0)
    rewards.ended(files(1.4), score(1.4, seconds=0.0, cached=True))
    assert (budget.final, budget.spent) == (2.0, 0.0)


async def test_a_closed_episode_ends_its_gradings(arbiter: Problem) -> None:
    """Also those that have not begun; nothing of the budget stays reserved."""
    for steps in range(2):
        budget = TurnBudget(1.0)
        budget.learn(b"another episode's", score(1.0), final=True)
        rewards = rewards_of(arbiter, Grades(at_once=False), budget)
        rewards.after(turn(1), files(0.4))
        for _ in range(steps):
            await asyncio.sleep(0)
        assert budget.waiting > 0
        await rewards.close()
        assert (len(asyncio.all_tasks()), budget.waiting, budget._reserved) == (1, 0, 0.0)


# In real sandboxes


@pytest.mark.docker
async def test_the_turn_that_repairs_the_design_earns_the_tests(
    arbiter: Problem, provider: SandboxProvider, tmp_path: Path
) -> None:
    config = EpisodeConfig(turn_rewards="files", turn_grading_time=None)
    async with Scorer(provider, cache=tmp_path) as scorer:
        episode = Episode(arbiter, provider=provider, grader=scorer, renderer=get_renderer("qwen3"), config=config)
        async with episode:
            await episode.start()
            await episode.step(call("ls rtl docs"))
            await episode.step(call("echo 'module broken' > " + RTL))
            await episode.step(call(write(wrong("rst_n_for_reset"))))
            await episode.step(call(write(right(arbiter))))
            await episode.step(call("cat docs/* | head -2"))
            last = await episode.step("Done.")
    assert last.score is not None
    assert last.score.reward == pytest.approx(1.4)
    # The file exists, it has no syntax error, it passes.
    assert episode.turn_rewards == pytest.approx([0.0, 0.1, 0.3, 1.0, 0.0, 0.0])
    assert episode.trained_numbers(last.score)["turns_graded"] == 3


@pytest.fixture
def env(arbiter: Problem) -> Iterator[Any]:
    made = gym.make("CVDPAgentic-v0", problems=[arbiter], harness_feedback=2, turn_rewards="submissions")
    yield made
    made.close()


@pytest.mark.docker
def test_submissions_divide_the_reward_without_any_grading_more(env: Any, arbiter: Problem) -> None:
    env.reset(seed=0)
    _, paid, *_ = env.step(call(write(wrong("rst_n_for_reset")), "submit"))
    env.step(call(write(right(arbiter))))
    *_, info = env.step("Done.")
    assert info["turn_rewards"] == pytest.approx([0.4 + paid, 0.0, 1.0])
    assert sum(info["turn_rewards"]) == pytest.approx(info["numbers"]["reward"])
