"""What is known of published models by their names: which dialect they speak, and whether the hub has them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import UsageError
from ..renderers import RENDERER_NAMES

HUB_PATIENCE = 3.0
"""Seconds that the hub has to say whether it has a model."""

_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"openai/gpt-oss-\d+b", ("gpt_oss",)),
    (r"Qwen/Qwen3-Coder-.*", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-.*-Instruct(-\d+)?", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-.*", ("qwen3", "qwen3_disable_thinking", "qwen3_instruct")),
)
"""Chat models by name, and the dialects that they speak, the best one first."""

_OTHER_PURPOSE = re.compile(r"Qwen/Qwen3-(?:.*-)?(Base|VL|Omni|Embedding|Reranker|ASR|TTS)(?:-.*)?")
"""Models with a chat model's name that speak none of the dialects here, unless they were taught one."""


def renderer_for(model: str, asked: str | None, engine: str, model_option: str, option: str) -> str:
    """The dialect of a model: the one asked for if it fits, or the best known.

    Args:
        model: Its name.
        asked: The dialect that the options name.
        engine: ``local`` or ``tinker``.
        model_option: The option that names the model, for errors.
        option: The one that names the dialect.

    Raises:
        UsageError: The model is unknown, or the dialect does not fit it.
    """
    other = _OTHER_PURPOSE.fullmatch(model)
    if other is not None and asked is None:
        what = "a base model, which was taught no dialect" if other[1] == "Base" else f"a {other[1]} model"
        raise UsageError(
            f"{model_option}: {model} is {what}; take the chat model, or name the dialect that it has been taught "
            f"with {option}, such as {option}=qwen3_instruct"
        )
    fitting = next((names for pattern, names in _FAMILIES if re.fullmatch(pattern, model)), None)
    if fitting is not None:
        if asked is None:
            return fitting[0]
        if not any(asked == name or (name == "gpt_oss" and asked.startswith("gpt_oss")) for name in fitting):
            raise UsageError(f"{option}: {asked} does not fit {model}; take {', '.join(fitting)}")
        return asked
    if engine != "local" and not model.startswith("tinker://"):
        raise UsageError(
            f"{model_option}: {model!r} is unknown; the dialects here are those of Qwen3 and gpt-oss models"
        )
    if engine == "local" and not Path(model).is_dir() and "/" not in model:
        raise UsageError(f"{model_option}: there is no folder {model!r}, and it is no name of the hub either")
    if asked is None:
        raise UsageError(f"{option}: no dialect is known for {model!r}; name one of {', '.join(RENDERER_NAMES)}")
    return asked


def check_hub(model: str, option: str) -> None:
    """Raises `UsageError` for a model that is neither in the hub's cache on this machine nor on the hub itself."""
    import requests
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    advice = "give a folder as transformers saves them, or the name of a model that the hub has"
    if constants.HF_HUB_OFFLINE:
        raise UsageError(f"{option}: {model!r} is not on this machine, and HF_HUB_OFFLINE is set; {advice}")
    token = os.environ.get("HF_TOKEN")
    try:
        found = requests.head(
            f"{constants.ENDPOINT}/{model}/resolve/main/config.json",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=HUB_PATIENCE,
            allow_redirects=False,
        )
    except requests.RequestException as error:
        raise UsageError(
            f"{option}: {model!r} is not on this machine, and the hub does not answer "
            f"({type(error).__name__}); {advice}"
        ) from error
    if found.status_code in (401, 403, 404):
        raise UsageError(f"{option}: the hub has no model {model!r} that may be read from here; {advice}")
