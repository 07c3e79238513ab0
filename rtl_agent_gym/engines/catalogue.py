"""The dialects that published models were trained on, by the models' names.

tinker-cookbook's table (`tinker_cookbook.model_info`) comes first if it is installed: the provider of the models
maintains it. The patterns below are for models that it does not have, and for environments without it.
"""

from __future__ import annotations

import re

from ..errors import UsageError
from ..renderers import RENDERER_NAMES
from ..renderers.families import ALIASES

DEFAULT_STUDENT, DEFAULT_TEACHER = "Qwen/Qwen3.5-9B", "Qwen/Qwen3.6-27B"
"""The default models of a run on Tinker's service."""

_QWEN3_5 = ("qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking")
_PATTERNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"openai/gpt-oss-\d+b", ("gpt_oss_medium_reasoning",)),
    (r"Qwen/Qwen3-Coder-.*", ("qwen3_coder", "qwen3_instruct")),
    (r"Qwen/Qwen3-\d.*-Instruct(-\d+)?", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-\d.*-Thinking(-\d+)?", ("qwen3",)),
    (r"Qwen/Qwen3-\d.*", ("qwen3", "qwen3_disable_thinking")),
    (r"Qwen/Qwen3\.5-\d.*", _QWEN3_5),
    (r"Qwen/Qwen3\.6-\d.*", (*_QWEN3_5, "qwen3_6", "qwen3_6_disable_thinking", "qwen3_6_preserve_thinking")),
    (r"Qwen/Qwen3\.8-\d.*", ("qwen3_8_xhigh_reasoning", "qwen3_8_disable_thinking")),
    (r"deepseek-ai/DeepSeek-V3\.1.*", ("deepseekv3", "deepseekv3_thinking")),
    (r"deepseek-ai/DeepSeek-V4(-.*)?", ("deepseekv4", "deepseekv4_disable_thinking")),
    (r"deepseek-ai/DeepSeek-V4\.1.*", ("deepseekv4_1", "deepseekv4_1_disable_thinking")),
    (r"moonshotai/Kimi-K2(-.*)?", ("kimi_k2",)),
    (r"moonshotai/Kimi-K2\.5.*", ("kimi_k25", "kimi_k25_disable_thinking")),
    (r"moonshotai/Kimi-K2\.6.*", ("kimi_k26", "kimi_k26_disable_thinking")),
    (r"moonshotai/Kimi-K3\.1-Pro", ("kimi_k31_pro_max_reasoning", "kimi_k31_pro_disable_thinking")),
    (r"zai-org/GLM-5\.3.*", ("glm5_3_max_reasoning", "glm5_3_low_reasoning")),
    (r"nvidia/NVIDIA-Nemotron-3-Ultra-.*", ("nemotron3_ultra", "nemotron3_ultra_disable_thinking")),
    (r"nvidia/NVIDIA-Nemotron-3-.*", ("nemotron3", "nemotron3_disable_thinking")),
    (r"nvidia/NVIDIA-Nemotron-3\.5-.*", ("nemotron3_5", "nemotron3_ultra")),
    (r"thinkingmachines/Inkling.*", ("inkling",)),
    (r"meta-llama/Llama-3\..*-Instruct", ("llama3",)),
    (r"google/gemma-4-.*-it", ("gemma4",)),
)
"""Names of chat models and their dialects, the preferred one first: the cookbook's names, then this package's."""

_OTHER_PURPOSE = re.compile(
    r"Qwen/Qwen3-(?:.*-)?(?P<kind>VL|Omni|Embedding|Reranker|ASR|TTS)(?:-.*)?|[^:]*-(?P<base>Base)(?:-.*)?"
)
"""Models whose names look like a chat model's, but that were not trained on any of these dialects."""

_BASE_DIALECT = "role_colon"
"""The cookbook's dialect for models that were not trained on a dialect."""

_VARIANT = re.compile(
    r"_(?:((low|medium|high|xhigh|max)_)?(reasoning|thinking)|(disable|preserve)_thinking|no_reasoning_effort"
    r"|no_sysprompt|instruct|ultra)"
)
"""The part of a dialect's name after its family."""


def renderer_for(
    model: str, requested: str | None, *, model_option: str = "model_name", option: str = "renderer_name"
) -> str:
    """The dialect of a model: the requested one if it fits, or the recommended one if none is requested.

    `model` is a name on the Hugging Face hub, a folder, or the address of a checkpoint. Raises `UsageError`, beginning
    with the name of an option, if the model's dialect is unknown or not in this package, or the requested one does not
    fit.
    """
    requested = ALIASES.get(requested or "", requested)
    base_model = model if model.startswith("tinker://") else model.partition(":")[0]  # "…:peft:262144": context length
    known = dialects_of(base_model)
    other = _OTHER_PURPOSE.fullmatch(base_model)
    if other is not None or known[:1] == (_BASE_DIALECT,):
        if requested is not None:
            return requested
        what = f"a model of the kind {other['kind']}" if other is not None and other["kind"] else "a base model"
        raise UsageError(
            f"{model_option}: {model} is {what}, not trained on any known dialect; choose a chat model, or name the "
            f"dialect that it was trained on with {option}, such as {option}=qwen3_instruct"
        )
    fitting = [name for name in known if name in RENDERER_NAMES]
    if requested is not None:
        if fitting and not any(_fits(requested, name) for name in fitting):
            raise UsageError(f"{option}: {requested} does not fit {model}; choose {' or '.join(fitting)}")
        return requested
    if fitting:
        return fitting[0]
    reason = f"is {known[0]}, which this package does not have" if known else "is unknown"
    raise UsageError(f"{option}: the dialect of {model!r} {reason}; name one of {', '.join(RENDERER_NAMES)}")


def dialects_of(model: str) -> tuple[str, ...]:
    """The dialects that a model was trained on, by tinker-cookbook's names, the recommended one first.

    Empty for an unknown model. This package may lack some of them.
    """
    matching = next((names for pattern, names in _PATTERNS if re.fullmatch(pattern, model)), ())
    return tuple(dict.fromkeys([*_from_cookbook(model), *matching]))


def _from_cookbook(model: str) -> tuple[str, ...]:
    try:
        from tinker_cookbook.exceptions import ConfigurationError
        from tinker_cookbook.model_info import get_recommended_renderer_names
    except ImportError:
        return ()
    try:
        return tuple(get_recommended_renderer_names(model))
    except (ConfigurationError, KeyError, ValueError):  # which of them depends on the unknown part of the name
        return ()


def _fits(requested: str, name: str) -> bool:
    """Whether a dialect is `name` or another variant of its family. Instruct models have only one variant."""
    return requested == name or ":" in requested or (not name.endswith("_instruct") and same_family(requested, name))


def same_family(requested: str, name: str) -> bool:
    """Whether two dialects are of one family, or the first is the caller's own renderer (``module:Class``)."""
    return ":" in requested or _VARIANT.sub("", requested) == _VARIANT.sub("", name)
