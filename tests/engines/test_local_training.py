"""The local engine's training: gradients, precision and checkpoints."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import tinker
import torch
import transformers

from rtl_agent_gym.engines import models, training
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.connect import local_engine
from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient
from rtl_agent_gym.engines.requests import context_length
from rtl_agent_gym.engines.training import MASTERS, METADATA, score
from rtl_agent_gym.errors import SandboxError, UsageError

from .conftest import KINDS, datum, make_model, model_of, prompt_of, save_beside_tokenizer, step


def textbook(loss_fn: str, logprobs: torch.Tensor, inputs: dict[str, list[float]]) -> torch.Tensor:
    """The losses as defined in the papers, token by token."""
    loss = torch.zeros((), dtype=logprobs.dtype)
    for index, logprob in enumerate(logprobs):
        if loss_fn == "cross_entropy":
            loss = loss - inputs["weights"][index] * logprob
            continue
        ratio, advantage = torch.exp(logprob - inputs["logprobs"][index]), inputs["advantages"][index]
        gain = ratio * advantage
        if loss_fn == "ppo":
            gain = torch.min(gain, torch.clamp(ratio, 0.9, 1.3) * advantage)
        loss = loss - gain
    return loss


@pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling", "ppo"])
async def test_the_gradient_is_that_of_the_textbook_loss(
    service: LocalServiceClient, model_path: Path, loss_fn: str
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=0)
    rng = random.Random(1)
    outputs: list[Any] = []
    data, expected = [], transformers.AutoModelForCausalLM.from_pretrained(model_path).double()
    for length in (9, 30, 17):  # of different lengths, so that padding plays a part
        ids = prompt_of(length, seed=length)
        inputs: dict[str, list[float]]
        if loss_fn == "cross_entropy":
            inputs = {"weights": [rng.choice([0.0, rng.random()]) for _ in ids[1:]]}
        else:
            # Around the policy's own values, so that ratios fall inside and outside the clipping range.
            logits = expected(input_ids=torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
            own = logits.gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1).tolist()
            inputs = {
                "logprobs": [value + rng.uniform(-0.5, 0.5) for value in own],
                "advantages": [rng.choice([0.0, rng.uniform(-1, 1)]) for _ in own],
            }
            for index in range(0, len(own), 3):  # was not sampled
                inputs["logprobs"][index] = inputs["advantages"][index] = 0.0
        data.append(datum(ids, **inputs))
        logits = expected(input_ids=torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        logprobs = logits.gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1)
        textbook(loss_fn, logprobs, inputs).backward()
        computed = torch.tensor(inputs.get("logprobs", inputs.get("weights"))) != 0
        outputs.append(torch.where(computed, logprobs, 0.0).detach().float())
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3} if loss_fn == "ppo" else None
    found = [await trainer.forward_backward(part, loss_fn, config) for part in (data[:2], data[2:])]
    returned = [output["logprobs"].to_torch() for outcome in found for output in outcome.loss_fn_outputs]
    torch.testing.assert_close(returned, outputs, atol=1e-5, rtol=1e-5)
    gradients = await trainer.gradients()
    wanted: dict[str, Any] = {name: weight.grad for name, weight in expected.named_parameters()}
    assert set(gradients) == set(wanted)
    for name, gradient in gradients.items():
        assert wanted[name] is not None
        scale = wanted[name].abs().max()
        assert (gradient - wanted[name]).abs().max() <= 1e-5 * max(float(scale), 1.0), name


async def test_with_all_tokens_as_targets_the_gradient_is_that_of_the_kl(
    service: LocalServiceClient, model_path: Path
) -> None:
    """Σ_k q_k · log(q_k / p_k) over the whole vocabulary; one datum has no weights at its end, one has one target."""
    trainer = await service.create_lora_training_client(str(model_path), rank=0)
    expected = transformers.AutoModelForCausalLM.from_pretrained(model_path).double()
    data, vocabulary = [], expected.config.vocab_size
    for length, trained in ((9, 6), (14, 13)):
        ids = prompt_of(length, seed=length)
        teacher = torch.randn(length - 1, vocabulary, generator=torch.Generator().manual_seed(length)).softmax(-1)
        teacher[trained:] = 0.0
        targets = torch.arange(vocabulary).expand(length - 1, vocabulary)
        logits = expected(input_ids=torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        torch.nn.functional.kl_div(logits[:trained], teacher[:trained].double(), reduction="sum").backward()
        inputs = {"target_tokens": targets.contiguous(), "weights": teacher}
        data.append(tinker.Datum(
            model_input=tinker.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={name: tinker.TensorData.from_torch(values) for name, values in inputs.items()},
        ))  # fmt: skip
    single = datum(prompt_of(5, seed=5), weights=[1.0] * 4)
    logits = expected(input_ids=torch.tensor([prompt_of(5, seed=5)[:-1]])).logits[0].log_softmax(-1)
    (-logits.gather(-1, torch.tensor(prompt_of(5, seed=5)[1:]).unsqueeze(-1)).sum()).backward()
    outcome = await trainer.forward_backward([*data, single], "cross_entropy")
    shapes = [tuple(output["logprobs"].shape or ()) for output in outcome.loss_fn_outputs]
    assert shapes == [(8, vocabulary), (13, vocabulary), (4,)]
    gradients = await trainer.gradients()
    for name, weight in expected.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(gradients[name].double(), weight.grad, atol=1e-5, rtol=1e-4)


async def test_the_most_likely_tokens_of_a_prompt_are_the_models(
    sampler: LocalSamplingClient, service: LocalServiceClient, model_path: Path
) -> None:
    ids = prompt_of(12, seed=3)
    once = tinker.SamplingParams(max_tokens=1)
    found = await sampler.sample(tinker.ModelInput.from_ints(ids), 1, once, True, topk_prompt_logprobs=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path).double()
    best = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1).topk(3)
    assert found.topk_prompt_logprobs is not None
    assert found.topk_prompt_logprobs[0] is None
    tokens = [[token for token, _ in place or ()] for place in found.topk_prompt_logprobs[1:]]
    assert tokens == best.indices.tolist()
    values = [[logprob for _, logprob in place or ()] for place in found.topk_prompt_logprobs[1:]]
    torch.testing.assert_close(torch.tensor(values).double(), best.values, atol=1e-5, rtol=1e-5)
    assert found.prompt_logprobs == pytest.approx(await sampler.compute_logprobs(tinker.ModelInput.from_ints(ids)))
    assert not found.sequences
    assert not service.scheduler._tables  # whose rows take gigabytes with a large teacher


async def test_padding_and_the_size_of_batches_change_no_gradient(model_path: Path) -> None:
    data = [datum(prompt_of(length, length)) for length in (5, 40, 12, 3)]
    found = []
    for batch_tokens in (1, 64, 10_000):
        with LocalServiceClient(LocalEngineConfig(batch_tokens=batch_tokens)) as service:
            trainer = await service.create_lora_training_client(str(model_path), rank=4, seed=0)
            outcome = await trainer.forward_backward(data, "cross_entropy")
            assert [len(output["logprobs"].to_numpy()) for output in outcome.loss_fn_outputs] == [4, 39, 11, 2]
            found.append(await trainer.gradients())
    for other in found[1:]:
        for name, gradient in other.items():
            torch.testing.assert_close(gradient, found[0][name], atol=1e-5, rtol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_prompt_is_scored_in_pieces(
    service: LocalServiceClient, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The output layer computes a bounded number of tokens at once, what precedes it all of them once."""
    trainer = await service.create_lora_training_client(str(model_of(kind, tmp_path, model_path)), rank=2)
    weights = (await trainer.save_weights_and_get_sampling_client())._weights
    rows, passes = list[int](), list[int]()
    weights.module.get_output_embeddings().register_forward_hook(lambda *given: rows.append(given[2].shape[-2]))
    weights.module.get_input_embeddings().register_forward_hook(lambda *_: passes.append(1))
    ids = prompt_of(100)
    for top in (0, 3):
        whole = await service.submit(partial(score, weights, ids, top))
        with monkeypatch.context() as patch:
            patch.setattr(training, "SCORED", 32)
            pieces = await service.submit(partial(score, weights, ids, top))
        assert (rows, len(passes)) == ([99, 32, 32, 32, 3], 2)
        rows.clear()
        passes.clear()
        assert whole.logprobs[0] is pieces.logprobs[0] is None
        assert pieces.logprobs[1:] == pytest.approx(whole.logprobs[1:], abs=1e-5)
        for found, wanted in zip((pieces.top or [])[1:], (whole.top or [])[1:], strict=True):
            assert [token for token, _ in found or ()] == [token for token, _ in wanted or ()] != []
            assert [value for _, value in found or ()] == pytest.approx([value for _, value in wanted or ()], abs=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "rank"), [*((kind, 4) for kind in KINDS), ("qwen3", 0)])
