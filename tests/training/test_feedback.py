"""Submissions in a training run: their reward is in the total and affects the gradient; their metrics are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from data.bundled import wrong_designs  # noqa: E402
from rtl_agent_gym.policies import heredoc  # noqa: E402
from rtl_agent_gym.problems import load_problems  # noqa: E402
from tests.envs.scripted_tinker import END, call  # noqa: E402
from tests.training.scripted_run import STEPS, Scripted, make_plan, run  # noqa: E402

pytestmark = pytest.mark.docker
ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"


async def no_teacher(_: Any) -> dict[str, Any]:
    """The reward alone."""
    return {}


@pytest.mark.slow
async def test_progress_alone_tells_two_episodes_apart(tmp_path: Path) -> None:
    """Both leave the same files, so the final score is one; only one of them submitted a design on the way."""
    [problem] = load_problems("bundled", ids=[ARBITER])
    design = call("\n".join(heredoc(*file) for file in wrong_designs(ARBITER)["rst_n_for_reset"].items()))
    submits, waits = ([design, call(command), f"Done.{END}"] for command in ("submit", "true"))
    service: Any = Scripted([submits, waits])
    plan = make_plan(
        tmp_path, [problem], "harness_feedback=2", "progress_coef=0.7", "kl_penalty_coef=0", "teacher_model=none",
        "group_size=2", "baseline=group", f"num_steps={STEPS}", "reward_coef=1",
    )  # fmt: skip
    episode = plan.env_config(tmp_path).episode
    assert (episode.harness_feedback, episode.progress_coef) == (2, 0.7)
    folder = await run(plan, service, no_teacher)
    rows = folder.metrics()
    assert len(rows) == len(service.data) == STEPS
    for row, data in zip(rows, service.data, strict=True):
        assert row["env/all/submissions"] == 0.5
        assert row["env/all/progress_reward"] == pytest.approx(0.05)
        assert row["env/all/reward/total"] == pytest.approx(0.4 + 0.05)  # 0.4: there, and free of syntax errors
        assert row["advantage/abs_reward"] == pytest.approx(0.05)
        signs = [torch.sign(datum.loss_fn_inputs["advantages"].to_torch()).sum().item() for datum in data]
        assert len(signs) == 2
        assert signs[0] > 0 > signs[1]
