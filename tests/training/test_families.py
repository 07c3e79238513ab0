"""Today's dialects with real models: a small student plays each family's.

The shipped student, with the family's control tokens, first imitates one episode that was played in the dialect; no
model of these families fits a test. Everything else is as in a run: engine, sandboxes, harness, tokens.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from tinker_cookbook.rl.data_processing import trajectory_to_data  # noqa: E402

from research.episodes import DONE, write  # noqa: E402
from rtl_agent_gym.demo.founding import PROBLEM_ID, READ  # noqa: E402
from rtl_agent_gym.demo.shipped import shipped  # noqa: E402
from rtl_agent_gym.engines.local import LocalServiceClient  # noqa: E402
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig, load_renderer  # noqa: E402
from rtl_agent_gym.episodes.rules import EpisodeConfig  # noqa: E402
from rtl_agent_gym.episodes.runtime import Runtime  # noqa: E402
from rtl_agent_gym.policies import ModelOptions  # noqa: E402
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy  # noqa: E402
from rtl_agent_gym.problems import load_problems  # noqa: E402
from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall  # noqa: E402
from rtl_agent_gym.renderers.families import FAMILIES, VARIANTS  # noqa: E402
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_5_tokenizer  # noqa: E402
from rtl_agent_gym.training.rollouts import EpisodePlayer, Rollout, rollout_name, turn_seed  # noqa: E402
from tests.renderers.families import OWN  # noqa: E402
from tests.renderers.table import STUDENT, record  # noqa: E402

from .common import answer  # noqa: E402

EPISODES = 10
CONTEXT = 3000
HARMONY = 201_088
"""The size of Harmony's vocabulary."""