async def test_a_common_beginning_is_computed_once_and_changes_no_gradient(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rank: int
) -> None:
    """Of these three, 50 tokens are the same and 45 are not trained on; the shortest has 48.

    The output layer computes a bounded number of tokens at once.
    """
    path, begin, found, computed = model_of(kind, tmp_path, model_path), prompt_of(50), [], []
    texts = [begin + prompt_of(30, 1), begin + prompt_of(11, 2), begin[:48]]
    data = [datum(ids, weights=[0.0] * 45 + [0.5 + number] * (len(ids) - 46)) for number, ids in enumerate(texts)]
    most = training.SCORED
    for batch_tokens, checkpointing, scored in (
        (1, False, most), (10_000, False, most), (10_000, True, most), (10_000, False, 8), (10_000, True, 8)
    ):  # fmt: skip
        monkeypatch.setattr(training, "SCORED", scored)
        config = LocalEngineConfig(batch_tokens=batch_tokens, gradient_checkpointing=checkpointing)
        with LocalServiceClient(config) as service:
            trainer = await service.create_lora_training_client(str(path), rank=rank, seed=0)
            sizes, rows, module = list[int](), list[int](), trainer._training.module
            embeddings, output = module.get_input_embeddings(), module.get_output_embeddings()
            embeddings.register_forward_pre_hook(lambda _, given, sizes=sizes: sizes.append(given[0].numel()))
            output.register_forward_hook(lambda *given, rows=rows: rows.append(given[2].shape[-2]))
            outcome = await trainer.forward_backward(data, "cross_entropy")
            computed.append(sum(sizes))
            assert max(rows) <= scored
            found.append((outcome, await trainer.gradients()))
            alike = [datum(begin, weights=[0.0] * 49)] * 2  # none of it is trained on, and all of it is shared
            assert (await trainer.forward_backward(alike, "cross_entropy")).metrics["loss:sum"] == 0.0
    assert computed == [79 + 60 + 47, 45 + 3 * (79 - 45), 3 * 79, 45 + 3 * (79 - 45), 3 * 79]
    for outcome, gradients in found[1:]:
        for output, expected in zip(outcome.loss_fn_outputs, found[0][0].loss_fn_outputs, strict=True):
            assert output["logprobs"].data == pytest.approx(expected["logprobs"].data, abs=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], atol=1e-4, rtol=1e-4)


