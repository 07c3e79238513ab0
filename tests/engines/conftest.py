"""A model of a few thousand random weights, in the architecture of Qwen3, an engine for it, and data."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient


def make_model(folder: Path, seed: int = 0, **options: object) -> Path:
    """Save a random model and a tokenizer of bytes."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    library: Any = transformers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: id_ for id_, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    settings: dict[str, object] = {
        "vocab_size": len(fast),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": fast.eos_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library.Qwen3ForCausalLM(library.Qwen3Config(**(settings | options)))
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


KINDS = ["qwen3", "gpt2", "sliding", "mixed", "images"]


def model_of(kind: str, folder: Path, qwen3: Path) -> Path:
    """A random model of this architecture, in `folder` if it is not the given one."""
    import torch
    import transformers

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


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[LocalServiceClient]:
    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path, max_batch=8)) as made:
        yield made


@pytest.fixture
async def sampler(service: LocalServiceClient, model_path: Path) -> LocalSamplingClient:
    """Samples from the random model."""
    return await service.create_sampling_client(base_model=str(model_path))


def save_beside_tokenizer(model: Any, folder: Path, tokenizer: Path) -> Path:
    """Save a model with the tokenizer of another folder."""
    import transformers

    model.save_pretrained(folder)
    library: Any = transformers
    library.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random ids."""
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


def inputs(ids: list[int]) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(ids)


def datum(ids: list[int], **given: list[float]) -> tinker.Datum:
    """All ids but the first as targets, of equal weight if no inputs are given."""
    data: Any = {"target_tokens": ids[1:], **(given or {"weights": [1.0] * (len(ids) - 1)})}
    return tinker.Datum(model_input=inputs(ids[:-1]), loss_fn_inputs=data)


async def step(trainer: Any, data: list[tinker.Datum], learning_rate: float = 1e-2) -> float:
    """One step of supervised training. Returns the loss before it."""
    outcome = await trainer.forward_backward(data, "cross_entropy")
    await trainer.optim_step(tinker.AdamParams(learning_rate=learning_rate))
    return float(outcome.metrics["loss:sum"])


async def check_scores(
    sampler: Any, prompt: list[int], tokens: list[int], logprobs: list[float] | None, near: float = 1e-4
) -> None:
    """The log-probabilities that were sampled are those that scoring gives."""
    assert logprobs is not None
    assert len(logprobs) == len(tokens)
    scored = await sampler.compute_logprobs(inputs([*prompt, *tokens]))
    assert scored[len(prompt) :] == pytest.approx(logprobs, abs=near)
