"""The data sent to the engine in a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from rtl_agent_gym.training.options import TrainOptions  # noqa: E402
from rtl_agent_gym.training.step import optimize  # noqa: E402


@dataclass
class Trainer:
    """Records the advantages of each step."""

    steps: list[list[float]] = field(default_factory=list)

    async def forward_backward(self, data: list[Any], loss_fn: str) -> Any:
        self.steps.append([value for one in data for value in one.loss_fn_inputs["advantages"].data])
        outputs = [{"logprobs": one.loss_fn_inputs["logprobs"]} for one in data]
        return tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})

    async def optim_step(self, params: Any) -> Any:
        return tinker.types.OptimStepResponse()


def datum(sampled: int) -> Any:
    ones = torch.ones(sampled)
    inputs = {
        "target_tokens": torch.ones(sampled, dtype=torch.int64), "logprobs": -ones, "advantages": ones, "mask": ones,
    }  # fmt: skip
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1] * sampled),
        loss_fn_inputs={name: tinker.TensorData.from_torch(values) for name, values in inputs.items()},
    )


@pytest.mark.parametrize("substeps", [1, 2, 4])
async def test_each_optimizer_step_averages_over_its_own_tokens(substeps: int) -> None:
    trainer: Any = Trainer()
    options = TrainOptions(loss_fn="ppo", num_substeps=substeps, loss_reduction="mean")
    await optimize(trainer, [datum(n) for n in (1, 3, 10, 30)], 1e-3, options)
    assert len(trainer.steps) == substeps
    assert [sum(step) for step in trainer.steps] == pytest.approx([1.0] * substeps)


async def test_a_sum_is_left_as_it_is() -> None:
    trainer: Any = Trainer()
    options = TrainOptions(loss_fn="ppo", num_substeps=2, loss_reduction="sum")
    await optimize(trainer, [datum(2), datum(4)], 1e-3, options)
    assert trainer.steps == [[1.0] * 2, [1.0] * 4]
