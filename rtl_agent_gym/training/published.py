"""Published models: which dialect fits a model's name, and whether the Hugging Face hub has it."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import UsageError
from ..renderers import RENDERER_NAMES

HUB_PATIENCE = 3.0
"""Seconds to wait for the hub's answer."""

_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"openai/gpt-oss-\d+b", ("gpt_oss",)),
    (r"Qwen/Qwen3-Coder-.*", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-.*-Instruct(-\d+)?", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-.*", ("qwen3", "qwen3_disable_thinking", "qwen3_instruct")),
)
"""Names of chat models, and their dialects, the preferred one first."""

_OTHER_PURPOSE = re.compile(r"Qwen/Qwen3-(?:.*-)?(Base|VL|Omni|Embedding|Reranker|ASR|TTS)(?:-.*)?")
"""Models whose names look like a chat model's, but that were not trained on a dialect here."""


def renderer_for(model: str, requested: str | None, engine: str, model_option: str, option: str) -> str:
    """The dialect of a model: the requested one if it fits, or the preferred one if none is requested.

    Raises:
        UsageError: The model (of `model_option`) is unknown, or the dialect (of `option`) does not fit it.
    """
    other = _OTHER_PURPOSE.fullmatch(model)
    if other is not None and requested is None:
        what = "a base model" if other[1] == "Base" else f"a {other[1]} model"
        raise UsageError(
            f"{model_option}: {model} is {what}, which was not trained on a dialect here; choose a chat model, or name "
            f"the dialect that it was trained on with {option}, such as {option}=qwen3_instruct"
        )
    fitting = next((names for pattern, names in _FAMILIES if re.fullmatch(pattern, model)), None)
    if fitting is not None:
        if requested is None:
            return fitting[0]
        if not any(requested == name or (name == "gpt_oss" and requested.startswith("gpt_oss")) for name in fitting):
            raise UsageError(f"{option}: {requested} does not fit {model}; choose {' or '.join(fitting)}")
        return requested
    if engine != "local" and not model.startswith("tinker://"):
        raise UsageError(
            f"{model_option}: {model!r} is unknown; Qwen3 and gpt-oss chat models of the service are supported"
        )
    if engine == "local" and not Path(model).is_dir() and "/" not in model:
        raise UsageError(f"{model_option}: {model!r} is neither a folder nor a name on the Hugging Face hub")
    if requested is None:
        raise UsageError(f"{option}: the dialect of {model!r} is unknown; name one of {', '.join(RENDERER_NAMES)}")
    return requested


def check_hub(model: str, option: str) -> None:
    """Raise `UsageError` if a model is neither in the hub's cache on this machine nor on the hub."""
    import httpx
    from huggingface_hub import model_info, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    advice = "give a folder in the format of transformers, or the name of a model on the hub"
    try:
        model_info(model, timeout=HUB_PATIENCE)
    except RepositoryNotFoundError as error:
        raise UsageError(f"{option}: the hub has no model {model!r}, or it needs another HF_TOKEN; {advice}") from error
    except (OSError, httpx.HTTPError) as error:  # also if HF_HUB_OFFLINE is set
        raise UsageError(
            f"{option}: {model!r} is not on this machine, and the hub does not answer "
            f"({type(error).__name__}); {advice}"
        ) from error
