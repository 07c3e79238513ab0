"""The configuration of an environment for tinker-cookbook, and the renderer and tokenizer that it names.

tinker-cookbook's own trainers load a model's tokenizer by its name from the Hugging Face hub. `register_tokenizers`
makes the cookbook load those of Qwen3 to Qwen3.8 and GPT-OSS from the hub's cache on this machine, otherwise from the
vocabularies that `rtl_agent_gym.renderers.vocabularies` finds or rebuilds. Both give the published ids. A vocabulary
has no chat template, so `apply_chat_template` works only with a tokenizer from the hub's cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from ..engines.catalogue import DEFAULT_STUDENT, renderer_for
from ..episodes.rules import EpisodeConfig, Reward, read_reward
from ..errors import UsageError
from ..renderers import Renderer, renderer_named
from ..renderers.vocabularies import harmony_encoding, published_tokenizer
from ..scoring import RewardWeights


@dataclass(frozen=True, init=False)
class TinkerEnvConfig:
    """All settings of an environment except its problem. Holds plain values, so it can be pickled.

    Args:
        single_turn: Sets the workspace of `episode`: ``"answer"`` (True) or ``"shell"`` (False).
        **rules: Options of `EpisodeConfig` by name, such as ``max_tokens=4096``; they replace those of `episode`.

    Raises:
        UsageError: An option is wrong; the message names it.
    """

    model_name: str
    """The model whose tokenizer is used: a Hugging Face name, a folder, or a name registered with the cookbook."""
    renderer_name: str | None
    """None for the one that `renderer_for` chooses for the model."""
    episode: EpisodeConfig
    """The rules of an episode, token budgets included."""
    overflow_reward: float
    """Reward of an episode whose prompt does not fit its budget, even when shortened."""
    reward: RewardWeights | None
    """Reward weights; None for the default."""
    score_cache: Path | None
    """Folder of cached gradings; None for no cache."""

    def __init__(
        self,
        model_name: str = DEFAULT_STUDENT,
        renderer_name: str | None = None,
        episode: EpisodeConfig | None = None,
        overflow_reward: float = 0.0,
        reward: Reward = None,
        score_cache: Path | None = None,
        *,
        single_turn: bool | None = None,
        **rules: Any,
    ) -> None:
        if single_turn is not None:
            rules["workspace"] = "answer" if single_turn else "shell"
        if not math.isfinite(overflow_reward):
            raise UsageError(f"overflow_reward must be a finite number, got {overflow_reward!r}")
        weights, function = read_reward(reward)
        if function is not None:
            raise UsageError("reward must be RewardWeights, a mapping of them or a preset's name here, not a function")
        self.__dict__.update(
            model_name=model_name,
            renderer_name=renderer_name,
            episode=(episode or EpisodeConfig()).with_options(**rules),
            overflow_reward=overflow_reward,
            reward=weights,
            score_cache=score_cache,
        )

    @property
    def single_turn(self) -> bool:
        """Whether the workspace is ``"answer"``."""
        return self.episode.workspace == "answer"


_loading = threading.Lock()


def load_renderer(config: TinkerEnvConfig) -> Renderer:
    """The renderer of a configuration, with its vocabulary; one object per process.

    Raises `UsageError` if there is no such renderer or tokenizer, or no recommendation for the model.
    """
    with _loading:
        return _load_renderer(config.model_name, config.renderer_name)


@lru_cache(maxsize=8)
def _load_renderer(model_name: str, renderer_name: str | None) -> Renderer:
    name = renderer_name or renderer_for(model_name, None, option="renderer_name")
    tokenizer = None if name.startswith(("gpt_oss", "gpt-oss")) else load_tokenizer(model_name)
    renderer = renderer_named(name, tokenizer)
    _ = renderer.codec  # loaded here, under the lock: environments build their prompts in threads
    return renderer


def load_tokenizer(model_name: str) -> Any:
    """A model's tokenizer: registered with the cookbook, published, or from the hub. `UsageError` if there is none."""
    from tinker_cookbook import tokenizer_utils

    if not tokenizer_utils.is_tokenizer_registered(model_name):
        found = published_tokenizer(model_name)
        if found is not None:
            return found
    try:
        return tokenizer_utils.get_tokenizer(model_name)
    except (OSError, ValueError) as error:  # what transformers and the hub raise
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"the tokenizer of {model_name!r} cannot be loaded: {first} "
            "(connect to the hub once, name a folder, or register it with tinker_cookbook.tokenizer_utils)"
        ) from error


QWEN_MODELS = (
    *(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")),
    *(f"Qwen/Qwen3-{size}-Instruct-2507" for size in ("4B", "30B-A3B", "235B-A22B")),
    *(f"Qwen/Qwen3-{size}-Thinking-2507" for size in ("4B", "30B-A3B", "235B-A22B")),
    *(f"Qwen/Qwen3.5-{size}" for size in ("4B", "9B", "27B", "35B-A3B", "397B-A17B", "9B-Base", "35B-A3B-Base")),
    *("Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.8-27B"),
)
GPT_OSS_MODELS = ("openai/gpt-oss-20b", "openai/gpt-oss-120b")
"""Models whose tokenizers `register_tokenizers` registers."""


class HarmonyTokenizer:
    """Harmony's vocabulary with the methods that the cookbook calls. Control tokens in a text are encoded as such."""

    bos_token, eos_token = "<|startoftext|>", "<|return|>"

    def __init__(self, name: str) -> None:
        self.name_or_path = name
        self._encoding = harmony_encoding()
        self.eos_token_id = self.encode(self.eos_token)[0]

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        """The ids of a text. Harmony adds no tokens, so `add_special_tokens` changes nothing."""
        return list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids: int | Sequence[int], **_: Any) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return str(self._encoding.decode([ids] if isinstance(ids, int) else list(ids), errors="replace"))


def register_tokenizers() -> None:
    """Register tokenizers of Qwen3 to Qwen3.8 and GPT-OSS with tinker-cookbook, unless they are registered already."""
    from tinker_cookbook import tokenizer_utils

    for name in (*QWEN_MODELS, *GPT_OSS_MODELS):
        if not tokenizer_utils.is_tokenizer_registered(name):
            tokenizer_utils.register_tokenizer(name, partial(_load, name))


@cache
def _load(name: str) -> Any:
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    is_cached = isinstance(try_to_load_from_cache(name, "tokenizer.json"), str)
    if name in GPT_OSS_MODELS and not is_cached:
        return HarmonyTokenizer(name)
    found = None if is_cached else published_tokenizer(name)
    if found is None:
        return AutoTokenizer.from_pretrained(name)
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=found, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.name_or_path = name  # as an argument, it would make transformers query the hub
    return tokenizer
