"""The local engine's sampling: repeatable bits, distributions and stops."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
import torch
import transformers

from rtl_agent_gym.engines import sampling
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient
from rtl_agent_gym.engines.sampling import Stops, draw

from .conftest import KINDS, check_scores, datum, model_of, prompt_of, step


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


async def test_what_other_weights_have_computed_is_not_used(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=0)
    await step(trainer, [datum(prompt_of(20))])
    trained = await trainer.save_weights_and_get_sampling_client()
    base = await service.create_sampling_client(base_model=str(model_path))
    ids, params = prompt_of(150), tinker.SamplingParams(max_tokens=8, seed=1, stop=[])
    for sampler in (base, trained, base):
        [one] = (await sampler.sample(tinker.ModelInput.from_ints(ids), 1, params)).sequences
        await check_scores(sampler, ids, one.tokens, one.logprobs)
    both = await asyncio.gather(*(one.sample(tinker.ModelInput.from_ints(ids), 1, params) for one in (base, trained)))
    for sampler, answer in zip((base, trained), both, strict=True):  # in the same steps
        await check_scores(sampler, ids, answer.sequences[0].tokens, answer.sequences[0].logprobs)


async def test_a_sample_ends_where_the_context_does(sampler: LocalSamplingClient) -> None:
    prompt = tinker.ModelInput.from_ints(prompt_of(sampler.context - 4))
    params = tinker.SamplingParams(max_tokens=24, seed=1, stop=[])
    [one] = (await sampler.sample(prompt, 1, params)).sequences
    assert (len(one.tokens), one.stop_reason) == (4, "length")
