"""Keeps graded episodes on disk, so that a resumed run does not play them again.

One file per episode, written atomically, and kept until its step is in a checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, Transition

from .run_folder import write_atomically

PREFIX = "step-"


def rollout_name(step: int, group: int, member: int) -> str:
    """The name of an episode of a step."""
    return f"{PREFIX}{step:06d}-{group:03d}-{member:03d}"


class RolloutStore:
    """The episodes of current steps, in a folder that is created if missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, problem_id: str) -> Trajectory | None:
        """The episode with this name, or None. One of another problem does not count: a resumed run chose anew."""
        try:
            found = json.loads(self._path(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return _from_json(found) if found.get("problem", problem_id) == problem_id else None

    def put(self, name: str, problem_id: str, trajectory: Trajectory) -> None:
        """Save an episode, unless there is one with this name and problem: the first counts."""
        if self.get(name, problem_id) is None:
            write_atomically(self._path(name), json.dumps({"problem": problem_id, **_to_json(trajectory)}))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def drop_before(self, step: int) -> None:
        """Delete the episodes of steps before `step`."""
        for path in self._folder.glob(f"{PREFIX}*"):
            number = path.name.removeprefix(PREFIX)[:6]
            if number.isdigit() and int(number) < step:
                path.unlink(missing_ok=True)


def _to_json(trajectory: Trajectory) -> dict[str, Any]:
    """As JSON, with only the new tokens of each observation, so that the size is linear in the episode's length."""
    rows: list[dict[str, Any]] = []
    before: list[int] = []
    for transition in trajectory.transitions:
        tokens = transition.ob.to_ints()
        extends = bool(before) and tokens[: len(before)] == before
        rows.append(
            {
                "extends": extends,
                "ob": tokens[len(before) :] if extends else tokens,
                "ac": list(transition.ac.tokens),
                "logprobs": transition.ac.maybe_logprobs,
                "stop": transition.ac.stop_reason,
                "reward": transition.reward,
                "done": transition.episode_done,
                "metrics": transition.metrics,
                "logs": transition.logs,
            }
        )
        before = [*tokens, *transition.ac.tokens]
    return {"transitions": rows, "final": trajectory.final_ob.to_ints(), "stop_reason": trajectory.stop_reason}


def _from_json(found: dict[str, Any]) -> Trajectory:
    transitions: list[Transition] = []
    before: list[int] = []
    for row in found["transitions"]:
        tokens = [*before, *row["ob"]] if row["extends"] else row["ob"]
        transitions.append(
            Transition(
                ob=tinker.ModelInput.from_ints(tokens),
                ac=TokensWithLogprobs(row["ac"], row["logprobs"], row["stop"]),
                reward=row["reward"],
                episode_done=row["done"],
                metrics=row["metrics"],
                logs=row["logs"],
            )
        )
        before = [*tokens, *row["ac"]]
    return Trajectory(transitions, tinker.ModelInput.from_ints(found["final"]), found["stop_reason"])
