"""The local engine's own promises: exact gradients, repeatable runs, shared memory, an unblocked event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
import torch
import transformers

from rtl_agent_gym.engines import local, models, sampling, training
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.connect import local_engine
from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient
from rtl_agent_gym.engines.models import grouped_attention, own_lengths
from rtl_agent_gym.engines.requests import Purpose, context_length, translate
from rtl_agent_gym.engines.sampling import SlotTable, Stops, draw
from rtl_agent_gym.engines.threads import Worker
from rtl_agent_gym.engines.training import MASTERS, score
from rtl_agent_gym.errors import UsageError

from .conftest import check_scores, datum, make_model, prompt_of, save_beside_tokenizer, step


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


def model_of(kind: str, folder: Path, qwen3: Path) -> Path:
    """A random model of this architecture, in `folder` if it is not the given one."""
    library: Any = transformers
    mixed = ["full_attention", "sliding_attention"]
    if kind in ("gpt2", "images"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if kind == "gpt2":
                sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 257}
                model = library.GPT2LMHeadModel(library.GPT2Config(**sizes, initializer_range=0.3))
            else:  # what is about text is in a configuration of its own
                few = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
                text = {"vocab_size": 257, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
                        "layer_types": mixed, "sliding_window": 8, "eos_token_id": 256}  # fmt: skip
                image = {"image_size": 8, "patch_size": 4, "vision_use_head": False}
                config = library.Gemma3Config(
                    text_config=few | text | {"initializer_range": 0.2},
                    vision_config=few | image,
                    mm_tokens_per_image=4,
                    initializer_range=0.2,
                )
                model = library.Gemma3ForConditionalGeneration(config)
        return save_beside_tokenizer(model, folder / "m", qwen3)
    if kind == "qwen3":
        return qwen3
    layers = {"sliding": ["sliding_attention"] * 2, "mixed": mixed}[kind]
    return make_model(folder / "m", layer_types=layers, use_sliding_window=True, sliding_window=8)


KINDS = ["qwen3", "gpt2", "sliding", "mixed", "images"]


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
    assert computed == [79 + 60 + 47, 45 + 3 * (79 - 45), 3 * 79, 45 + 3 * (79 - 45), 3 * 79]
    for outcome, gradients in found[1:]:
        for output, expected in zip(outcome.loss_fn_outputs, found[0][0].loss_fn_outputs, strict=True):
            assert output["logprobs"].data == pytest.approx(expected["logprobs"].data, abs=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], atol=1e-4, rtol=1e-4)


async def converse(sampler: LocalSamplingClient, number: int, delays: list[float]) -> list[tuple[Any, Any]]:
    """Three turns of a conversation, with pauses between them."""
    ids, answers = prompt_of(20, seed=7), []
    for turn, delay in enumerate(delays):
        await asyncio.sleep(delay)
        params = tinker.SamplingParams(max_tokens=12 + number, seed=number * 10 + turn, stop=[])
        answer = (await sampler.sample(tinker.ModelInput.from_ints(ids), 1, params)).sequences[0]
        answers.append((answer.tokens, answer.logprobs))
        ids = ids + answer.tokens + prompt_of(9, seed=turn)
    return answers


async def test_the_order_of_requests_changes_no_bit(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4, seed=0)
    runs = []
    for run in range(3):
        sampler = (
            await trainer.save_weights_and_get_sampling_client()
        )  # a new one, so that nothing of the last run is kept
        rng = random.Random(run)
        order = rng.sample(range(8), 8)
        delays = {number: [rng.random() * 0.03 * run for _ in range(3)] for number in order}
        played = await asyncio.gather(*(converse(sampler, number, delays[number]) for number in order))
        runs.append(dict(zip(order, played, strict=True)))
    assert runs[0] == runs[1] == runs[2]


async def test_what_is_cached_changes_no_bit(model_path: Path) -> None:
    """Each answer is that of an engine which has sampled nothing else before."""

    async def sample(sampler: LocalSamplingClient, ids: list[int]) -> tuple[list[int], list[float] | None]:
        params = tinker.SamplingParams(max_tokens=40, seed=len(ids), stop=[])
        answer = (await sampler.sample(tinker.ModelInput.from_ints(ids), 1, params)).sequences[0]
        return answer.tokens, answer.logprobs

    begun = prompt_of(150)
    with LocalServiceClient(LocalEngineConfig(max_batch=2)) as service:
        sampler = await service.create_sampling_client(base_model=str(model_path))
        tokens, _ = await sample(sampler, begun)
        prompts = [
            begun + tokens[:20],  # the cache holds all of it, in part from single steps
            begun + tokens + prompt_of(9, 1),  # the conversation goes on
            begun + tokens + prompt_of(90, 1),
            begun[:70] + prompt_of(40, 2),  # another one with the same beginning
            prompt_of(500, 3),  # evicts, and makes all rows longer
            begun,
            begun[:128],
        ]
        answers = [await sample(sampler, ids) for ids in prompts]
        answers += await asyncio.gather(*(sample(sampler, ids) for ids in prompts))  # more than there are rows
    for ids, answer, again in zip(prompts, answers, answers[len(prompts) :], strict=False):
        with LocalServiceClient(LocalEngineConfig(max_batch=2)) as service:
            wanted = await sample(await service.create_sampling_client(base_model=str(model_path)), ids)
        assert answer == again == wanted, len(ids)


async def test_a_conversation_that_goes_on_scores_as_its_whole(sampler: LocalSamplingClient) -> None:
    ids = prompt_of(20, seed=7)
    for turn, (tokens, logprobs) in enumerate(await converse(sampler, 3, [0.0, 0.0, 0.0])):
        await check_scores(sampler, ids, tokens, logprobs)
        ids = ids + tokens + prompt_of(9, seed=turn)


async def test_more_requests_than_slots_are_all_served(sampler: LocalSamplingClient) -> None:
    params = [tinker.SamplingParams(max_tokens=3 + number % 5, seed=number, stop=[]) for number in range(20)]
    prompts = [prompt_of(5 + number, number) for number in range(20)]
    waiting = [
        sampler.sample(tinker.ModelInput.from_ints(ids), 2, param) for ids, param in zip(prompts, params, strict=True)
    ]
    for number, answer in enumerate(await asyncio.gather(*waiting)):
        assert [len(sequence.tokens) for sequence in answer.sequences] == [3 + number % 5] * 2
        for sequence in answer.sequences:
            await check_scores(sampler, prompts[number], sequence.tokens, sequence.logprobs)


async def test_samples_follow_the_models_distribution(sampler: LocalSamplingClient) -> None:
    prompt = tinker.ModelInput.from_ints(prompt_of(6))
    drawn = (await sampler.sample(prompt, 1500, tinker.SamplingParams(max_tokens=1, seed=1, stop=[]))).sequences
    counts: dict[int, int] = {}
    chances: dict[int, float] = {}
    for sequence in drawn:
        token = sequence.tokens[0]
        counts[token] = counts.get(token, 0) + 1
        chances[token] = float(torch.tensor(sequence.logprobs).exp())
    for token, chance in chances.items():
        assert abs(counts[token] - 1500 * chance) < 5 * (1500 * chance) ** 0.5 + 3


async def test_top_k_and_top_p_leave_out_the_unlikely(sampler: LocalSamplingClient) -> None:
    prompt = tinker.ModelInput.from_ints(prompt_of(6))

    async def tokens(**options: Any) -> set[int]:
        params = tinker.SamplingParams(max_tokens=1, seed=2, stop=[], **options)
        return {sequence.tokens[0] for sequence in (await sampler.sample(prompt, 200, params)).sequences}

    assert len(await tokens()) > 3
    assert len(await tokens(top_k=3)) == 3
    assert await tokens(top_k=1) == await tokens(temperature=0.0) == await tokens(top_p=1e-6)


async def test_without_a_stop_the_models_end_token_ends_a_sample(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=8)
    end = trainer.get_tokenizer().eos_token_id
    ids = [*prompt_of(5), 7, end]
    for _ in range(30):
        await step(trainer, [datum(ids, weights=[0.0] * 4 + [1.0, 1.0])], 2e-2)
    sampler = await trainer.save_weights_and_get_sampling_client()
    prompt = tinker.ModelInput.from_ints(ids[:5])
    plain = tinker.SamplingParams(max_tokens=9, temperature=0.0)
    ended = (await sampler.sample(prompt, 1, plain)).sequences[0]
    assert (ended.tokens, ended.stop_reason) == ([7, end], "stop")
    endless = tinker.SamplingParams(max_tokens=9, temperature=0.0, stop=[])
    assert len((await sampler.sample(prompt, 1, endless)).sequences[0].tokens) == 9


async def test_student_and_teacher_have_one_base_in_memory(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    student = await trainer.save_weights_and_get_sampling_client()
    teacher = await service.create_sampling_client(base_model=str(model_path))
    base = {weight.data_ptr() for weight in teacher._weights.module.parameters()}
    for module in (trainer._training.module, student._weights.module):
        own = {name for name, weight in module.named_parameters() if weight.data_ptr() not in base}
        assert own
        assert all("lora_" in name for name in own)


async def test_the_event_loop_is_never_blocked(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    ids = prompt_of(400)
    work = trainer.forward_backward([datum(ids, weights=[1.0] * 399)] * 24, "cross_entropy")
    begun = last = time.perf_counter()
    longest = 0.0
    while not work.future().done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert longest < max(0.25, (last - begun) / 2)  # blocked, it would be all of the time
    await work


async def test_a_request_that_is_given_up_frees_its_slot(
    sampler: LocalSamplingClient, service: LocalServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = list[int](), SlotTable.step

    def counted(*given: Any) -> Any:
        steps.append(1)
        return step(*given)

    monkeypatch.setattr(SlotTable, "step", counted)
    prompt = tinker.ModelInput.from_ints(prompt_of(5))
    endless = tinker.SamplingParams(max_tokens=1000, stop=[])
    tasks = [asyncio.ensure_future(sampler.sample(prompt, 8, endless).coroutine()) for _ in range(2)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    assert (await sampler.sample(prompt, 8, tinker.SamplingParams(max_tokens=2, stop=[]))).sequences
    assert len(steps) < 1000, "what was given up was sampled to its end"
    scheduler = service.scheduler
    assert not any(slot.busy for table in scheduler._tables.values() for slot in table._slots)


async def test_closing_fails_what_is_not_answered_and_can_be_done_twice(
    sampler: LocalSamplingClient, service: LocalServiceClient
) -> None:
    prompt = tinker.ModelInput.from_ints(prompt_of(5))
    pending = sampler.sample(prompt, 20, tinker.SamplingParams(max_tokens=1000, stop=[]))
    scoring = sampler.compute_logprobs(prompt)
    await asyncio.to_thread(service.close)
    service.close()
    assert len(await scoring) == 5
    with pytest.raises(UsageError, match="closed before this request"):
        await pending


async def test_sampling_training_and_scoring_go_on_side_by_side(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    sampler = await trainer.save_weights_and_get_sampling_client()
    prompt = tinker.ModelInput.from_ints(prompt_of(5))
    alone = await sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=60, seed=1, stop=[]))
    together = sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=60, seed=1, stop=[]))
    for _ in range(3):
        trainer.forward_backward([datum(prompt_of(30), weights=[1.0] * 29)], "cross_entropy")
        await trainer.optim_step(tinker.AdamParams(learning_rate=1e-2))
        await sampler.compute_logprobs(prompt)
    assert [one.tokens for one in (await together).sequences] == [one.tokens for one in alone.sequences]
    await trainer.forward_backward([datum(prompt_of(30))], "cross_entropy")
    assert not service.scheduler._tables  # nothing is sampled, so the memory is for the training
    again = await sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=60, seed=1, stop=[]))
    assert [(one.tokens, one.logprobs) for one in again.sequences] == [
        (one.tokens, one.logprobs) for one in alone.sequences
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask": [1.0] * 4}, "datum 0: loss_fn_inputs has mask"),
        ({"weights": [1.0]}, "weights has the shape"),
    ],
)
async def test_data_that_do_not_fit_are_named(
    service: LocalServiceClient, model_path: Path, change: dict[str, list[float]], words: str
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    values = torch.ones(4).tolist()
    inputs: Any = {"target_tokens": [1, 2, 3, 4], "weights": values} | change
    inputs = {key: tinker.TensorData(data=value, dtype="int64" if key[0] == "t" else "float32", shape=[len(value)])
              for key, value in inputs.items()}  # fmt: skip
    wrong = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3, 4]), loss_fn_inputs=inputs)
    with pytest.raises(UsageError, match=words):
        await trainer.forward_backward([wrong], "cross_entropy")


async def test_mistakes_are_told_with_what_to_do(service: LocalServiceClient, model_path: Path, tmp_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    sampler = await trainer.save_weights_and_get_sampling_client()
    empty, long = tinker.ModelInput.from_ints([]), tinker.ModelInput.from_ints([1] * 1024)
    with pytest.raises(UsageError, match="no causal language model can be read"):
        await service.create_sampling_client(base_model=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no checkpoint at"):
        await service.create_training_client_from_state(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="at least one token"):
        await sampler.sample(empty, 1, tinker.SamplingParams())
    with pytest.raises(UsageError, match="the prompt has 1024 tokens"):
        await sampler.sample(long, 1, tinker.SamplingParams())
    with pytest.raises(UsageError, match="call forward_backward before optim_step"):
        await trainer.optim_step(tinker.AdamParams())
    with pytest.raises(UsageError, match="no loss 'cispo'"):
        await trainer.forward_backward([datum([1, 2])], "cispo")
    with pytest.raises(UsageError, match="plain file name"):
        trainer.save_state("../elsewhere")
    path = (await trainer.save_weights_for_sampler("weights")).path
    with pytest.raises(UsageError, match="has weights only"):
        await service.create_training_client_from_state_with_optimizer(path)
    service.close()
    with pytest.raises(UsageError, match="engine is closed"):
        sampler.compute_logprobs(long)


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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steady", [True, False])
async def test_every_architecture_samples_as_it_scores(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, steady: bool
) -> None:
    """Also if prompts are computed in pieces that are shorter than the prompt and no multiple of the window."""
    monkeypatch.setattr(sampling, "PIECE", 7)
    with LocalServiceClient(LocalEngineConfig(steady=steady)) as service:
        trainer = await service.create_lora_training_client(str(model_of(kind, tmp_path, model_path)), rank=2)
        sampler = await trainer.save_weights_and_get_sampling_client()
        assert sampler.context == (256 if kind in ("gpt2", "images") else 1024)
        prompts, widths = [prompt_of(10) + prompt_of(10 + number, number) for number in range(4)], list[int]()
        embeddings = sampler._weights.module.get_input_embeddings()
        embeddings.register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
        params = tinker.SamplingParams(max_tokens=30, seed=1, stop=[])
        answers = await asyncio.gather(
            *(sampler.sample(tinker.ModelInput.from_ints(ids), 1, params) for ids in prompts)
        )
        assert max(widths) == (64 if steady else 7)
        for prompt, answer in zip(prompts, answers, strict=True):
            await check_scores(sampler, prompt, answer.sequences[0].tokens, answer.sequences[0].logprobs)


def test_the_package_and_the_protocol_import_neither_torch_nor_tinker() -> None:
    code = (
        "import sys, rtl_agent_gym, rtl_agent_gym.engines, rtl_agent_gym.engines.protocol;"
        "assert not {'torch', 'tinker', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


async def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(
    sampler: LocalSamplingClient, model_path: Path
) -> None:
    prompt = prompt_of(12)
    logits = (
        transformers.AutoModelForCausalLM.from_pretrained(model_path)(input_ids=torch.tensor([prompt]))
        .logits[0, -1]
        .double()
        .detach()
    )

    async def first(**settings: Any) -> tuple[int, float]:
        params = tinker.SamplingParams(max_tokens=1, seed=3, stop=[], **settings)
        [one] = (await sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences
        assert one.logprobs is not None
        return one.tokens[0], one.logprobs[0]

    for temperature in (0.5, 1.0, 1.7):
        token, found = await first(temperature=temperature)
        assert found == pytest.approx(float((logits / temperature).log_softmax(-1)[token]), abs=1e-4)
    token, found = await first(temperature=1.0, top_k=2)
    assert found == pytest.approx(
        float(logits.topk(2).values.log_softmax(-1)[logits.topk(2).indices == token]), abs=1e-4
    )
    token, found = await first(temperature=0.0)  # nothing is drawn
    assert found == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)


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


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 8), (torch.bfloat16, 8), (torch.float32, 6)])
def test_grouped_attention_is_that_of_transformers(dtype: torch.dtype, size: int) -> None:
    """With values of another size than the keys, too, as in multi-head latent attention."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(0)
    layer: Any = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    query, key = torch.randn(5, 6, 1, 8, dtype=dtype), torch.randn(5, 2, 12, 8, dtype=dtype)
    value, lengths = torch.randn(5, 2, 12, size, dtype=dtype), torch.tensor([1, 12, 4, 7, 2])
    hidden = torch.arange(12) >= lengths.view(5, 1, 1, 1)
    mask = torch.zeros(5, 1, 1, 12, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
    wanted, _ = sdpa_attention_forward(layer, query, key, value, mask, scaling=0.3)
    found, _ = grouped_attention(layer, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(found, wanted)
    key[3], wanted[3] = math.nan, 0.0  # nothing is read of a sequence that is not sampled
    with own_lengths([1, 12, 4, 0, 2]):
        found, _ = grouped_attention(layer, query, key, value, mask, scaling=0.3)
        # Its sums are in float32, so in bfloat16 the results differ by the rounding of transformers' scores.
        torch.testing.assert_close(found, wanted, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1.6e-2)
        many = torch.randn(5, 6, 4, 8, dtype=dtype)
        assert grouped_attention(layer, many, key, value, None)[0].shape == (5, 4, 6, size)  # a prompt, as ever


async def test_small_models_are_steady_and_others_use_all_cores(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (10**9, 10):
        monkeypatch.setattr(local, "STEADY_PARAMETERS", limit)
        with LocalServiceClient() as service:
            cores = service._threads if service.submit(lambda: None).result() is None else 0
            monkeypatch.setattr(service, "_threads", 2)
            sampler = await service.create_sampling_client(base_model=str(model_path))
            await sampler.sample(tinker.ModelInput.from_ints([1, 2]), 1, tinker.SamplingParams(max_tokens=2))
            threads = await service.submit(torch.get_num_threads)
            (table,) = service.scheduler._tables.values()
            assert cores >= 1
            assert (table._steady, threads) == ((True, 1) if limit > 10 else (False, 2))


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bfloat16_is_chosen_on_gpus_that_compute_in_it(
    monkeypatch: pytest.MonkeyPatch, native: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert models.choose_device("cuda:1", "auto") == models.Device("cuda:1", dtype)
    assert models.choose_device("cuda:1", "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0.125, 0.5, 0.125, 0.25]),
        ({"temperature": 0.5}, [1 / 64, 1 / 4, 1 / 64, 1 / 16]),
        ({"top_k": 1}, [0.0, 0.5, 0.0, 0.0]),
        ({"top_k": 3}, [0.125, 0.5, 0.0, 0.25]),  # of equally likely tokens, the first
        ({"top_k": 9}, [0.125, 0.5, 0.125, 0.25]),
        ({"top_p": 0.45}, [0.0, 0.5, 0.0, 0.0]),
        ({"top_p": 0.7}, [0.0, 0.5, 0.0, 0.25]),  # up to and including the token that reaches it
        ({"top_p": 0.8}, [0.125, 0.5, 0.0, 0.25]),
        ({"top_p": 0.8, "top_k": 3}, [0.0, 0.5, 0.0, 0.25]),  # a share of what top_k leaves
        ({"top_p": 0.7, "temperature": 0.5}, [0.0, 1 / 4, 0.0, 0.0]),  # a share of what the temperature makes
    ],
)
def test_each_row_is_drawn_from_its_own_distribution(options: dict[str, Any], kept: list[float]) -> None:
    """Uniform numbers at equal distances give each token in proportion to its probability, with its logarithm."""
    points, params = [(place + 0.5) / 1000 for place in range(1000)], tinker.SamplingParams(**options)
    logits = torch.tensor([0.125, 0.5, 0.125, 0.25]).log() + 3.0
    first, last = torch.tensor([0.0, -5.0, 5.0, 0.0]), torch.tensor([1.0, 4.0, 0.0, 2.0])
    warm, greedy = tinker.SamplingParams(temperature=2.0), tinker.SamplingParams(temperature=0.0)
    rows = torch.stack([first, *[logits] * 1000, last])
    ids, logprobs = draw(rows, [warm, *[params] * 1000, greedy], [0.5, *points, 0.999])
    assert (ids[0], ids[-1]) == (2, 1)
    ends = [float((one.double() / scale).log_softmax(-1)[id_]) for one, scale, id_ in ((first, 2, 2), (last, 1, 1))]
    assert [logprobs[0], logprobs[-1]] == pytest.approx(ends)
    [least], _ = draw(logits.unsqueeze(0), [params], [0.0])
    assert least == next(token for token, weight in enumerate(kept) if weight), "the first that can be drawn at all"
    for token, share in enumerate(weight / sum(kept) for weight in kept):
        drawn = [logprob for id_, logprob in zip(ids[1:-1], logprobs[1:-1], strict=True) if id_ == token]
        assert len(drawn) == pytest.approx(1000 * share, abs=1)
        assert drawn == pytest.approx([math.log(share)] * len(drawn)) if share else not drawn


def test_a_share_that_is_reached_exactly_is_reached() -> None:
    alike, half = torch.zeros(1, 4), [tinker.SamplingParams(top_p=0.5)]
    assert [draw(alike, half, [point])[0] for point in (0.0, 0.49, 0.51, 0.99)] == [[0], [0], [1], [1]]


def test_a_text_ends_a_sample_wherever_it_begins_and_ends() -> None:
    """A token of several characters may begin before it and end after it; one of several texts may be longer."""
    words = ["<", "a", "xEN", "D", "Dy", "E", "N", "é"]
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(words[id_] for id_ in ids))
    stops = Stops(["END", "é<<<<", ""], (), lambda: tokenizer)  # no text is no stop

    def ended(*ids: int, stops: Stops = stops) -> list[bool]:
        return [stops.reached(list(ids[: place + 1])) for place in range(len(ids))]

    assert ended(1, 2, 3) == [False, False, True]
    assert ended(2, 4) == [False, True]
    assert ended(1, 5, 6, 3) == [False, False, False, True]
    assert ended(7, 0, 0, 0, 0) == [False, False, False, False, True]
    assert ended(1, 5, 6, 1, 3) == [False] * 5
    assert ended(0, 5, 6, 3, stops=Stops("END", (), lambda: tokenizer)) == [False, False, False, True]


def test_a_device_without_float64_can_be_drawn_on() -> None:
    logits, params = torch.tensor([[0.0, 1.0, 2.0]]), [tinker.SamplingParams()]
    on_mps: Any = SimpleNamespace(device=torch.device("mps"), cpu=lambda: logits)
    assert draw(on_mps, params, [0.5]) == draw(logits, params, [0.5])


def test_attention_is_never_cudnns() -> None:
    """It builds a plan for each new length, so for each step of sampling, and is torch's first choice on an H100."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    with LocalServiceClient() as made:
        assert made.submit(torch.backends.cuda.cudnn_sdp_enabled).result() is False


def test_a_device_that_is_not_there_is_refused() -> None:
    for device in ("cuda:7", "gpu"):
        with pytest.raises(UsageError, match="device: "):
            LocalServiceClient(LocalEngineConfig(device=device))


async def test_an_error_of_a_models_code_reaches_the_caller_and_the_engine_works_on(
    sampler: LocalSamplingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, params = tinker.ModelInput.from_ints(prompt_of(5)), tinker.SamplingParams(max_tokens=3)
    with monkeypatch.context() as patch:
        patch.setattr(SlotTable, "step", lambda *_: dict[str, int]()["no such layer"])
        with pytest.raises(KeyError, match="no such layer"):
            await sampler.sample(prompt, 1, params)
    assert (await sampler.sample(prompt, 1, params)).sequences


async def test_a_request_cancelled_with_its_answer_is_no_error(sampler: LocalSamplingClient) -> None:
    """The future may be cancelled between the check and its result."""
    prompt, params = tinker.ModelInput.from_ints(prompt_of(5)), tinker.SamplingParams(max_tokens=3)
    response = tinker.SampleResponse

    def cancelled(*arguments: Any, **named: Any) -> Any:
        waiting.future().cancel()
        return response(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinker, "SampleResponse", cancelled)
        waiting = sampler.sample(prompt, 1, params)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.to_thread(waiting.future().result, 30)
    assert (await sampler.sample(prompt, 1, params)).sequences


def test_a_model_whose_attention_is_another_is_refused(tmp_path: Path, model_path: Path) -> None:
    """gpt-oss adds sinks to each softmax, which this engine's attention would leave out without a word."""
    library: Any = transformers
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 300}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "num_experts_per_tok": 1}
    model = library.GptOssForCausalLM(library.GptOssConfig(**sizes, **heads))
    save_beside_tokenizer(model, tmp_path / "model", model_path)
    with LocalServiceClient() as made, pytest.raises(UsageError, match="GptOss"):
        made.create_sampling_client(base_model=str(tmp_path / "model")).future().result(60)