def student(folder: Path, controls: tuple[str, ...], vocabulary: int = 0) -> Path:
    """The shipped student with more control tokens, and with room for the longer openings of other dialects.

    gpt-oss's dialect has Harmony's vocabulary alone, which is far larger than the student's: `vocabulary` is its size.
    """
    import transformers
    from tokenizers import AddedToken, Tokenizer

    library: Any = transformers
    tokenizer = Tokenizer.from_file(str(shipped("student") / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in controls])
    model = library.Qwen3ForCausalLM.from_pretrained(shipped("student"), dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = -(-max(tokenizer.get_vocab_size(), vocabulary) // 8) * 8
        model.resize_token_embeddings(size, mean_resizing=False)
    model.config.max_position_embeddings = CONTEXT
    model.save_pretrained(folder)
    library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder


@dataclass
class Scripted:
    """Samples prepared turns."""

    turns: list[list[int]]

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        ids = self.turns.pop(0)
        return answer(ids, [0.0] * len(ids))


@dataclass
class Watched:
    """A sampler that records its prompts and what it sampled."""

    sampler: Any
    requests: list[tuple[list[int], list[int]]] = field(default_factory=list)

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        answer = await self.sampler.sample(prompt, num_samples, sampling_params)
        self.requests.append((prompt.to_ints(), [int(id_) for id_ in answer.sequences[0].tokens]))
        return answer


def weighted(tokens: list[int], mask: list[Any]) -> Any:
    """A datum that trains the sampled tokens by cross-entropy."""
    inputs: Any = {"target_tokens": tokens[1:], "weights": [float(value) / sum(mask) for value in mask[1:]]}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


async def imitate(trainer: Any, data: list[Any], enough: float, learning_rate: float, most: int) -> Any:
    """Train until the loss of each datum is below `enough` nats a token on average. Returns a sampler."""
    for _ in range(most):
        outcome = await trainer.forward_backward(data, "cross_entropy")
        if outcome.metrics["loss:sum"] < enough * len(data):
            break
        await trainer.optim_step(tinker.AdamParams(learning_rate=learning_rate))
    else:
        pytest.fail(f"the student has not learnt to imitate in {most} steps: {outcome.metrics['loss:sum']:.3f}")
    return await trainer.save_weights_and_get_sampling_client()


def check_tokens(rollout: Rollout, watched: Watched, renderer: Renderer) -> None:
    """Each prompt is the one before, what was sampled, and a reply; the mask has exactly what was sampled."""
    expected, position = [0] * len(rollout.streams[0]), 0
    tokens = rollout.streams[0].tokens
    for prompt, sampled in watched.requests:
        assert prompt == tokens[: len(prompt)]
        assert prompt[:position] == tokens[:position]
        position = len(prompt) + len(sampled)
        assert tokens[len(prompt) : position] == sampled
        expected[len(prompt) : position] = [1] * len(sampled)
    assert rollout.streams[0].mask == expected
    assert len(trajectory_to_data(rollout.trajectory(), 1.0)) == 1


@pytest.mark.docker
@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["qwen3_5", "glm5_3", "kimi_k25"])
async def test_what_a_student_that_learnt_nothing_samples_is_kept(
    family: str, tmp_path: Path, service: LocalServiceClient, runtime: Runtime
) -> None:
    """Malformed and cut off turns, with the corrections between them, are one exact example, too."""
    name = next(name for name, variant in VARIANTS.items() if variant.family == family)
    folder = student(tmp_path / "model", FAMILIES[family].controls)
    limits: dict[str, Any] = {"max_tokens": 20, "max_trajectory_tokens": CONTEXT, "max_turns": 3, "system_prompt": ""}
    config = TinkerEnvConfig(str(folder), name, EpisodeConfig(), **limits)
    renderer, [problem] = load_renderer(config), load_problems("bundled", ids=[PROBLEM_ID])
    trainer = await service.create_lora_training_client(str(folder), 0)
    watched = Watched(await trainer.save_weights_and_get_sampling_client())
    options = ModelOptions(max_tokens=20, max_context=CONTEXT)
    policy = TokenSamplerPolicy(watched, name="student", options=options)  # type: ignore[arg-type]
    rollout = await EpisodePlayer(config, renderer, runtime, 0)(problem, policy)
    assert len(watched.requests) == 3
    check_tokens(rollout, watched, renderer)


@pytest.mark.slow  # minutes each: an imitation, ten episodes, ten gradings; for gpt-oss half an hour on a busy machine
@pytest.mark.docker
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("family", [*OWN, *FAMILIES])
async def test_a_small_student_plays_ten_episodes_in_each_family(
    family: str, tmp_path: Path, service: LocalServiceClient, runtime: Runtime
) -> None:
    name = family if family not in FAMILIES else next(n for n, v in VARIANTS.items() if v.family == family)
    controls = FAMILIES[family].controls if family in FAMILIES else ()
    folder = student(tmp_path / "model", controls, HARMONY if family == "gpt_oss" else 0)
    limits: dict[str, Any] = {"max_tokens": 700, "max_trajectory_tokens": CONTEXT, "max_turns": 5, "system_prompt": ""}
    config = TinkerEnvConfig(str(folder), name, EpisodeConfig(), **limits)
    renderer, [problem] = load_renderer(config), load_problems("bundled", ids=[PROBLEM_ID])
    assert problem.golden
    thinking = "Read it." if renderer.thinks else ""
    commands = [READ, write(problem.golden)]
    script = [renderer.turn_ids(ModelTurn(thinking, "", (ToolCall.of(command),))) for command in commands]
    script.append(renderer.turn_ids(ModelTurn(thinking, DONE)))

    play = EpisodePlayer(config, renderer, runtime, 0)
    options = ModelOptions(temperature=0.5, max_tokens=700, max_context=CONTEXT)
    golden = await play(problem, TokenSamplerPolicy(Scripted(script), name="golden", options=options))  # type: ignore[arg-type]
    assert golden.result.passed
    trainer = await service.create_lora_training_client(str(folder), 0)
    data = [weighted(golden.streams[0].tokens, golden.streams[0].mask)]
    sampler = await imitate(trainer, data, enough=0.01, learning_rate=1e-3, most=400)

    async def episode(number: int) -> tuple[Rollout, Watched]:
        watched = Watched(sampler)
        policy = TokenSamplerPolicy(
            watched,  # type: ignore[arg-type]
            name="student",
            options=options,
            turn_seed=partial(turn_seed, 0, rollout_name(0, 0, number)),
        )
        return await play(problem, policy), watched

    played = await asyncio.gather(*map(episode, range(EPISODES)))
    called = 0
    for rollout, watched in played:
        check_tokens(rollout, watched, renderer)
        called += sum(len(renderer.parse_ids(sampled).commands) for _, sampled in watched.requests)
        assert all(math.isfinite(value) for value in rollout.streams[0].logprobs)
    passed = sum(rollout.result.passed for rollout, _ in played)
    print(f"{family}: {called} calls, {passed} of {EPISODES} passed")
    record(STUDENT, family, {"episodes": EPISODES, "calls": called, "passed": passed})
    assert called >= EPISODES  # the golden episode has two calls; some may be spoilt by chance
    assert passed >= EPISODES // 2


def test_the_vocabularies_are_the_real_ones() -> None:
    assert qwen3_5_tokenizer().token_to_id("<think>") == 248_068
    assert harmony_encoding().encode("<|call|>", allowed_special="all") == [200_012]
