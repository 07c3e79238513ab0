"""The model families whose dialects come from the library ``renderers`` or tinker-cookbook, and their names here.

A `Family` adds what these do not provide: the vocabulary's control tokens, the text around a call and its argument, and
the tokens that end a turn. Names are tinker-cookbook's; the library's own names are also accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """One dialect. All texts have control tokens written out."""

    config: str
    """The library's name for the renderer; ``cookbook`` for tinker-cookbook's renderer with the variant's name."""
    controls: tuple[str, ...]
    """The control tokens of prompts and turns; text that only spells one is never encoded as one."""
    call: tuple[str, str]
    """The text that opens and closes a call; empty if the whole turn is the call."""
    argument: tuple[str, str]
    """The text directly before and after the argument of a call."""
    json: bool = False
    """Whether this argument is the JSON object with all arguments; otherwise it is the command, unescaped."""
    compact: bool = False
    """Whether that JSON is written without spaces."""
    think: tuple[str, str] = ("<think>", "</think>")
    """The text that opens and closes thinking; empty for families without it."""
    stops: tuple[str, str] = ("<|im_end|>", "<|im_end|>")
    """The tokens that end a turn with calls, and a turn without."""
    result: tuple[str, str] = ("<tool_response>\n", "\n</tool_response>")
    """The text directly before and after a result."""
    quoted: bool = False
    """Whether a result is escaped as a JSON string."""
    system: tuple[str, str] = ("", "")
    """The text that opens and closes the system turn; empty if system prompt and tool are not in one turn."""
    corrections: str = "user"
    """The role of the message that corrects a turn without a call: ``tool`` if results do not refer to a call. Then
    the model keeps its earlier thinking, as in a tool loop."""
    name: str = ""
    """A regular expression for the name in a call, if this package finds the calls (`coded.parse_tags`)."""
    section: str = ""
    """The text that opens the section of all calls, if this package finds them."""
    one_call: bool = False
    """Whether a turn has at most one call."""


