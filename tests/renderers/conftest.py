"""The real vocabularies, and the models' own ways to render and parse, to compare with."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.vocabularies import Codec, harmony_encoding, qwen3_tokenizer
from tests.renderers.families import HarmonyAsTokenizer

FAMILIES = ["qwen3", "qwen3_disable_thinking", "qwen3_instruct", "gpt_oss"]
Make = Callable[[str], Renderer]
Sampled = Callable[[str, str], list[int]]
ValidCall = Callable[[str, str], str]


@pytest.fixture(scope="session")
def qwen_vocabulary() -> Any:
    """Qwen3's tokenizer, a `tokenizers.Tokenizer`."""
    return qwen3_tokenizer()


@pytest.fixture(scope="session")
def harmony() -> Any:
    """Harmony's encoding."""
    return harmony_encoding()


@pytest.fixture(scope="session")
def make(qwen_vocabulary: Any, harmony: Any) -> Callable[[str], Renderer]:
    """A renderer with its vocabulary, by name. One object a name: making one takes a second."""
    made: dict[str, Renderer] = {}

    def make_one(name: str) -> Renderer:
        if name not in made:
            made[name] = get_renderer(name, qwen_vocabulary if name.startswith("qwen") else None)
        return made[name]

    return make_one


@pytest.fixture(scope="session")
def qwen_chat(qwen_vocabulary: Any) -> Any:
    """Qwen3's tokenizer as transformers wraps it."""
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=qwen_vocabulary, eos_token="<|im_end|>", pad_token="<|endoftext|>")


@pytest.fixture(scope="session")
def chat_template() -> Callable[[str], str]:
    """A model's own chat template, by the name of trl's copy of it."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("the models' chat templates are read from the package trl, which is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return lambda name: (folder / f"{name}.jinja").read_text()


@pytest.fixture(scope="session")
def cookbook() -> Any:
    """tinker-cookbook's renderers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tinker_cookbook.renderers")


@pytest.fixture(scope="session")
def harmony_as_tokenizer(harmony: Any) -> HarmonyAsTokenizer:
    return HarmonyAsTokenizer(harmony)


@pytest.fixture(scope="session")
def sampled(qwen_vocabulary: Any, harmony: Any) -> Callable[[str, str], list[int]]:
    """The ids that a model of a renderer's family samples for a text with control tokens written out."""

    def ids(name: str, text: str) -> list[int]:
        if name.startswith("qwen"):
            return list(qwen_vocabulary.encode(text, add_special_tokens=False).ids)
        return list(harmony.encode(text, allowed_special="all"))

    return ids


@pytest.fixture(scope="session")
def letters(qwen_vocabulary: Any, harmony: Any) -> Callable[[str, str], list[int]]:
    """The ids of a text whose control tokens are only spelled, letter by letter."""

    def ids(name: str, text: str) -> list[int]:
        if name.startswith("qwen"):
            return Codec(qwen_vocabulary).encode([text])
        return list(harmony.encode(text, disallowed_special=()))

    return ids


@pytest.fixture(scope="session")
def lone_byte(qwen_vocabulary: Any, harmony: Any) -> Callable[[str], int]:
    """A token that is one byte, which alone is not UTF-8."""

    def id_(name: str) -> int:
        text: Any = (
            (lambda n: qwen_vocabulary.decode([n])) if name.startswith("qwen") else (lambda n: harmony.decode([n]))
        )
        return next(n for n in range(256) if text(n) == "\ufffd")

    return id_


@pytest.fixture(scope="session")
def decoded(qwen_vocabulary: Any, harmony: Any) -> Callable[[str, list[int]], str]:
    """The text of ids, control tokens written out, by the vocabulary's own decoder."""

    def text(name: str, ids: list[int]) -> str:
        if name.startswith("qwen"):
            return str(qwen_vocabulary.decode(ids, skip_special_tokens=False))
        return str(harmony.decode(ids))

    return text


@pytest.fixture(scope="session")
def valid_call() -> Callable[[str, str], str]:
    """A right completion that runs a command, by the renderer's name."""

    def completion(name: str, command: str) -> str:
        arguments = json.dumps({"command": command}, ensure_ascii=False)
        if name.startswith("qwen"):
            call = f'<tool_call>\n{{"name": "execute_bash", "arguments": {arguments}}}\n</tool_call>'
            return f"<think>\nhm\n</think>\n\n{call}<|im_end|>"
        return (
            "<|channel|>analysis<|message|>hm<|end|>"
            "<|start|>assistant to=functions.execute_bash<|channel|>commentary <|constrain|>json<|message|>"
            f"{arguments}<|call|>"
        )

    return completion
