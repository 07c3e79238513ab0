"""Which models the local engine reads, and how it computes them."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
import torch
import transformers

from rtl_agent_gym.engines import local, models
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient
from rtl_agent_gym.engines.models import grouped_attention, own_lengths
from rtl_agent_gym.errors import UsageError

from .conftest import datum, model_of, prompt_of, save_beside_tokenizer, step


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


def test_attention_is_never_cudnns() -> None:
    """It builds a plan for each new length, so for each step of sampling, and is torch's first choice on an H100."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    with LocalServiceClient() as made:
        assert made.submit(torch.backends.cuda.cudnn_sdp_enabled).result() is False


def test_a_device_that_is_not_there_is_refused() -> None:
    for device in ("cuda:7", "gpu"):
        with pytest.raises(UsageError, match="device: "):
            LocalServiceClient(LocalEngineConfig(device=device))


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