_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_RESPONSES = ("<tool_response>", "</tool_response>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_XML: dict[str, Any] = {
    "call": ("<tool_call>", "</tool_call>"),
    "argument": ("<parameter=command>\n", "\n</parameter>"),
    "system": ("<|im_start|>system\n", "<|im_end|>"),
    "corrections": "tool",
}
_KIMI_CONTROLS = (
    "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<think>", "</think>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip
_KIMI_MEDIA = ("<|endoftext|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")
_KIMI: dict[str, Any] = {
    "call": ("<|tool_call_begin|>", "<|tool_call_end|>"),
    "argument": ("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "json": True,
    "result": ("## Return of functions.execute_bash:0\n", "<|im_end|>"),
}


def _deepseek(*names: str) -> tuple[str, ...]:
    return tuple(f"<｜{name}｜>" for name in names)


FAMILIES: dict[str, Family] = {
    "qwen3_5": Family("qwen3.5", (*_CHATML, *_RESPONSES, *_VISION), **_XML),
    "qwen3_6": Family("qwen3.6", (*_CHATML, *_RESPONSES, *_VISION), **_XML),
    "qwen3_8": Family("qwen3.8", (*_CHATML, *_RESPONSES, *_VISION), **_XML),
    "qwen3_coder": Family("prime-qwen3", (*_CHATML, *_RESPONSES), **_XML),
    "nemotron3": Family("nemotron-3", (*_CHATML, *_RESPONSES), **_XML),
    "nemotron3_ultra": Family("nemotron-3-ultra", (*_CHATML, *_RESPONSES), **_XML),
    "nemotron3_5": Family("nemotron-3.5", (*_CHATML, *_RESPONSES), **_XML),
    "glm5_3": Family(
        "glm-5.3",
        (
            "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>",
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
            "</arg_value>", *_RESPONSES,
        ),
        call=("<tool_call>", "</tool_call>"),
        argument=("<arg_key>command</arg_key><arg_value>", "</arg_value>"),
        stops=("<|observation|>", "<|user|>"),
        result=("<tool_response>", "</tool_response>"),
    ),
    "kimi_k2": Family("kimi-k2", _KIMI_CONTROLS, **_KIMI),
    "kimi_k25": Family("kimi-k2.5", (*_KIMI_CONTROLS, *_KIMI_MEDIA), **_KIMI),
    "deepseekv3": Family(
        "cookbook",
        (
            *_deepseek(
                "begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end",
                "tool▁call▁begin", "tool▁call▁end", "tool▁sep", "tool▁output▁begin", "tool▁output▁end",
            ),
            "<think>", "</think>",
        ),
        call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        name="(?s)^<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>",
        section="<｜tool▁calls▁begin｜>",
        argument=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        json=True,
        stops=("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        result=("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    "deepseekv4_1": Family(
        "cookbook",
        (
            *_deepseek("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "System"),
            "<think>", "</think>", "｜DSML｜",
        ),
        call=("<｜DSML｜ invoke", "</｜DSML｜ invoke>"),
        name=r'^<｜DSML｜ invoke name="(.*?)">\n',
        section="<｜DSML｜ calls>",
        argument=('<｜DSML｜ parameter name="command" string="true">', "</｜DSML｜ parameter>"),
        stops=("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        result=("<tool_result>", "</tool_result>"),
    ),
    "deepseekv4": Family(
        "deepseek-v4",
        (
            *_deepseek("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "latest_reminder", "action",
                       "query", "authority", "domain", "title", "read_url"),
            "<think>", "</think>", "｜DSML｜",
        ),
        call=("<｜DSML｜invoke", "</｜DSML｜invoke>"),
        name=r'^<｜DSML｜invoke name="(.*?)">\n',
        section="<｜DSML｜tool_calls>",
        argument=('<｜DSML｜parameter name="command" string="true">', "</｜DSML｜parameter>"),
        stops=("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        result=("<tool_result>", "</tool_result>"),
    ),
    "inkling": Family(
        "inkling",
        (
            "<|message_user|>", "<|message_model|>", "<|message_system|>", "<|message_tool|>", "<|end_message|>",
            "<|content_text|>", "<|content_thinking|>", "<|content_xml|>", "<|content_invoke_tool_json|>",
            "<|content_invoke_tool_text|>", "<|content_image|>", "<|content_audio_input|>", "<|audio_end|>",
            "<|content_model_end_sampling|>", "<|unused_200053|>", "<|unused_200054|>", "<|endoftext|>",
        ),
        call=("<|content_invoke_tool_json|>", "<|end_message|>"),
        argument=('"args":', "}<|end_message|>"),
        json=True,
        compact=True,
        think=("<|content_thinking|>", "<|end_message|>"),
        stops=("<|content_model_end_sampling|>", "<|content_model_end_sampling|>"),
        result=("<|message_tool|>execute_bash<|content_text|>", "<|end_message|>"),
    ),
    "llama3": Family(
        "llama-3",
        (
            "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
            "<|eom_id|>", "<|python_tag|>",
        ),
        call=("", ""),
        one_call=True,
        argument=('"parameters": ', "}"),
        json=True,
        think=("", ""),
        stops=("<|eot_id|>", "<|eot_id|>"),
        result=('<|start_header_id|>ipython<|end_header_id|>\n\n"', '"<|eot_id|>'),
        quoted=True,
    ),
    "gemma4": Family(
        "gemma4",
        (
            "<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
            "<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>', "<|image>",
            "<image|>", "<|image|>",
        ),
        call=("<|tool_call>", "<tool_call|>"),
        argument=('command:<|"|>', '<|"|>'),
        think=("<|channel>thought\n", "<channel|>"),
        stops=("<|tool_response>", "<turn|>"),
        result=('response:execute_bash{value:<|"|>', '<|"|>}<tool_response|>'),
    ),
}  # fmt: skip
"""The dialects, by the name of their default variant."""


@dataclass(frozen=True)
class Variant:
    """The family and options that a renderer's name stands for."""

    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    """The model's name, if the library's renderer depends on it."""
    extends: str = ""
    """The variant that renders what follows a turn; empty for this one. If the template puts a hint into the last
    request, the library does not extend: a new request would move the hint. Here, results are never requests."""


_THINK, _NO_THINK = {"enable_thinking": True}, {"enable_thinking": False}
_KEEP = {"thinking_retention": "all"}

VARIANTS: dict[str, Variant] = {
    "qwen3_5": Variant("qwen3_5", _THINK),
    "qwen3_5_disable_thinking": Variant("qwen3_5", _NO_THINK),
    "qwen3_5_preserve_thinking": Variant("qwen3_5", _THINK | _KEEP),
    "qwen3_6": Variant("qwen3_6", _THINK),
    "qwen3_6_disable_thinking": Variant("qwen3_6", _NO_THINK),
    "qwen3_6_preserve_thinking": Variant("qwen3_6", _THINK | {"preserve_thinking": True}),
    **{
        f"qwen3_8_{effort}_reasoning": Variant("qwen3_8", _THINK | {"reasoning_effort": effort})
        for effort in ("xhigh", "medium", "low")
    },
    "qwen3_8_disable_thinking": Variant("qwen3_8", _NO_THINK),
    "qwen3_coder": Variant("qwen3_coder"),
    **{
        f"glm5_3_{effort}_reasoning": Variant("glm5_3", {"reasoning_effort": effort})
        for effort in ("max", "high", "low")
    },
    "kimi_k2": Variant("kimi_k2"),
    "kimi_k25": Variant("kimi_k25", {"thinking": True}),
    "kimi_k25_disable_thinking": Variant("kimi_k25", {"thinking": False}),
    "kimi_k26": Variant("kimi_k25", {"thinking": True}),
    "kimi_k26_disable_thinking": Variant("kimi_k25", {"thinking": False}),
    "kimi_k26_preserve_thinking": Variant("kimi_k25", {"thinking": True} | _KEEP),
    "nemotron3": Variant("nemotron3", _THINK),
    "nemotron3_low_thinking": Variant(
        "nemotron3", _THINK | {"low_effort": True}, "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron3"
    ),
    "nemotron3_disable_thinking": Variant("nemotron3", _NO_THINK),
    "nemotron3_preserve_thinking": Variant("nemotron3", _THINK | {"truncate_history_thinking": False}),
    "nemotron3_ultra": Variant("nemotron3_ultra", _THINK),
    "nemotron3_ultra_preserve_thinking": Variant("nemotron3_ultra", _THINK | {"truncate_history_thinking": False}),
    "nemotron3_ultra_medium_thinking": Variant(
        "nemotron3_ultra", _THINK | {"medium_effort": True}, extends="nemotron3_ultra"
    ),
    "nemotron3_ultra_disable_thinking": Variant("nemotron3_ultra", _NO_THINK),
    "nemotron3_5": Variant("nemotron3_5", _THINK),
    **{f"deepseekv3{mode}": Variant("deepseekv3") for mode in ("", "_disable_thinking", "_thinking")},
    **{
        f"deepseekv4_1{mode}": Variant("deepseekv4_1")
        for mode in ("", "_low_reasoning", "_max_reasoning", "_disable_thinking")
    },
    "deepseekv4": Variant("deepseekv4", _THINK),
    "deepseekv4_disable_thinking": Variant("deepseekv4", _NO_THINK),
    "inkling": Variant("inkling"),
    "llama3": Variant("llama3"),
    "gemma4": Variant("gemma4", _NO_THINK),
}
"""What each name of `LibraryRenderer` stands for."""

ALIASES = {
    "qwen3.5": "qwen3_5",
    "qwen3.6": "qwen3_6",
    "qwen3_8": "qwen3_8_xhigh_reasoning",
    "qwen3.8": "qwen3_8_xhigh_reasoning",
    "prime-qwen3": "qwen3_coder",
    "glm5_3": "glm5_3_max_reasoning",
    "glm-5.3": "glm5_3_max_reasoning",
    "kimi-k2": "kimi_k2",
    "kimi-k2.5": "kimi_k25",
    "nemotron-3": "nemotron3",
    "nemotron-3-ultra": "nemotron3_ultra",
    "nemotron-3.5": "nemotron3_5",
    "deepseek-v4": "deepseekv4",
    "llama-3": "llama3",
    "gpt-oss": "gpt_oss",
}
"""Further accepted names: the library's, and short ones."""