async def test_a_model_of_experts_is_trained_as_a_whole_or_not_at_all(
    service: LocalServiceClient, model_path: Path, tmp_path: Path
) -> None:
    """With version 5 of transformers, LoRA would train its attention alone."""
    library: Any = transformers
    sizes = {"hidden_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 16, "vocab_size": 257}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 2, "num_experts_per_tok": 1}
    model = library.Qwen3MoeForCausalLM(library.Qwen3MoeConfig(**sizes, **heads))
    path = str(save_beside_tokenizer(model, tmp_path / "model", model_path))
    with pytest.raises(UsageError, match="experts"):
        await service.create_lora_training_client(path, rank=4)
    await step(await service.create_lora_training_client(path, rank=0), [datum(prompt_of(5))])


async def test_quantised_weights_are_sampled_and_not_trained(
    sampler: LocalSamplingClient, service: LocalServiceClient, model_path: Path
) -> None:
    """The backward pass of some, such as FP8, ends at their layers."""
    sampler._weights.base.module.hf_quantizer = SimpleNamespace(is_trainable=False)
    with pytest.raises(UsageError, match="quantised"):
        await service.create_lora_training_client(str(model_path), rank=4)
    prompt, params = tinker.ModelInput.from_ints(prompt_of(5)), tinker.SamplingParams(max_tokens=3)
    assert (await sampler.sample(prompt, 1, params)).sequences


def test_a_package_that_a_model_needs_is_named(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: Any, **__: Any) -> None:
        raise ImportError("Loading an FP8 quantized model requires accelerate")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", without)
    with pytest.raises(UsageError, match="requires accelerate"):
        models.ModelStore(models.Device("cpu", torch.float32)).load(str(model_path))


async def test_float16_is_for_sampling_alone(service: LocalServiceClient, model_path: Path, tmp_path: Path) -> None:
    """Without a scaled loss, small gradients become 0 in it."""
    begun = await service.create_lora_training_client(str(model_path), rank=0)
    state = (await begun.save_state("start")).path
    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path, dtype="float16")) as made:
        sampler = await made.create_sampling_client(model_path=state)
        prompt, params = tinker.ModelInput.from_ints(prompt_of(5)), tinker.SamplingParams(max_tokens=3)
        assert (await sampler.sample(prompt, 1, params)).sequences
        for trainer in (
            made.create_lora_training_client(str(model_path), rank=4),
            made.create_training_client_from_state(state),
        ):
            with pytest.raises(UsageError, match="float16"):
                await trainer


