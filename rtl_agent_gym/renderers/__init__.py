"""Model dialects: text and tokens to actions and back. Renderer names follow tinker-cookbook's."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from .families import ALIASES
from .gpt_oss import GPT_OSS_NAMES, GptOssRenderer
from .library import LIBRARY_NAMES, LibraryRenderer
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

RENDERER_NAMES: tuple[str, ...] = QWEN_NAMES + GPT_OSS_NAMES + LIBRARY_NAMES
"""The names of the dialects. `get_renderer` also accepts those of the library ``renderers``."""


def get_renderer(name: str, tokenizer: Any = None) -> Renderer:
    """The renderer of that name.

    Args:
        name: One of `RENDERER_NAMES`.
        tokenizer: The model's tokenizer. Only the token side of the Qwen dialects needs one; gpt-oss has its own.

    Raises:
        UsageError: No renderer has that name.
    """
    name = ALIASES.get(name, name)
    if name in QWEN_NAMES:
        return QwenRenderer(name, tokenizer)
    if name in GPT_OSS_NAMES:
        return GptOssRenderer(name)
    if name in LIBRARY_NAMES:
        return LibraryRenderer(name, tokenizer)
    raise UsageError(f"no renderer {name!r}; there are {', '.join(RENDERER_NAMES)}")