async def test_all_weights_can_be_trained_saved_and_read_by_transformers(
    service: LocalServiceClient, model_path: Path
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=0)
    ids = prompt_of(30)
    for _ in range(2):
        await step(trainer, [datum(ids)])
    assert trainer.get_info().is_lora is False
    path = (await trainer.save_state("full")).path
    sampler = await trainer.save_weights_and_get_sampling_client()
    wanted = await sampler.compute_logprobs(tinker.ModelInput.from_ints(ids))
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    found = logits.gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1).tolist()
    assert found == pytest.approx(wanted[1:], abs=1e-5)
    again = await service.create_training_client_from_state_with_optimizer(path)
    restored = await again.save_weights_and_get_sampling_client()
    assert await restored.compute_logprobs(tinker.ModelInput.from_ints(ids)) == wanted


async def test_all_weights_can_be_used_without_the_model_that_they_began_with(tmp_path: Path, model_path: Path) -> None:
    """Its folder may be moved with the run, or be in an environment that is made anew."""
    model, config = tmp_path / "model", LocalEngineConfig(checkpoint_dir=tmp_path / "checkpoints")
    shutil.copytree(model_path, model)
    data = [datum(prompt_of(30))]
    with LocalServiceClient(config) as service:
        trainer = await service.create_lora_training_client(str(model), rank=0)
        await step(trainer, data)
        path = (await trainer.save_state("one")).path
        expected = [await step(trainer, data), await step(trainer, data)]
        end_ids = trainer._training.base.end_ids
    shutil.move(model, tmp_path / "moved")
    with LocalServiceClient(config) as service:
        again = await service.create_training_client_from_state_with_optimizer(path)
        assert await step(again, data) == expected[0]
        later = (await again.save_state("two")).path
        shutil.rmtree(path)  # a run keeps only its last checkpoints
    with LocalServiceClient(config) as service:
        again = await service.create_training_client_from_state_with_optimizer(later)
        assert await step(again, data) == expected[1]
        assert again._training.base.end_ids == end_ids
        sampler = await service.create_sampling_client(model_path=later)
        assert sampler.get_tokenizer().get_vocab()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings", [{"temperature": 0.6, "top_p": 0.9}, {"pad_token_id": -1}, {"length_penalty": 2.0}]
)
async def test_settings_that_transformers_reads_and_does_not_write_stop_no_checkpoint(
    service: LocalServiceClient, model_path: Path, tmp_path: Path, settings: dict[str, float]
) -> None:
    path = tmp_path / "model"
    shutil.copytree(model_path, path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 7], **settings}))
    trainer = await service.create_lora_training_client(str(path), rank=0)
    assert trainer._training.base.end_ids == (256, 7)
    again = await service.create_training_client_from_state((await trainer.save_state("one")).path)
    saved = Path((await again.save_state("two")).path) / "generation_config.json"
    assert json.loads(saved.read_text())["eos_token_id"] == [256, 7]


