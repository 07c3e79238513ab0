"""Episodes that a run keeps until its next checkpoint."""

from __future__ import annotations

from pathlib import Path

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, Transition

from rtl_agent_gym.training.rollout_store import RolloutStore, rollout_name


def episode(*tokens: int) -> Trajectory:
    step = Transition(
        ob=tinker.ModelInput.from_ints([1, 2]),
        ac=TokensWithLogprobs(list(tokens), [-0.5] * len(tokens), "stop"),
        reward=1.0,
        episode_done=True,
    )
    return Trajectory([step], tinker.ModelInput.from_ints([1, 2, *tokens]), "stop")


def test_the_first_episode_of_a_problem_counts(tmp_path: Path) -> None:
    store, name = RolloutStore(tmp_path), rollout_name(3, 0, 1)
    store.put(name, "a", episode(5))
    store.put(name, "a", episode(6))
    assert (found := store.get(name, "a")) is not None
    assert found.transitions[0].ac.tokens == [5]
    store.drop_before(4)
    assert store.get(name, "a") is None


def test_an_episode_of_another_problem_does_not_count(tmp_path: Path) -> None:
    """A resumed run may choose other problems for a step, and must not train on the old ones under new names."""
    store, name = RolloutStore(tmp_path), rollout_name(3, 0, 1)
    store.put(name, "a", episode(5))
    assert store.get(name, "b") is None
    store.put(name, "b", episode(7))
    assert store.get(name, "a") is None
    assert (found := store.get(name, "b")) is not None
    assert found.transitions[0].ac.tokens == [7]
