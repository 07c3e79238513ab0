"""What a Tinker environment is made of, as plain configuration, and the dialect that comes of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..episodes.rules import SINGLE_TURN_FEEDBACK, EpisodeConfig
from ..errors import UsageError
from ..renderers import RENDERER_NAMES, Renderer, get_renderer
from ..renderers.calls import printable
from ..renderers.vocabularies import qwen3_tokenizer
from ..scoring import RewardWeights

_QWEN3 = re.compile(r"Qwen/Qwen3-\d.*")
"""Models of the one vocabulary that can be had without the hub."""


@dataclass(frozen=True)
class TinkerEnvConfig:
    """Everything an environment is made of, except its problem. Plain values, so that it pickles."""

    model_name: str = "Qwen/Qwen3-8B"
    """Whose tokenizer is used: a Hugging Face name, a folder, or a name registered with the cookbook."""
    renderer_name: str | None = None
    """The dialect; None for the one that the cookbook recommends for the model."""
    single_turn: bool = False
    """One completion instead of a shell."""
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    """The rules of an episode."""
    max_tokens: int | None = None
    """Tokens that one turn may sample; None leaves it to the trainer."""
    max_trajectory_tokens: int | None = None
    """Tokens of a whole episode, prompt, samples and outputs together; None for no limit."""
    max_prompt_tokens: int | None = None
    """Tokens of the opening; a longer task is shortened, and the prompt says where. None for no limit."""
    overflow_reward: float = 0.0
    """Reward where not even the shortened opening fits."""
    reward: RewardWeights | None = None
    """What the score's parts are worth; None for the default."""
    score_cache: Path | None = None
    """Folder of kept gradings; None keeps none."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_trajectory_tokens", "max_prompt_tokens"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be greater than 0, or None for no limit; got {value!r}")
        if self.single_turn and self.episode.harness_feedback:
            raise UsageError(SINGLE_TURN_FEEDBACK)

    @property
    def fewest_tokens(self) -> int:
        """Tokens that must be left for a turn to be begun at all."""
        # The cookbook's rollout loop ends an episode itself, ungraded, when a single token is left.
        return max(2, min(self.max_tokens or MIN_TURN_TOKENS, MIN_TURN_TOKENS))

    @property
    def prompt_limit(self) -> int | None:
        """Tokens that the opening may have; None for no limit."""
        limits = [] if self.max_prompt_tokens is None else [self.max_prompt_tokens]
        if self.max_trajectory_tokens is not None:
            limits.append(max(1, self.max_trajectory_tokens - self.fewest_tokens))
        return min(limits, default=None)


MIN_TURN_TOKENS = 256
"""A turn with less room than this is not begun: no useful call fits into it."""


@dataclass(frozen=True)
class Dialect:
    """A renderer with its vocabulary, and the way back to text."""

    renderer: Renderer
    decode: Callable[[Sequence[int]], str]
    """The text of ids, control tokens written out."""


_making = threading.Lock()


def load_dialect(config: TinkerEnvConfig) -> Dialect:
    """The dialect of a configuration; one object a process.

    Raises:
        UsageError: There is no such renderer or tokenizer, or none is recommended for the model.
    """
    with _making:
        return _load_dialect(config.model_name, config.renderer_name)


@lru_cache(maxsize=8)
def _load_dialect(model_name: str, renderer_name: str | None) -> Dialect:
    name = renderer_name or recommended_renderer(model_name)
    tokenizer = None if name.startswith("gpt_oss") else load_tokenizer(model_name)
    renderer = get_renderer(name, tokenizer)
    codec = renderer.codec  # now, under the lock: environments open their prompts in threads
    return Dialect(renderer, lambda ids: printable(codec.decode(ids)))


def recommended_renderer(model_name: str) -> str:
    """The first dialect that the cookbook recommends for a model and that there is here.

    Raises:
        UsageError: There is none; the message lists those that can be named.
    """
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.model_info import get_recommended_renderer_names

    try:
        recommended = get_recommended_renderer_names(model_name)
    except (ConfigurationError, KeyError, ValueError):
        recommended = []
    for name in recommended:
        if name in RENDERER_NAMES:
            return name
    raise UsageError(f"no renderer is known for {model_name!r}; give renderer_name, one of {', '.join(RENDERER_NAMES)}")


def load_tokenizer(model_name: str) -> Any:
    """A model's tokenizer: registered with the cookbook, Qwen3's own wherever it can be had, or from the hub.

    Raises:
        UsageError: It cannot be had.
    """
    from tinker_cookbook import tokenizer_utils

    if _QWEN3.fullmatch(model_name) and not tokenizer_utils.is_tokenizer_registered(model_name):
        return qwen3_tokenizer()
    try:
        return tokenizer_utils.get_tokenizer(model_name)
    except (OSError, ValueError) as error:  # what transformers and the hub raise
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"the tokenizer of {model_name!r} cannot be had: {first} "
            "(reach the hub once, give a folder, or register it with tinker_cookbook.tokenizer_utils)"
        ) from error
