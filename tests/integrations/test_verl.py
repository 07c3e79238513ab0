"""verl: the scripts through its worker, faults and limits, and a step of its trainer up to the advantages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.integrations.conformance import EXPECTED
from tests.integrations.ecosystem import call
from tests.integrations.players import BY_NAME, compared
from tests.integrations.table import recorded

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]

SOLVED = BY_NAME["solved"]


@pytest.mark.docker
async def test_scripts_get_the_verdicts_of_a_session(tmp_path: Path) -> None:
    with recorded("verl", EXPECTED) as notes:
        async for script, there, _ in compared("verl", tmp_path):  # which also checks the tokens of each
            notes.add(script.name, there, observations=there.observations is not None, tokens=True)
            assert len(list((tmp_path / "there" / script.name / "transcripts").iterdir())) == 1


@pytest.mark.docker
@pytest.mark.parametrize("stops", [(), ("aborted",)])
async def test_a_fault_is_played_again_and_never_a_reward(tmp_path: Path, stops: tuple[str, ...]) -> None:
    script = SOLVED if stops else replace(SOLVED, fault_in=2)
    for attempts in (1, 2):
        (tmp_path / str(attempts)).mkdir()
    failed = await call("verl", "repeated", script, tmp_path / "1", 1, stops)
    assert failed == {"error": "ModelError" if stops else "SandboxLost", "episodes": 1}
    assert await call("verl", "repeated", script, tmp_path / "2", 2, stops) == {"reward": 1.4, "episodes": 2}


@pytest.mark.docker
async def test_an_episode_that_fills_the_response_is_graded(tmp_path: Path) -> None:
    played = await call("verl", "limited", SOLVED, tmp_path, 700)
    assert played["numbers"] | {"reward": 1.4, "turns": 2.0, "stop/max_tokens": 1.0} == played["numbers"]
    assert played["width"] == 700
    assert played["asked"] == [700, 700 - played["appended"][0]]  # the room that is left
    assert played["stop"] == [[151_645]] * 2


@pytest.mark.docker
async def test_a_turn_is_given_only_what_is_left_of_the_episodes_tokens(tmp_path: Path) -> None:
    played = await call("verl", "limited", SOLVED, tmp_path, 8192, 4000)
    assert [asked + read for asked, read in zip(played["asked"], played["read"], strict=True)] == [4000] * 3


@pytest.mark.docker
async def test_what_each_turn_earned_is_handed_over(tmp_path: Path) -> None:
    made = await call("verl", "divided", SOLVED, tmp_path)
    assert made == {"turns": pytest.approx([0.0, 1.4, 0.0]), "reward": 1.4}  # the solution is in the second one


@pytest.mark.docker
async def test_limits_without_room_for_a_turn_are_refused(tmp_path: Path) -> None:
    assert "there was no room for a turn" in await call("verl", "cramped", SOLVED, tmp_path)


async def test_a_row_of_another_data_set_is_refused() -> None:
    assert "needs extra_info.problem_id" in await call("verl", "refused")


@pytest.mark.docker
@pytest.mark.parametrize("fault_in", [None, 2])
async def test_the_trainer_gets_a_group_of_the_example(tmp_path: Path, fault_in: int | None) -> None:
    """A fault, which no attempt was left for, takes one episode out of the group, and nothing else."""
    made = await call("verl", "trained", replace(SOLVED, fault_in=fault_in), tmp_path, 2)
    assert made["rows"] == {"train": 13, "val": 1}
    episodes = 2 if fault_in is None else 1
    assert made["episodes"] == episodes
    assert made["validated"]  # one more episode, without a verdict, changes no metric
    assert (made["rewards"], made["passed"], made["turns"]) == ([1.4] * episodes, [1.0] * episodes, [6] * episodes)
    for length, sampled, logprobs in zip(made["lengths"], made["sampled"], made["logprobs"], strict=True):
        assert logprobs == sampled - 1  # the first one is 0
        assert 0 < sampled < length
