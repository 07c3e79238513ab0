"""A training step: a group of episodes, rewards, advantages, a gradient; the models run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extras train and local are not installed")

from rtl_agent_gym.demo.shipped import SMALL
from rtl_agent_gym.training.launch import train


@pytest.mark.docker
def test_a_training_step(tmp_path: Path) -> None:
    options = {
        "engine": "local",
        "student_model": "small",  # 2 MB, in the package; any folder or name on the hub works
        "log_path": str(tmp_path / "run"),
        "num_steps": 1,
        "group_size": 4,
        "baseline": "none",  # so that a gradient flows even if all four earn the same
        "held_out": "none",
        "eval_every": 0,
    }
    outcome = train(options, rl=True, recipes=[SMALL])
    [row] = outcome.metrics
    assert row["env/all/total_episodes"] == 4
    assert row["optim/unclipped_grad_l2:mean"] > 0.0
    assert abs(row["optim/kl_sample_train_v1"]) < 1e-5  # the trainer computes what the sampler sampled

    files = {path.name for path in outcome.folder.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints.jsonl", "report.html"} <= files
    assert len(list((outcome.folder / "transcripts").glob("*.jsonl"))) == 4  # each episode, readable
