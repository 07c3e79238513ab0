"""Episodes that a run keeps until its next checkpoint."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook")

from rtl_agent_gym.envs.problem_order import Batches, Schedule
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.errors import RequestRefused, SandboxError, SandboxLost
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.retries import STEP_EPISODES
from rtl_agent_gym.training import rollouts
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.progress import Progress
from rtl_agent_gym.training.rollouts import (
    Batch,
    EpisodePlayer,
    PlayedGroup,
    PlayEpisode,
    Rollout,
    RolloutProducer,
    RolloutStore,
    rollout_name,
    student_policy,
    turn_seed,
)
from tests.evaluation.recording import score

FIRST, SECOND = load_problems("bundled")[:2]
NAME = rollout_name(3, 0, 1)


def episode(token: int, problem: object = FIRST) -> Rollout:
    tokens = TokenTranscript([1, 2])
    tokens.add_action([token], [-0.1 / 3])
    tokens.append([9])
    tokens.add_action([8], [float("-inf")])
    result = EpisodeResult.of(problem, 7, stop_reason="completed")  # type: ignore[arg-type]
    return Rollout(result, (tokens,), 1.1, {"turns": 2.0}, {"rtl/a.sv": "module a;"})


def test_the_reward_of_an_episode_includes_that_of_its_submissions() -> None:
    result = episode(5).result.model_copy(update={"score": score(True)})
    assert result.score is not None
    turns = [SimpleNamespace(progress_reward=reward) for reward in (0.25, 0.0, 0.5)]
    ended: Any = SimpleNamespace(
        tokens=episode(5).streams[0], turns=turns, files={}, turn_rewards=[], trained_numbers=lambda _: {}
    )
    assert Rollout.of(ended, result).reward == result.score.reward + 0.75


def test_the_pass_rate_of_a_problem_is_that_of_all_its_groups() -> None:
    """A step with more places than there are problems, or at the end of an epoch, has several."""

    def group(problem: Problem, *passed: bool) -> PlayedGroup:
        results = [episode(5, problem).result.model_copy(update={"score": score(verdict)}) for verdict in passed]
        return PlayedGroup(problem, [replace(episode(5, problem), result=result) for result in results])

    metrics = Batch([group(FIRST, True, True), group(SECOND, True), group(FIRST, False)]).metrics(tested=True)
    rates = {name: value for name, value in metrics.items() if name.startswith("pass_rate")}
    assert rates == {
        "pass_rate": 0.75,
        f"pass_rate/{FIRST.id}": pytest.approx(2 / 3),
        f"pass_rate/{SECOND.id}": 1.0,
    }
    alone = Batch([group(FIRST, True), group(FIRST, False)])
    assert [name for name in alone.metrics(tested=True) if name.startswith("pass_rate")] == ["pass_rate"]
    assert not any(name.startswith("pass_rate") for name in alone.metrics(tested=False))


def test_the_reasons_why_episodes_end_are_shares() -> None:
    def group(problem: Problem, *reasons: str) -> PlayedGroup:
        return PlayedGroup(problem, [replace(episode(5), numbers={f"stop/{reason}": 1.0}) for reason in reasons])

    metrics = Batch([group(FIRST, "completed", "max_turns"), group(SECOND, "completed", "completed")]).metrics(False)
    assert (metrics["env/all/stop/completed"], metrics["env/all/stop/max_turns"]) == (0.75, 0.25)


def started(folder: Path, play: PlayEpisode, **more: Any) -> RolloutProducer:
    """It plays the two episodes of a step."""
    options, sampler = TrainOptions(batch_size=1, group_size=2, **more), object()
    producer = RolloutProducer(options, Batches([FIRST], Schedule(1, 2)), play, folder, Progress(1))
    producer.start(0, sampler, {"problems": [FIRST.id], "version": 0, "weights": None})  # type: ignore[arg-type]
    return producer


async def collected(folder: Path, play: PlayEpisode, **more: Any) -> Batch:
    """The two episodes of a step."""
    return await started(folder, play, **more).collect(0)


@pytest.mark.parametrize("most", [1, 2])
async def test_no_more_episodes_run_at_once_than_allowed(tmp_path: Path, most: int) -> None:
    running = [0]

    async def play(problem: Problem, policy: Any) -> Rollout:
        running.append(running[-1] + 1)
        await asyncio.sleep(0.01)
        running.append(running[-1] - 1)
        return episode(5, problem)

    await collected(tmp_path, play, max_concurrent=most)
    assert max(running) == most


async def test_episodes_that_are_cancelled_are_not_played_again(tmp_path: Path) -> None:
    begun = list[Problem]()

    async def play(problem: Problem, policy: Any) -> Rollout:
        begun.append(problem)
        await asyncio.Event().wait()
        raise AssertionError

    producer = started(tmp_path, play)
    while len(begun) < 2:
        await asyncio.sleep(0)
    await asyncio.wait_for(producer.stop(), 10)
    assert len(begun) == 2


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_the_rate_of_a_resumed_step_counts_what_it_has_played_itself(tmp_path: Path, kept: int) -> None:
    async def play(problem: Problem, policy: Any) -> Rollout:
        return episode(5, problem)

    for member in range(kept):
        RolloutStore(tmp_path).put(rollout_name(0, 0, member), episode(5))
    batch = await collected(tmp_path, play)
    metrics = batch.metrics(tested=False)
    assert metrics["env/all/total_ac_tokens"] == 4
    assert ("tokens_per_second" in metrics) == (kept < 2)
    assert metrics.get("tokens_per_second", 0.0) * batch.seconds == pytest.approx(4 - 2 * kept)


async def test_a_group_that_a_later_attempt_has_played_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "STEP_EPISODES", STEP_EPISODES._replace(first=0.0))
    faults = [SandboxLost("pulled the plug")] * 2

    async def play(problem: Problem, policy: Any) -> Rollout:
        if faults:
            raise faults.pop()
        return episode(5, problem)

    metrics = (await collected(tmp_path, play, rollout_retries=0)).metrics(tested=False)
    assert (metrics["rollouts/faults"], metrics["rollouts/groups_dropped"]) == (2, 0)


@pytest.mark.parametrize(
    ("faults", "kept"),
    [
        ([SandboxLost("gone"), None], 1),  # enough survived
        ([RequestRefused("no"), SandboxLost("gone")], 2),  # not only refusals, so once more
        ([SandboxLost("gone"), SandboxLost("gone"), RequestRefused("no"), RequestRefused("no")], 0),
    ],
)
async def test_a_step_is_played_again_unless_the_service_refuses_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[SandboxError | None], kept: int
) -> None:
    monkeypatch.setattr(rollouts, "STEP_EPISODES", STEP_EPISODES._replace(first=0.0))

    async def play(problem: Problem, policy: Any) -> Rollout:
        if faults and (fault := faults.pop(0)) is not None:
            raise fault
        return episode(5, problem)

    playing = collected(tmp_path, play, rollout_retries=0, min_survivors=1)
    if kept:
        assert [len(group.rollouts) for group in (await playing).groups] == [kept]
    else:
        with pytest.raises(RequestRefused, match="refused every episode of step 1"):
            await playing
    assert not faults


async def test_an_episode_that_the_service_refuses_is_not_played_again(tmp_path: Path) -> None:
    asked = list[str]()

    async def play(problem: Problem, policy: Any) -> Rollout:
        asked.append(problem.id)
        raise RequestRefused("no")

    with pytest.raises(RequestRefused, match="refused every episode of step 1"):
        await collected(tmp_path, play, rollout_retries=3)
    assert len(asked) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
async def test_an_episode_whose_reward_is_not_finite_is_not_kept(tmp_path: Path, bad: float) -> None:
    async def play(problem: Problem, policy: Any) -> Rollout:
        return replace(episode(5, problem), reward=bad)

    with pytest.raises(ExceptionGroup):
        await collected(tmp_path, play)
    assert not list(tmp_path.iterdir())


async def test_an_episodes_seeds_are_those_of_the_run_its_name_and_the_turn(tmp_path: Path) -> None:
    seeds: list[int | None] = []

    async def play(problem: Problem, policy: Any) -> Rollout:
        seeds.append(policy.seed_of(1, None))
        return episode(5, problem)

    await collected(tmp_path, play, seed=5)
    assert seeds == [turn_seed(5, rollout_name(0, 0, member), 1) for member in range(2)]
    assert len({turn_seed(seed, name, turn) for seed in (5, 6) for name in "ab" for turn in (1, 2)}) == 8


def test_the_student_samples_within_the_limits_of_the_run() -> None:
    options, sampler = TrainOptions(max_tokens=300, max_trajectory_tokens=1000), object()
    limits = student_policy(sampler, options, temperature=0.7).options  # type: ignore[arg-type]
    assert (limits.temperature, limits.max_tokens, limits.max_context) == (0.7, 300, 1000)


async def test_episodes_that_submit_have_seeds_of_their_own_which_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    async def play(begun: Episode, policy: Any) -> None:
        seeds.append(begun.seed)
        raise SandboxLost("pulled the plug")

    monkeypatch.setattr(rollouts, "play", play)
    runtime: Any = SimpleNamespace(agents=object(), scorer=lambda *_, **__: object(), turn_budget=lambda *_: None)
    player = EpisodePlayer(TinkerEnvConfig(harness_feedback=2), get_renderer("qwen3"), runtime, 0)
    sampler: Any = object()
    for member in (0, 1, 0):
        drawn = partial(turn_seed, 0, rollout_name(0, 0, member))
        with pytest.raises(SandboxLost):
            await player(FIRST, student_policy(sampler, TrainOptions(), temperature=1.0, turn_seed=drawn))
    assert seeds[0] == seeds[2] != seeds[1]


def test_the_first_episode_of_a_problem_counts_and_is_read_back_whole(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    store.put(NAME, episode(5))
    store.put(NAME, episode(6))
    assert (found := store.get(NAME, FIRST.id)) is not None
    assert found.to_json() == episode(5).to_json()
    assert found.streams[0].tokens == episode(5).streams[0].tokens
    store.drop_before(3)
    assert store.get(NAME, FIRST.id) is not None
    store.drop_before(4)
    assert store.get(NAME, FIRST.id) is None


def test_an_episode_of_another_problem_or_version_does_not_count(tmp_path: Path) -> None:
    """A resumed run may choose other problems for a step, and must not train on the old ones under new names."""
    store = RolloutStore(tmp_path)
    store.put(NAME, episode(5))
    assert store.get(NAME, SECOND.id) is None
    store.put(NAME, episode(7, SECOND))
    assert store.get(NAME, FIRST.id) is None
    assert (found := store.get(NAME, SECOND.id)) is not None
    assert found.streams[0].tokens[2] == 7
    (tmp_path / f"{NAME}.json").write_text(json.dumps({"problem": FIRST.id, "transitions": []}))
    assert store.get(NAME, FIRST.id) is None


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_a_damaged_episode_is_played_again(tmp_path: Path, cut: int) -> None:
    store, file = RolloutStore(tmp_path), tmp_path / f"{NAME}.json"
    store.put(NAME, episode(5))
    whole = file.read_bytes()
    for damaged in (whole[:cut], bytes(len(whole)), b"null", whole.replace(b'"ids"', b'"di"')):
        file.write_bytes(damaged)
        assert store.get(NAME, FIRST.id) is None
    store.put(NAME, episode(6))
    assert (found := store.get(NAME, FIRST.id)) is not None
    assert found.streams[0].tokens == episode(6).streams[0].tokens