@pytest.mark.parametrize(("rank", "device"), [(4, "cpu"), (4, "cuda:0"), (0, "cuda:0")])
async def test_a_trainer_from_a_checkpoint_goes_back_to_what_was_saved(
    service: LocalServiceClient, model_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, device: str
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=rank)
    data = [datum(prompt_of(30))]
    await step(trainer, data)
    with monkeypatch.context() as patched:  # as saved where the optimizer's state is on that device
        patched.setattr(torch.serialization, "location_tag", lambda storage: device)
        path = (await trainer.save_state("one")).path
    first = [await step(trainer, data), await step(trainer, data)]
    again = await service.create_training_client_from_state_with_optimizer(path)
    assert [await step(again, data), await step(again, data)] == first
    without = await service.create_training_client_from_state(path)
    assert [await step(without, data), await step(without, data)] != first


async def test_saved_adapters_are_read_to_the_device_of_the_model(
    service: LocalServiceClient, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    path = (await trainer.save_weights_for_sampler("s")).path
    monkeypatch.setattr("peft.peft_model.infer_device", lambda: "cuda")  # a machine with a GPU, and local_device=cpu
    sampler = await service.create_sampling_client(model_path=path)
    assert len(await sampler.compute_logprobs(tinker.ModelInput.from_ints([1, 2]))) == 2


@pytest.fixture
async def half(tmp_path: Path) -> AsyncIterator[LocalServiceClient]:
    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path, dtype="bfloat16")) as made:
        yield made


