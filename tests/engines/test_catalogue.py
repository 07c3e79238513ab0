"""From a model's name to its dialect."""

from __future__ import annotations

import sys

import pytest

from rtl_agent_gym.engines.catalogue import dialects_of, renderer_for
from rtl_agent_gym.errors import UsageError


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


@pytest.mark.parametrize("model", ["somebody/some-model", "tinker://run/weights", "folder", "Qwen/Qwen2-7B"])
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
