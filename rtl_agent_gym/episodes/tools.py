"""The opening of an episode for models whose framework declares the tool natively."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..problems import Problem
from ..renderers import Message, get_renderer
from ..renderers.protocol import TOOL
from ..renderers.renderer import ToollessRenderer
from .prompt import open_prompt
from .rules import EpisodeConfig


@dataclass(frozen=True)
class ToolOpening:
    """A prompt without instructions on how a dialect writes calls, and the declared tools."""

    messages: list[Message]
    """System message, if any, and user message."""
    tools: list[dict[str, Any]]
    """JSON schemas in the form of OpenAI's chat completions; none for the workspace ``"answer"``."""


def tool_opening(problem: Problem, config: EpisodeConfig | None = None) -> ToolOpening:
    """The opening of a problem for `Episode.act`, under the rules of an episode (None: the defaults).

    Raises:
        UsageError: The rules limit the prompt's tokens, which depend on the model's own chat template.
    """
    config = (config or EpisodeConfig()).with_options(teach_dialect=False)
    if config.prompt_limit is not None:
        raise UsageError(
            "max_prompt_tokens and max_trajectory_tokens need a renderer with the model's vocabulary; where the tool "
            "is declared natively, the framework or its server limits tokens"
        )
    plain = ToollessRenderer(get_renderer("qwen3"))
    opening = open_prompt(problem, config, plain)
    shell = config.workspace == "shell"
    return ToolOpening(plain.initial_messages(opening.system, opening.user), [TOOL] if shell else [])
