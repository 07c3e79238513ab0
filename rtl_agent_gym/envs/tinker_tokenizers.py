"""Tokenizers for tinker-cookbook's own trainers without access to the Hugging Face hub.

The trainers load a model's tokenizer by its name from the hub. `register_tokenizers` makes the cookbook load the
tokenizers of Qwen3 and GPT-OSS from the hub's cache on this machine, otherwise from the vocabularies that
`rtl_agent_gym.renderers.vocabularies` finds or rebuilds. Both give the published ids.
A vocabulary carries no chat template, so `apply_chat_template` works only with a tokenizer from the hub's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from ..renderers.vocabularies import harmony_encoding, qwen3_tokenizer

QWEN3_MODELS = tuple(
    f"Qwen/Qwen3-{size}"
    for size in (
        *("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B"),
        *("4B-Instruct-2507", "30B-A3B-Instruct-2507", "235B-A22B-Instruct-2507"),
        *("4B-Thinking-2507", "30B-A3B-Thinking-2507", "235B-A22B-Thinking-2507"),
    )
)
"""Models with Qwen3's vocabulary."""

GPT_OSS_MODELS = ("openai/gpt-oss-20b", "openai/gpt-oss-120b")
"""Models with Harmony's vocabulary."""


class HarmonyTokenizer:
    """Harmony's vocabulary with the methods that the cookbook calls. Control tokens in a text are encoded as such."""

    bos_token, eos_token = "<|startoftext|>", "<|return|>"

    def __init__(self, name: str) -> None:
        self.name_or_path = name
        self._encoding = harmony_encoding()
        self.eos_token_id = self.encode(self.eos_token)[0]

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        """The ids of a text. Harmony adds no tokens of its own, so `add_special_tokens` changes nothing."""
        return list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids: int | Sequence[int], **_: Any) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return str(self._encoding.decode([ids] if isinstance(ids, int) else list(ids), errors="replace"))


def register_tokenizers() -> None:
    """Register the tokenizers of Qwen3 and GPT-OSS with tinker-cookbook, unless they are registered already."""
    from tinker_cookbook import tokenizer_utils

    makers = dict.fromkeys(QWEN3_MODELS, _qwen3) | dict.fromkeys(GPT_OSS_MODELS, HarmonyTokenizer)
    for name, make in makers.items():
        if not tokenizer_utils.is_tokenizer_registered(name):
            tokenizer_utils.register_tokenizer(name, partial(_load, name, make))


@cache
def _load(name: str, make: Callable[[str], Any]) -> Any:
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer

    if not isinstance(try_to_load_from_cache(name, "tokenizer.json"), str):
        return make(name)
    return AutoTokenizer.from_pretrained(name)


def _qwen3(name: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=qwen3_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.name_or_path = name  # as an argument, it would make transformers query the hub
    return tokenizer
