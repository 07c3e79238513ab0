"""Which problems a step works on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook")

from rtl_agent_gym.envs.problem_order import ALL_BY, Batches, WideningSampler
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.plan import Plan
from tests.training.scripted_run import make_plan

RANKS = {"easy": 0, "medium": 1, "hard": 2}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return load_problems("bundled")


def made(problems: Sequence[Problem], curriculum: Any, num_steps: int = 1000, **options: Any) -> Batches:
    """The problems of a run with these options."""
    chosen = TrainOptions(curriculum=curriculum, num_steps=num_steps, **options)
    return Plan(chosen, "local", list(problems), [], "", None, "").batches()


def test_the_runs_seed_decides_the_order(problems: list[Problem]) -> None:
    first, again, other = (made(problems, "none", batch_size=7, seed=seed).choose(4) for seed in (3, 3, 4))
    assert first == again != other


def test_the_easy_ones_come_first(problems: list[Problem]) -> None:
    dataset = made(problems, "difficulty", batch_size=2, num_steps=30)
    sampler = dataset.problem_sampler
    assert isinstance(sampler, WideningSampler)
    ranks = [[RANKS[one.difficulty] for one in sampler.pool(step)] for step in range(30)]
    assert max(ranks[0]) <= min(RANKS[one.difficulty] for one in problems if one not in sampler.pool(0))
    assert all(len(before) <= len(after) for before, after in pairwise(ranks))
    assert len(ranks[0]) < len(problems) == len(ranks[int(ALL_BY * 30)])
    assert {one.id for step in range(10) for one in dataset.choose(step)} <= {one.id for one in sampler.pool(9)}


def test_what_is_sometimes_solved_comes_most(problems: list[Problem]) -> None:
    always, sometimes, never = (one.id for one in problems[:3])
    dataset = made(problems[:3], "pass_rate", batch_size=1)
    for _ in range(20):
        dataset.learn(always, [1, 1])
        dataset.learn(sometimes, [1, 0])
        dataset.learn(never, [0, 0])
    chosen = Counter(dataset.choose(step)[0].id for step in range(400))
    assert chosen[sometimes] > 3 * max(chosen[always], chosen[never])
    assert min(chosen.values()) > 10  # none is forgotten


@pytest.mark.parametrize("kind", ["pass_rate", "edge"])
def test_a_restored_curriculum_chooses_as_it_would_have(problems: list[Problem], kind: str) -> None:
    first = made(problems, kind, batch_size=4)
    for number, one in enumerate(problems):
        first.learn(one.id, [number % 2, 1])
    second = made(problems, kind, batch_size=4)
    untaught = [second.choose(step) for step in range(8)]
    second.problem_sampler.restore(json.loads(json.dumps(first.problem_sampler.state())))
    assert [second.choose(step) for step in range(8)] == [first.choose(step) for step in range(8)] != untaught


def abilities(problems: Sequence[Problem]) -> dict[str, float]:
    """For each problem how often a student solves it: a third never, a third always, the others in between."""
    chances = [0.0, 1.0, 0.5]
    return {one.id: chances[number % 3] for number, one in enumerate(problems)}


def off_the_edge(dataset: Batches, solves: dict[str, float], steps: range) -> float:
    """Play groups of 8 and return how far their pass rates are from one half on average."""
    rng, distances = Random(5), []
    for step in steps:
        for problem in dataset.choose(step):
            passed = [float(rng.random() < solves[problem.id]) for _ in range(8)]
            dataset.learn(problem.id, passed)
            distances.append(abs(sum(passed) / 8 - 0.5))
    return sum(distances) / len(distances)


def test_the_edge_keeps_groups_near_one_half(problems: list[Problem]) -> None:
    solves = abilities(problems)
    kinds = ("none", "pass_rate", "edge")
    distance = {kind: off_the_edge(made(problems, kind, batch_size=2), solves, range(100)) for kind in kinds}
    assert distance["edge"] < 0.2 < 0.3 < distance["none"]
    assert distance["edge"] < distance["pass_rate"]


def test_the_edge_moves_with_the_student(problems: list[Problem]) -> None:
    """What was never solved is tried again now and then, so that a student who has learned it is noticed."""
    dataset, solves = made(problems, "edge", batch_size=2), abilities(problems)
    off_the_edge(dataset, solves, range(60))
    better = {name: {0.0: 0.5, 0.5: 1.0, 1.0: 1.0}[chance] for name, chance in solves.items()}
    off_the_edge(dataset, better, range(60, 160))
    chosen = Counter(one.id for step in range(160, 260) for one in dataset.choose(step))
    now_half = sum(count for name, count in chosen.items() if better[name] == 0.5)
    assert now_half > 0.6 * sum(chosen.values())


def test_more_are_asked_for_than_there_are(problems: list[Problem]) -> None:
    for kind in ("none", "difficulty", "pass_rate", "edge"):
        assert len(made(problems[:3], kind, batch_size=7, num_steps=1).choose(0)) == 7


def test_the_order_of_a_run_is_that_of_its_seed(tmp_path: Path) -> None:
    problems = load_problems("family:timers?count=12")
    plans = [make_plan(tmp_path, problems, "batch_size=12", f"seed={seed}") for seed in (1, 1, 2)]
    first, same, other = ([problem.id for problem in plan.batches().choose(0)] for plan in plans)
    assert first == same != other


def test_an_episode_of_a_run_is_no_longer_than_the_students_context(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, load_problems("bundled")[:1], "max_trajectory_tokens=100")
    longest = [plan.env_config(tmp_path, context).episode.max_trajectory_tokens for context in (None, 60, 200)]
    assert longest == [100, 60, 100]
