"""Model dialects: they convert text and tokens to actions and back. Renderer names follow tinker-cookbook's."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import UsageError, near_matches
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
    "is_renderer_name",
    "near_renderers",
    "renderer_named",
    "with_notes",
]

RENDERER_NAMES: tuple[str, ...] = (*QWEN_NAMES, *GPT_OSS_NAMES, *LIBRARY_NAMES, *ALIASES)
"""The names that `get_renderer` accepts: tinker-cookbook's, then those of the library ``renderers``."""


def get_renderer(name: str, tokenizer: Any = None) -> Renderer:
    """Return the renderer with this name.

    Args:
        name: One of `RENDERER_NAMES`.
        tokenizer: The model's tokenizer, for the token side only; gpt-oss has its own.

    Raises:
        UsageError: No renderer has this name.
    """
    name = ALIASES.get(name, name)
    if name in QWEN_NAMES:
        return QwenRenderer(name, tokenizer)
    if name in GPT_OSS_NAMES:
        return GptOssRenderer(name)
    if name in LIBRARY_NAMES:
        return LibraryRenderer(name, tokenizer)
    raise UsageError(f"no renderer {name!r}; {near_renderers(name)}")


def renderer_named(name: str, tokenizer: Any = None) -> Renderer:
    """Like `get_renderer`, but ``module:Class`` is also accepted: a third party's subclass of `Renderer`.

    This imports the module, so the name must come from the user and never from a file.

    Raises:
        UsageError: There is no such renderer, or it is not a `Renderer`.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return get_renderer(name, tokenizer)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"renderer {name!r}: {error}; name an importable module and a class in it") from error
    if not (isinstance(found, type) and issubclass(found, Renderer)):
        raise UsageError(f"renderer {name!r} is not a subclass of rtl_agent_gym.renderers.Renderer")
    return found(name, tokenizer)


def near_renderers(name: str) -> str:
    """A clause for an error message about the unknown `name`: the most similar dialects, or if none is, all of them."""
    return near_matches(name, RENDERER_NAMES, f"choose one of {', '.join(RENDERER_NAMES)}")


def is_renderer_name(name: str) -> bool:
    """Whether the name is a dialect's, or has the form ``module:Class``, which is not imported here."""
    return name in RENDERER_NAMES or ":" in name
