"""Submissions in a training run: their reward is in the total and reaches the gradient; their metrics are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from rtl_agent_gym.envs.tinker_env import CVDPEnvGroupBuilder  # noqa: E402
from rtl_agent_gym.policies import heredoc  # noqa: E402
from rtl_agent_gym.problems import load_problems  # noqa: E402
from rtl_agent_gym.problems.bundled import wrong_designs  # noqa: E402
from rtl_agent_gym.training.checks import Plan  # noqa: E402
from rtl_agent_gym.training.episodes import step_key  # noqa: E402
from rtl_agent_gym.training.folder import RunFolder  # noqa: E402
from rtl_agent_gym.training.loop import Loop, Parts  # noqa: E402
from rtl_agent_gym.training.options import parse_options  # noqa: E402
from rtl_agent_gym.training.progress import Progress  # noqa: E402
from rtl_agent_gym.training.rollouts import turn_seed  # noqa: E402
from rtl_agent_gym.training.run import Models, env_config  # noqa: E402
from tests.envs.scripted_tinker import END, LOGPROB, call, encode  # noqa: E402

pytestmark = pytest.mark.docker
ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
STEPS = 2


@dataclass
class Scripted:
    """Tinker's service with scripts in the model's place: each member of a group says its own."""

    scripts: list[list[str]]
    data: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.texts = {
            turn_seed(0, step_key(step, 0, member), turn): text
            for step in range(STEPS)
            for member, script in enumerate(self.scripts)
            for turn, text in enumerate(script, 1)
        }

    async def save_weights_and_get_sampling_client(self) -> Scripted:
        return self

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        ids = encode(self.texts[sampling_params.seed])
        said = tinker.SampledSequence(
            stop_reason="stop", sequence_id="0", tokens_np=np.array(ids), logprobs_np=np.full(len(ids), LOGPROB)
        )
        return tinker.SampleResponse(sequences=[said])

    async def forward_backward(self, data: list[Any], loss_fn: str) -> Any:
        self.data.append(data)
        outputs = [{"logprobs": datum.loss_fn_inputs["logprobs"]} for datum in data]
        return tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})

    async def optim_step(self, params: Any) -> Any:
        return tinker.types.OptimStepResponse()

    async def save_state(self, name: str) -> Any:
        return tinker.types.SaveWeightsResponse(path=f"state/{name}")

    async def save_weights_for_sampler(self, name: str) -> Any:
        return tinker.types.SaveWeightsForSamplerResponse(path=f"sampler/{name}")

    async def delete(self, path: str) -> None:
        pass


async def test_progress_alone_tells_two_episodes_apart(tmp_path: Path) -> None:
    """Both leave the same files, so the final score is one; only one of them submitted a design on the way."""
    [problem] = load_problems("bundled", ids=[ARBITER])
    design = call("\n".join(heredoc(*file) for file in wrong_designs(ARBITER)["rst_n_for_reset"].items()))
    submits, waits = ([design, call(command), f"Done.{END}"] for command in ("submit", "true"))
    service: Any = Scripted([submits, waits])
    options = parse_options(
        ["harness_feedback=2", "progress_coef=0.7", "kl_penalty_coef=0", "teacher_model=none", "group_size=2",
         "baseline=group", f"num_steps={STEPS}", f"log_path={tmp_path}", "eval_every=0", "reward_coef=1"]
    )  # fmt: skip
    folder = RunFolder(tmp_path)
    folder.open(options.model_dump(mode="json"), "resume")
    plan = Plan(options, "local", [problem], "qwen3")
    config = env_config(plan, folder, Models("s", None, "Qwen/Qwen3-8B", "qwen3", None, None))
    assert (config.episode.harness_feedback, config.episode.progress_coef) == (2, 0.7)
    try:
        with Progress(STEPS) as progress:
            make_group = lambda problem, size: CVDPEnvGroupBuilder(problem, config, size, 0)  # noqa: E731
            await Loop(options, Parts(service, service, None, [problem], make_group, folder, progress)).run()
    finally:
        folder.close()
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
