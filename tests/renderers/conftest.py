"""The real vocabularies, and the models' own ways to render and parse, to compare with."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer
from tests.renderers.families import HarmonyAsTokenizer


@pytest.fixture(scope="session")
def qwen_chat() -> Any:
    """Qwen3's tokenizer as transformers wraps it."""
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=qwen3_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>")


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
def harmony_as_tokenizer() -> HarmonyAsTokenizer:
    return HarmonyAsTokenizer(harmony_encoding())
