"""Model dialects: text and tokens to actions and back. Renderer names follow tinker-cookbook's."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from .gpt_oss import GPT_OSS_NAMES, GptOssRenderer
from .protocol import MAX_CALLS, TOOL_NAME, Action, Message, ModelTurn, ToolCall, with_notes
from .qwen import QWEN_NAMES, QwenRenderer
from .renderer import Renderer

__all__ = [
    "MAX_CALLS",
    "RENDERER_NAMES",
    "TOOL_NAME",
    "Action",
    "Message",
    "ModelTurn",
    "Renderer",
    "ToolCall",
    "get_renderer",
    "with_notes",
]

RENDERER_NAMES: tuple[str, ...] = QWEN_NAMES + GPT_OSS_NAMES
"""The names that `get_renderer` accepts."""


def get_renderer(name: str, tokenizer: Any = None) -> Renderer:
    """The renderer of that name.

    Args:
        name: One of `RENDERER_NAMES`.
        tokenizer: The model's tokenizer. Only the token side of the Qwen dialects needs one; gpt-oss has its own.

    Raises:
        UsageError: No renderer has that name.
    """
    if name in QWEN_NAMES:
        return QwenRenderer(name, tokenizer)
    if name in GPT_OSS_NAMES:
        return GptOssRenderer(name)
    raise UsageError(f"no renderer {name!r}; there are {', '.join(RENDERER_NAMES)}")
