"""What a step's episodes came to, in numbers."""

from __future__ import annotations

from typing import Any

from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.types import TrajectoryGroup

from .rollouts import Batch


def batch_metrics(batch: Batch, seconds: float) -> dict[str, Any]:
    """The metrics of a batch that was played in so many seconds."""
    metrics: dict[str, Any] = compute_trajectory_metrics(
        batch.groups, [builder.logging_tags() for builder in batch.builders]
    )
    passed = [passes(group) for group in batch.groups]
    everything = [one for group_passed in passed for one in group_passed]
    metrics |= {
        "pass_rate": sum(everything) / max(1, len(everything)),
        "time/sample": seconds,
        "tokens_per_second": metrics["env/all/total_ac_tokens"] / max(1e-9, seconds),
        "rollouts/groups_dropped": batch.dropped,
        "rollouts/faults": batch.faults,
    }
    if len(set(batch.problems)) > 1:
        for problem, group_passed in zip(batch.problems, passed, strict=True):
            metrics[f"pass_rate/{problem}"] = sum(group_passed) / max(1, len(group_passed))
    return metrics


def passes(group: TrajectoryGroup) -> list[float]:
    """For each episode of a group, 1 if it passed the hidden tests and 0 if not."""
    return [
        max((float(step.metrics.get("tests_passed", 0.0)) for step in trajectory.transitions), default=0.0)
        for trajectory in group.trajectories_G
    ]
