"""From a model's name to its dialect."""

from __future__ import annotations

import sys

import pytest

from rtl_agent_gym.engines.catalogue import dialects_of, renderer_for
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers.families import ALIASES, VARIANTS


@pytest.mark.parametrize("cookbook", [True, False], ids=["with the cookbook", "without it"])
@pytest.mark.parametrize(
    ("model", "renderer"),
    [
        ("Qwen/Qwen3-8B", "qwen3"),
        ("Qwen/Qwen3-14B", "qwen3"),  # of which the cookbook knows nothing
        ("Qwen/Qwen3-4B-Thinking-2507", "qwen3"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3_instruct"),
        ("openai/gpt-oss-20b", "gpt_oss_medium_reasoning"),
        ("openai/gpt-oss-120b:peft:131072", "gpt_oss_medium_reasoning"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseekv3"),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "deepseekv4"),
        ("deepseek-ai/DeepSeek-V4.1-Flash", "deepseekv4_1"),
    ],
)
def test_a_models_dialect_follows_from_its_name(
    cookbook: bool, model: str, renderer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cookbook:
        monkeypatch.setitem(sys.modules, "tinker_cookbook.model_info", None)
    assert renderer_for(model, None) == renderer


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3.5-9B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B",
        "deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V4.1-Flash", "moonshotai/Kimi-K2-Thinking",
        "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6", "zai-org/GLM-5.3", "zai-org/GLM-5.3-Flash",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "meta-llama/Llama-3.3-70B-Instruct",
    ],
)  # fmt: skip
def test_without_the_cookbook_the_patterns_give_its_first_choice(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tinker_cookbook")
    first = dialects_of(model)[0]
    monkeypatch.setitem(sys.modules, "tinker_cookbook.model_info", None)
    assert dialects_of(model)[0] == first


def test_a_dialect_must_be_of_the_models_family() -> None:
    assert renderer_for("Qwen/Qwen3-8B", "qwen3_disable_thinking") == "qwen3_disable_thinking"
    assert renderer_for("Qwen/Qwen3-8B", "qwen3_instruct") == "qwen3_instruct"
    assert renderer_for("openai/gpt-oss-20b", "gpt_oss") == "gpt_oss"
    assert renderer_for("Qwen/Qwen3-8B", "my_package.dialects:Mine") == "my_package.dialects:Mine"
    with pytest.raises(UsageError, match=r"^renderer_name: gpt_oss does not fit Qwen/Qwen3-8B; choose qwen3 or"):
        renderer_for("Qwen/Qwen3-8B", "gpt_oss")
    with pytest.raises(UsageError, match=r"choose qwen3_instruct$"):
        renderer_for("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3")


MODELS = {
    "qwen3_5": "Qwen/Qwen3.5-9B", "qwen3_6": "Qwen/Qwen3.6-27B", "qwen3_8": "Qwen/Qwen3.8-27B",
    "qwen3_coder": "Qwen/Qwen3-Coder-30B-A3B-Instruct", "glm5_3": "zai-org/GLM-5.3",
    "kimi_k2": "moonshotai/Kimi-K2-Thinking", "kimi_k25": "moonshotai/Kimi-K2.5",
    "nemotron3": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron3_ultra": "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "nemotron3_5": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
    "deepseekv4": "deepseek-ai/DeepSeek-V4-Flash-0731", "llama3": "meta-llama/Llama-3.3-70B-Instruct",
    "gpt_oss": "openai/gpt-oss-20b",
}  # fmt: skip
"""A model of each family."""


@pytest.mark.parametrize("alias", ALIASES)
def test_the_librarys_name_of_a_dialect_fits_its_models(alias: str) -> None:
    name = ALIASES[alias]
    assert renderer_for(MODELS[VARIANTS[name].family if name in VARIANTS else name], alias) == name
    assert renderer_for("folder", alias) == name


@pytest.mark.parametrize(
    "model",
    ["somebody/some-model", "tinker://run/weights", "folder", "Qwen/Qwen2-7B", "deepseek-ai/DeepSeek-V3.2"],
)
def test_an_unknown_model_says_which_dialects_there_are(model: str) -> None:
    with pytest.raises(UsageError, match=rf"^its_dialect: the dialect of '{model}' is unknown; name one of qwen3, "):
        renderer_for(model, None, option="its_dialect")
    assert renderer_for(model, "qwen3") == "qwen3"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("Qwen/Qwen3-8B-Base", "a base model"),
        ("Qwen/Qwen3.5-9B-Base", "a base model"),
        ("meta-llama/Llama-3.1-8B", "a base model"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "a model of the kind VL"),
        ("Qwen/Qwen3-Embedding-8B", "a model of the kind Embedding"),
    ],
)
def test_a_model_without_a_dialect_needs_a_name(model: str, kind: str) -> None:
    with pytest.raises(UsageError, match=rf"^model_name: {model} is {kind}, .* renderer_name=qwen3_instruct$"):
        renderer_for(model, None)
    assert renderer_for(model, "qwen3") == "qwen3"


def test_a_dialect_that_is_not_here_is_named() -> None:
    with pytest.raises(
        UsageError, match="is kimi_k31_pro_max_reasoning, which this package does not have; name one of"
    ):
        renderer_for("moonshotai/Kimi-K3.1-Pro", None)
    assert (
        renderer_for("thinkingmachines/Inkling-Small", None) == "inkling"
    )  # by the library's name, not the cookbook's