async def test_small_steps_move_weights_that_are_kept_in_half_precision(
    half: LocalServiceClient, model_path: Path, tmp_path: Path
) -> None:
    library: Any = transformers.AutoModelForCausalLM
    model = library.from_pretrained(model_path)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(0.02)
    path = save_beside_tokenizer(model, tmp_path / "model", model_path)
    trainer = await half.create_lora_training_client(str(path), rank=0)
    for _ in range(30):
        await step(trainer, [datum(prompt_of(20))], 1e-5)
    after = library.from_pretrained((await trainer.save_state("after")).path, dtype=torch.bfloat16)
    weight = after.model.layers[0].mlp.down_proj.weight.detach()
    moved = (weight.float() - torch.tensor(0.02, dtype=torch.bfloat16).float()).abs()
    assert float((moved > 0).float().mean()) > 0.5  # 30 steps of 1e-5 are more than two of the steps that 0.02 has
    assert float(moved.max()) < 1e-3


async def test_a_run_in_half_precision_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(
    half: LocalServiceClient, model_path: Path
) -> None:
    data = [datum(prompt_of(20))]
    whole = await half.create_lora_training_client(str(model_path), rank=0)
    for _ in range(3):
        await step(whole, data, 2e-5)
    path = (await whole.save_state("middle")).path
    again = await half.create_training_client_from_state_with_optimizer(path)
    fresh = await half.create_training_client_from_state(path)
    for name, master in whole._training._masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(fresh._training._masters[name], master), name
    for _ in range(3):
        await step(whole, data, 2e-5)
        await step(again, data, 2e-5)
    for name, master in whole._training._masters.items():
        assert torch.equal(again._training._masters[name], master), name
    sampler = (await whole.save_weights_for_sampler("s")).path
    assert not (Path(sampler) / "masters.safetensors").exists()


async def test_a_run_goes_on_in_the_other_precision_with_its_weights_in_full(
    half: LocalServiceClient, service: LocalServiceClient, model_path: Path
) -> None:
    begun = await half.create_lora_training_client(str(model_path), rank=0)
    await step(begun, [datum(prompt_of(20))], 2e-5)
    path = (await begun.save_state("half")).path
    again = await service.create_training_client_from_state_with_optimizer(path)
    for name, master in begun._training._masters.items():
        assert torch.equal(again._training._named[name], master), name
    path = (await again.save_state("full")).path
    begun = again
    for restore in (half.create_training_client_from_state_with_optimizer, half.create_training_client_from_state):
        again = await restore(path)
        for name, weight in begun._training._named.items():
            assert torch.equal(again._training._masters[name], weight), name
            assert torch.equal(again._training._named[name], weight.bfloat16()), name


