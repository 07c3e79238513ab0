"""The data sent to the engine in a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from rtl_agent_gym.training.checkpointer import optimize, step_and_save  # noqa: E402
from rtl_agent_gym.training.datums import with_inputs  # noqa: E402
from rtl_agent_gym.training.options import TrainOptions  # noqa: E402


@dataclass
class Trainer:
    """Records the advantages or weights of each step, and answers with the log-probabilities or weights."""

    steps: list[list[float]] = field(default_factory=list)
    taken: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    """The shape of each input of the last step's data."""
    adam: list[Any] = field(default_factory=list)
    """The parameters of each step's optimizer."""

    async def forward_backward(self, data: list[Any], loss_fn: str) -> Any:
        name = "weights" if loss_fn == "cross_entropy" else "advantages"
        self.steps.append([value for one in data for value in one.loss_fn_inputs[name].to_torch().reshape(-1).tolist()])
        self.taken = [{key: tuple(value.shape) for key, value in one.loss_fn_inputs.items()} for one in data]
        outputs = [{"logprobs": one.loss_fn_inputs["logprobs" if name == "advantages" else name]} for one in data]
        return tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})

    async def optim_step(self, params: Any) -> Any:
        self.adam.append(params)
        return tinker.types.OptimStepResponse()

    async def save_weights_and_get_sampling_client(self) -> Any:
        return self


def datum(sampled: int) -> Any:
    ones = torch.ones(sampled)
    inputs = {
        "target_tokens": torch.ones(sampled, dtype=torch.int64), "logprobs": -ones, "advantages": ones, "mask": ones,
    }  # fmt: skip
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1] * sampled),
        loss_fn_inputs={name: tinker.TensorData.from_torch(values) for name, values in inputs.items()},
    )


@pytest.mark.parametrize("substeps", [1, 2, 3, 4])
async def test_each_optimizer_step_averages_over_its_own_tokens(substeps: int) -> None:
    trainer: Any = Trainer()
    options = TrainOptions(loss_fn="ppo", num_substeps=substeps, loss_reduction="mean")
    await optimize(trainer, [datum(n) for n in (1, 3, 10, 30)], 1e-3, options)
    assert len(trainer.steps) == substeps
    assert [sum(step) for step in trainer.steps] == pytest.approx([1.0] * substeps)
    assert sum(map(len, trainer.steps)) == 44, "no episode is lost"


async def test_a_sum_is_left_as_it_is() -> None:
    trainer: Any = Trainer()
    options = TrainOptions(loss_fn="ppo", num_substeps=2, loss_reduction="sum")
    await optimize(trainer, [datum(2), datum(4)], 1e-3, options)
    assert trainer.steps == [[1.0] * 2, [1.0] * 4]


async def test_the_optimizer_has_the_options_and_the_learning_rate_of_the_step() -> None:
    trainer: Any = Trainer()
    schedule: Any = {"learning_rate": 1.0, "lr_schedule": "linear", "num_steps": 11, "warmup_steps": 1}
    options = TrainOptions(**schedule, adam_beta2=0.5, grad_clip_norm=0.3)
    for step in (0, 10):
        await step_and_save(trainer, [datum(1)], options, step)
    assert [adam.learning_rate for adam in trainer.adam] == pytest.approx([0.5, 0.05])
    found = [(adam.beta1, adam.beta2, adam.eps, adam.grad_clip_norm) for adam in trainer.adam]
    assert found == [(0.9, 0.5, 1e-8, 0.3)] * 2


async def test_several_targets_are_one_cross_entropy_and_the_sampled_tokens_are_compared() -> None:
    trainer: Any = Trainer()
    wide = with_inputs(
        datum(4),
        target_tokens=torch.tensor([[1, 2], [1, 3], [1, 4], [1, 5]]),
        weights=torch.tensor([[-0.5, 0.5], [-0.75, 0.25], [0.0, 0.0], [-2.0, 1.0]]),
    )
    options = TrainOptions(reward_coef=0.0, kl_top_k=1, loss_reduction="mean")
    metrics = await optimize(trainer, [wide], 1e-3, options)
    assert trainer.steps == [[-0.125, 0.125, -0.1875, 0.0625, 0.0, 0.0, -0.5, 0.25]], (
        "the mean over four sampled tokens"
    )
    assert trainer.taken == [{"target_tokens": (4, 2), "weights": (4, 2)}]
    # Sampled with -1 each; the trainer answers with the weights. The third token is not trained, so not compared.
    assert metrics["optim/kl_sample_train_v1"] == pytest.approx(-1 + (0.125 + 0.1875 + 0.5) / 3)
    assert "sft/nll" not in metrics
