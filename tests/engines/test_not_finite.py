"""The local engine where numbers overflow: no step is taken with them, and no weight leaves the trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from safetensors.torch import load_file

from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.local import LocalServiceClient, LocalTrainingClient
from rtl_agent_gym.engines.sampling import draw
from rtl_agent_gym.engines.training import CheckedDatum, loss_of
from rtl_agent_gym.errors import NotFinite, UsageError

from .conftest import save_beside_tokenizer

IDS = [5, 6, 7, 8]
ADAM = tinker.AdamParams(learning_rate=1e-2)


def episode(logprob: float, advantage: float = 1.0) -> tinker.Datum:
    inputs: Any = {"target_tokens": IDS[1:], "logprobs": [logprob, -3.0, -3.0], "advantages": [advantage, 0.5, -0.5]}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs=inputs)


async def saved(trainer: LocalTrainingClient, name: str) -> dict[str, torch.Tensor]:
    return load_file(Path((await trainer.save_state(name)).path) / "model.safetensors")


async def test_a_step_with_an_importance_weight_that_overflows_is_not_taken(
    service: LocalServiceClient, model_path: Path
) -> None:
    trainer, other = [await service.create_lora_training_client(str(model_path), rank=0) for _ in range(2)]
    before = await saved(trainer, "before")
    gradient = trainer.forward_backward([episode(-200.0)], "importance_sampling")
    step = trainer.optim_step(ADAM)  # sent before the loss is known
    assert math.isinf((await gradient).metrics["loss:sum"])
    with pytest.raises(NotFinite, match=r"the gradient is not finite \(in model\."):
        await step
    after = await saved(trainer, "after")
    assert all(torch.equal(after[name], before[name]) for name in before)
    for one in (trainer, other):  # of the refused gradient nothing is left, nor of the optimizer's state
        await one.forward_backward([episode(-3.0)], "importance_sampling")
        await one.optim_step(ADAM)
    first, second = await saved(trainer, "first"), await saved(other, "second")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("ratio", [2.0, 60.0, 200.0])
def test_ppo_clips_a_ratio_of_any_size(ratio: float) -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    inputs = {"logprobs": torch.tensor([-1.0 - ratio, -1.0]), "advantages": torch.tensor([3.0, 2.0])}
    options = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    loss = loss_of("ppo", logprobs, CheckedDatum([1, 2], torch.tensor([2, 3]), inputs), options)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.2 * 3 + 2))
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, -2.0]
    inputs["advantages"] = torch.tensor([-3.0, 2.0])  # where PPO does not clip
    refused = loss_of("ppo", logprobs, CheckedDatum([1, 2], torch.tensor([2, 3]), inputs), options).item()
    assert math.isinf(refused) == (ratio > 89)


def test_an_impossible_token_without_weight_has_no_loss() -> None:
    logprobs = torch.tensor([-math.inf, -1.0], requires_grad=True)
    example = CheckedDatum([1, 2], torch.tensor([2, 3]), {"weights": torch.tensor([0.0, 1.0])})
    loss = loss_of("cross_entropy", logprobs, example, {})
    loss.backward()
    assert loss.item() == 1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, -1.0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_no_weights_that_are_not_finite_leave_the_trainer(tmp_path: Path, model_path: Path, dtype: str) -> None:
    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path, dtype=dtype)) as service:
        trainer = await service.create_lora_training_client(str(model_path), rank=0)
        good = (await trainer.save_state("good")).path
        await trainer.forward_backward([episode(-3.0)], "importance_sampling")
        await trainer.optim_step(tinker.AdamParams(learning_rate=math.inf))
        for leave in (
            lambda: trainer.save_state("spoiled"),
            lambda: trainer.save_weights_for_sampler("spoiled"),
            trainer.save_weights_and_get_sampling_client,
        ):
            with pytest.raises(NotFinite, match=r"the weights are not finite \(in model\."):
                await leave()
        assert not list(tmp_path.rglob("*spoiled*"))
        again = await service.create_training_client_from_state_with_optimizer(good)
        await again.save_weights_and_get_sampling_client()


async def test_nothing_is_sampled_from_an_output_that_is_not_finite(
    service: LocalServiceClient, model_path: Path, tmp_path: Path
) -> None:
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(model_path)
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    path = save_beside_tokenizer(model, tmp_path / "damaged", model_path)
    sampler = await service.create_sampling_client(base_model=str(path))
    prompt = tinker.ModelInput.from_ints(IDS)
    with pytest.raises(NotFinite, match="the model's output is NaN or infinite"):
        await sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=4, seed=1))
    with pytest.raises(UsageError, match="temperature must be a finite number"):
        await sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=4, temperature=math.inf))
    excluded = torch.tensor([[0.0, -math.inf, 1.0]])  # a token that cannot be drawn is no fault
    assert draw(excluded, [tinker.SamplingParams(temperature=1.0)], [0.9])[0] == [2]