@pytest.mark.parametrize("kind", ["qwen3", "images"])
def test_a_model_with_layers_of_another_type_is_refused(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path, load = str(model_of(kind, tmp_path, model_path)), transformers.AutoModelForCausalLM.from_pretrained

    def changed(*given: Any, **named: Any) -> Any:
        module: Any = load(*given, **named)
        module.config.get_text_config().layer_types = ["full_attention", "linear_attention"]
        return module

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", changed)
    with LocalServiceClient() as made, pytest.raises(UsageError, match="layers of type linear_attention"):
        made.create_sampling_client(base_model=path).future().result(60)


async def test_the_end_of_a_text_is_known_where_only_its_own_configuration_has_it(
    service: LocalServiceClient, model_path: Path, tmp_path: Path
) -> None:
    path = model_of("images", tmp_path, model_path)
    (path / "generation_config.json").write_text("{}")
    sampler = await service.create_sampling_client(base_model=str(path))
    assert sampler._weights.base.end_ids == (256,)


def test_too_little_memory_names_the_options_that_need_less() -> None:
    error = translate(torch.OutOfMemoryError("CUDA out of memory"), Purpose("sampling"), remote=False)
    assert isinstance(error, UsageError)
    assert "local_batch, local_batch_tokens: sampling: the device has too little memory" in str(error)
    policy = Purpose("local:m did not answer", None, "local:m")
    error = translate(torch.OutOfMemoryError("CUDA out of memory"), policy, remote=False)
    assert str(error).startswith("max_context (--max-context): local:m did not answer: the device has too little")
    assert "local_" not in str(error)


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


async def test_a_trainer_knows_the_context_of_its_model(tmp_path: Path, model_path: Path) -> None:
    """A run shortens its prompts by it, or refuses them before the first step."""
    engine = local_engine(LocalEngineConfig(checkpoint_dir=tmp_path))
    trainer = await engine.trainer(str(model_path), 4, 0, None, optimizer=False)
    found = context_length(await engine.published("student_model", str(model_path)))
    assert context_length(trainer) == found is not None
    await engine.close("success")


STILL_COMPUTING = """
import sys, time, torch
from rtl_agent_gym.engines.threads import Worker, end_process
from rtl_agent_gym.errors import ServiceDown
from rtl_agent_gym.training import launch

def compute():
    weight = torch.ones(1200, 1200, requires_grad=True)
    while True:
        (weight @ weight).tanh().sum().backward()

worker = Worker(lambda: None, lambda: False)
worker.submit(compute)
while not worker.computing:
    time.sleep(0.01)
time.sleep(0.3)
print("stopped")
"""
A_RUN_FAILS = """
def train(*_, **__):
    raise {}

launch.train = train
sys.exit(launch.main([]))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("sys.exit(end_process(130))", 130, ""),
        (A_RUN_FAILS.format("ServiceDown('away')"), 3, "error: away\n"),
        (A_RUN_FAILS.format("OSError(28, 'full')"), 3, "error: full; the same command resumes the run\n"),
        (A_RUN_FAILS.format("KeyboardInterrupt"), 130, "stopped; the same command resumes the run\n"),
    ],
    ids=("at once", "an error", "a full disk", "Ctrl-C"),
)
def test_a_process_ends_quietly_while_the_engine_computes(end: str, code: int, says: str) -> None:
    """Without `end_process`, CPython before 3.14 aborts."""
    ended = subprocess.run([sys.executable, "-c", STILL_COMPUTING + end], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "stopped\n", says)


async def test_what_other_weights_have_computed_is_not_used(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=0)
    await step(trainer, [datum(prompt_of(20))])
    trained = await trainer.save_weights_and_get_sampling_client()
    base = await service.create_sampling_client(base_model=str(model_path))
    ids, params = prompt_of(150), tinker.SamplingParams(max_tokens=8, seed=1, stop=[])
    for sampler in (base, trained, base):
        [one] = (await sampler.sample(tinker.ModelInput.from_ints(ids), 1, params)).sequences
        await check_scores(sampler, ids, one.tokens, one.logprobs)


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


async def test_a_sample_ends_where_the_context_does(sampler: LocalSamplingClient) -> None:
    prompt = tinker.ModelInput.from_ints(prompt_of(sampler.context - 4))
    params = tinker.SamplingParams(max_tokens=24, seed=1, stop=[])
    [one] = (await sampler.sample(prompt, 1, params)).sequences
    assert (len(one.tokens), one.stop_reason) == (4, "length")


def test_a_cancelled_job_is_withdrawn_and_the_next_one_is_done() -> None:
    worker, gate, ran = Worker(lambda: None, lambda: False), threading.Event(), list[int]()
    try:
        worker.submit(gate.wait)
        assert worker.submit(lambda: ran.append(1)).cancel()
        gate.set()
        assert worker.submit(lambda: 7).result(timeout=10) == 7
        assert ran == []
    finally:
        gate.set()
        worker.close()