async def test_weights_in_half_precision_are_read_once(
    half: LocalServiceClient, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await half.create_lora_training_client(str(model_path), rank=0)
    path = (await begun.save_state("half")).path
    (Path(path) / MASTERS).unlink()
    monkeypatch.setattr(models, "full_weights", lambda path: pytest.fail("read again"))
    again = await half.create_training_client_from_state(path)
    for name, weight in begun._training._named.items():
        assert torch.equal(again._training._masters[name], weight.float()), name


async def test_gradients_of_several_batches_add_up_in_full_precision(model_path: Path, tmp_path: Path) -> None:
    data = [datum(prompt_of(20, seed)) for seed in range(6)]
    config = LocalEngineConfig(checkpoint_dir=tmp_path, dtype="bfloat16", batch_tokens=20)  # one at a time
    with LocalServiceClient(config) as service:
        trainer = await service.create_lora_training_client(str(model_path), rank=0)
        await trainer.forward_backward(data, "cross_entropy")
        together = await trainer.gradients()
        single = []
        for one in data:
            alone = await service.create_lora_training_client(str(model_path), rank=0)
            await alone.forward_backward([one], "cross_entropy")
            single.append(await alone.gradients())
    for name, gradient in together.items():
        assert gradient.dtype == torch.float32
        assert torch.allclose(gradient, sum(one[name] for one in single), rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("rank", [0, 4])
async def test_gradient_checkpointing_changes_no_gradient_and_computes_twice(
    model_path: Path, tmp_path: Path, rank: int
) -> None:
    data = [datum(prompt_of(30, seed)) for seed in range(3)]
    found, passes = [], []
    for checkpointing in (False, True):
        config = LocalEngineConfig(checkpoint_dir=tmp_path, gradient_checkpointing=checkpointing)
        with LocalServiceClient(config) as service:
            trainer = await service.create_lora_training_client(str(model_path), rank=rank, seed=0)
            calls: list[int] = []
            layer = next(one for name, one in trainer._training.module.named_modules() if name.endswith("layers.0.mlp"))
            layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
            await trainer.forward_backward(data, "cross_entropy")
            passes.append(len(calls))
            found.append(await trainer.gradients())
            sampler = await trainer.save_weights_and_get_sampling_client()
            await sampler.sample(tinker.ModelInput.from_ints([1, 2]), 1, tinker.SamplingParams(max_tokens=3))
    assert passes == [1, 2]
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(found[1][name], gradient), name


async def test_a_checkpoint_of_another_model_or_rank_is_refused(tmp_path: Path, model_path: Path) -> None:
    other = make_model(tmp_path / "other")
    engine = local_engine(LocalEngineConfig(checkpoint_dir=tmp_path / "checkpoints"))
    trainer = await engine.trainer(str(model_path), 0, 0, None, optimizer=False)
    state = (await trainer.save_state("start")).path
    again = await engine.trainer(str(model_path), 0, 0, state, optimizer=False)
    assert again is not None
    with pytest.raises(UsageError, match=r"^load_checkpoint_path: .*student_model"):
        await engine.trainer(str(other), 0, 0, state, optimizer=False)
    with pytest.raises(UsageError, match=r"^lora_rank: 4 is not that of .*; give lora_rank=0$"):
        await engine.trainer(str(model_path), 4, 0, state, optimizer=False)
    await engine.close("success")


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", None])
def test_weights_that_were_not_copied_whole_are_one_clear_error(
    tmp_path: Path, model_path: Path, content: bytes | None
) -> None:
    shutil.copytree(model_path, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000] if content is None else content)
    with LocalServiceClient() as made, pytest.raises(UsageError, match="no causal language model can be read from"):
        made.create_sampling_client(base_model=str(tmp_path / "model")).future().result(60)


@pytest.mark.parametrize(
    ("name", "size"),
    [("engine.json", 0), ("optimizer.pt", 0), ("optimizer.pt", 0.5), ("adapter_model.safetensors", 0.5)],
)
async def test_a_checkpoint_that_was_not_copied_whole_is_one_clear_error(
    tmp_path: Path, model_path: Path, name: str, size: float
) -> None:
    engine = local_engine(LocalEngineConfig(checkpoint_dir=tmp_path / "checkpoints"))
    trainer = await engine.trainer(str(model_path), 4, 0, None, optimizer=False)
    state = (await trainer.save_state("start")).path
    data = (file := Path(state) / name).read_bytes()
    file.write_bytes(data[: int(size * len(data))])
    with pytest.raises(UsageError, match=r"^log_path: the checkpoint at .*start' is damaged or was not copied "):
        await engine.trainer(str(model_path), 4, 0, state, optimizer=True)
    await engine.close("success")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_checkpoint_with_one_wrong_bit_is_one_clear_error(tmp_path: Path, model_path: Path, dtype: str) -> None:
    """Such weights are as valid as the right ones, and so is the optimizer's state."""
    engine = local_engine(LocalEngineConfig(checkpoint_dir=tmp_path / "checkpoints", dtype=dtype))
    trainer = await engine.trainer(str(model_path), 0, 0, None, optimizer=False)
    await step(trainer, [datum(prompt_of(20))], 1e-3)
    states = [Path((await trainer.save_state("start")).path), Path((await trainer.save_weights_for_sampler("s")).path)]
    files = [file for state in states for file in sorted(state.iterdir()) if file.name != METADATA]
    assert {"model.safetensors", "optimizer.pt", "config.json"} <= {file.name for file in files}
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        trains, path = file.parent == states[0], str(file.parent)
        opened = engine.trainer(str(model_path), 0, 0, path, optimizer=True) if trains else engine.sampler(path)
        with pytest.raises(UsageError, match=rf"is damaged .*\({file.name} has changed since it was saved\); restore"):
            await opened
        file.write_bytes(whole)
    await engine.trainer(str(model_path), 0, 0, str(states[0]), optimizer=True)
    await engine.close("success")


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
            SandboxError,
            "a quota is",
        ),
        (Exception("Disk quota exceeded (os error 122)"), SandboxError, "the disk is full; make room, and resume"),
        (Exception("Input/output error (os error 5)"), SandboxError, "the disk failed"),
        (OSError(errno.EIO, "Input/output error"), SandboxError, "Input/output error"),
        (OSError(errno.EROFS, "Read-only file system"), UsageError, "Read-only file system; choose another place"),
    ],
)
async def test_a_checkpoint_that_cannot_be_written_is_one_clear_error(
    service: LocalServiceClient, model_path: Path, error: Exception, raised: type[Exception], says: str
) -> None:
    """At a quota, the disk has room, and torch does not say why it cannot write."""
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    with patch.object(torch, "save", side_effect=error), pytest.raises(raised, match=f"weights/a cannot .*: .*{says}"):
        await trainer.save_state("a")
    assert not list(service.config.checkpoint_dir.rglob(".a*"))


async def test_a_trainer_knows_the_context_of_its_model(tmp_path: Path, model_path: Path) -> None:
    """A run shortens its prompts by it, or refuses them before the first step."""
    engine = local_engine(LocalEngineConfig(checkpoint_dir=tmp_path))
    trainer = await engine.trainer(str(model_path), 4, 0, None, optimizer=False)
    found = context_length(await engine.published("student_model", str(model_path)))
    assert context_length(trainer) == found is not None
    await engine.close("success")


async def test_a_step_is_that_of_adamw_with_all_parameters_of_the_request(
    service: LocalServiceClient, model_path: Path
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=0)
    named = trainer._training._named
    expected = {name: weight.detach().clone().requires_grad_() for name, weight in named.items()}
    adam = torch.optim.AdamW(list(expected.values()), lr=0.01, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.3)
    params = tinker.AdamParams(learning_rate=0.01, beta1=0.5, beta2=0.7, eps=1e-3, weight_decay=0.3, grad_clip_norm=0.2)
    for seed in range(3):
        await trainer.forward_backward([datum(prompt_of(20, seed))], "cross_entropy")
        for name, gradient in (await trainer.gradients()).items():
            expected[name].grad = gradient
        norm = float(torch.nn.utils.clip_grad_norm_(list(expected.values()), 0.2))
        assert norm > 0.2
        outcome = await trainer.optim_step(params)
        assert (outcome.metrics or {})["unclipped_grad_l2:mean"] == pytest.approx(norm, rel=1e-4)
        adam.step()
    for name, weight in named.items():
        torch.testing.assert_close(weight.detach(), expected[name].detach(), atol=1e-6, rtol=1e-5)


async def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    service: LocalServiceClient, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    synced, named, replace = set[Path](), list[Path](), os.replace

    def replaced(source: Any, target: Any) -> None:
        named.extend([Path(source).resolve(), *Path(source).resolve().rglob("*")])
        assert set(named) <= synced
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda opened: synced.add(Path(os.readlink(f"/proc/self/fd/{opened}"))))
    monkeypatch.setattr(os, "replace", replaced)
    path = Path((await trainer.save_state("one")).path).resolve()
    assert len(named) > 2
    assert path.parent in synced  # the name itself

    def fails(*_: Any) -> None:
        raise OSError("pulled the plug")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(SandboxError, match="one cannot be written: pulled the plug"):
        await trainer.save_state("one")
    assert [found.name for found in path.parent.iterdir()] == ["one"], "the earlier one stays, and no scratch folder"
