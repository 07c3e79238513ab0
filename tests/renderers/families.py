"""Random episodes, official chat templates and vocabularies of today's model families."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unicodedata import normalize

from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall, get_renderer, vocabularies
from rtl_agent_gym.renderers.families import FAMILIES, VARIANTS
from rtl_agent_gym.renderers.gpt_oss import GPT_OSS_NAMES
from rtl_agent_gym.renderers.protocol import TOOL, TOOL_NAME
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import (
    QWEN3_ADDED,
    QWEN3_SPECIAL,
    harmony_encoding,
    qwen3_5_tokenizer,
    qwen3_tokenizer,
)

REAL = {"qwen3_5": "Qwen3.5", "qwen3_6": "Qwen3.6", "qwen3_8": "Qwen3.8", "qwen3_coder": "Qwen3"}
"""Families whose vocabulary is at hand. The others get Qwen3's with their own control tokens."""


class HarmonyAsTokenizer:
    """Harmony's encoding with the methods that the library's and the cookbook's renderers ask of a tokenizer."""

    name_or_path = "openai/gpt-oss-20b"

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids: list[int]) -> str:
        return str(self._encoding.decode(ids))

    def convert_tokens_to_ids(self, token: str) -> int:
        (id_,) = self.encode(token)
        return id_

    unk_token_id = None


TEMPLATES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen3_disable_thinking": ("qwen3", {"enable_thinking": False}),
    "qwen3_instruct": ("qwen3_instruct_2507", {}),
    "qwen3_5": ("qwen3_5_think", {}),
    "qwen3_5_disable_thinking": ("qwen3_5_think", {"enable_thinking": False}),
    "qwen3_5_preserve_thinking": ("qwen3_5_think", {}),
    "qwen3_6": ("qwen3_6", {}),
    "qwen3_6_disable_thinking": ("qwen3_6", {"enable_thinking": False}),
    "qwen3_6_preserve_thinking": ("qwen3_6", {"preserve_thinking": True}),
    "qwen3_8_xhigh_reasoning": ("qwen3_8", {}),
    "qwen3_8_medium_reasoning": ("qwen3_8", {"reasoning_effort": "medium"}),
    "qwen3_8_low_reasoning": ("qwen3_8", {"reasoning_effort": "low"}),
    "qwen3_8_disable_thinking": ("qwen3_8", {"enable_thinking": False}),
    "nemotron3": ("nemotron_3_nano", {}),
    "nemotron3_low_thinking": ("nemotron_3_super", {"low_effort": True}),
    "nemotron3_disable_thinking": ("nemotron_3_nano", {"enable_thinking": False}),
    "nemotron3_preserve_thinking": ("nemotron_3_nano", {"truncate_history_thinking": False}),
    "nemotron3_ultra": ("nemotron_3_ultra", {}),
    "nemotron3_ultra_preserve_thinking": ("nemotron_3_ultra", {"truncate_history_thinking": False}),
    "nemotron3_ultra_medium_thinking": ("nemotron_3_ultra", {"medium_effort": True}),
    "nemotron3_ultra_disable_thinking": ("nemotron_3_ultra", {"enable_thinking": False}),
    "nemotron3_5": ("nemotron_3_5_lightning", {}),
    "gemma4": ("gemma4_v5", {}),
    "llama3": ("llama3_2", {"date_string": "26 Jul 2024"}),
}
"""Official chat templates, as trl ships them, with the options of each variant."""

ONE_CALL = ("llama3", "gpt_oss")
"""Names in whose dialect a turn has one call: Llama's is the whole turn, and gpt-oss stops at the first."""

TEMPLATE, LIBRARY, COOKBOOK = "official template", "library `renderers`", "tinker-cookbook"
"""Who else renders an episode."""

_ESCAPES = "it escapes what is not ASCII in calls, and has a message for each result"
_NO_END = "it leaves out the end token of a turn that has a call and no text"

DIFFERS: dict[str, dict[str, str]] = {
    TEMPLATE: {"qwen3_disable_thinking": "it drops the empty think blocks of earlier turns"},
    LIBRARY: {
        "gpt_oss": "it has the current date and no `<\\|constrain\\|>json`, and a text before a call is final",
    },
    COOKBOOK: {
        "qwen3": f"it drops the thinking of earlier turns; {_ESCAPES}",
        "qwen3_disable_thinking": f"it drops the empty think blocks of earlier turns; {_ESCAPES}",
        "qwen3_instruct": _ESCAPES,
        "gpt_oss": "it has the current date, and the tools in a system message of their own",
        "qwen3_5": "it drops the thinking of earlier turns; the official template keeps it in a tool loop",
        "kimi_k2": "it is of K2 Thinking, and writes an empty think block where nothing was thought",
        "deepseekv3": _NO_END,
        "deepseekv3_disable_thinking": _NO_END,
        "deepseekv3_thinking": "it writes `</think>` before the thinking of earlier turns, which no model sampled",
        "inkling": "its `tml_v0` puts the tools behind the system message, and lets the model open its own turn",
        "llama3": "it declares no tools; the official template does",
    },
}
"""Names for which another's rendering is not the appended stream, and why."""

UNCOMPARED = {(COOKBOOK, "inkling"), (COOKBOOK, "llama3")}
"""Of these, what cannot be called with this tool at all."""

OWN = ("qwen3", "qwen3_disable_thinking", "qwen3_instruct", "gpt_oss")
"""Names whose dialects are this package's own."""

WORDS = ["ls", "cat a.v", "x = 1'b0;", "漢字", "é🙂", "\n", "  ", "\t", '"q"', "'s'", "\\n", "{", "}", "$a", "`b`", "ﬁ"]

nfc = partial(normalize, "NFC")
"""Text as Qwen's vocabularies have it."""


def family_of(name: str) -> str:
    """The family of a renderer's name; the package's own dialects are each a family of that name."""
    return VARIANTS[name].family if name in VARIANTS else name


@cache
def vocabulary(family: str) -> Any:
    """The family's tokenizer, or a stand-in with its control tokens; a `tokenizers.Tokenizer`. gpt-oss has its own."""
    if family in ("qwen3_coder", *OWN, *GPT_OSS_NAMES):
        return qwen3_tokenizer()
    if family in REAL:
        return qwen3_5_tokenizer()
    from tokenizers import AddedToken, Tokenizer

    real = qwen3_tokenizer()
    made = Tokenizer(real.model)  # shares the ranks, and has no added tokens
    made.normalizer, made.pre_tokenizer, made.decoder = real.normalizer, real.pre_tokenizer, real.decoder
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in QWEN3_SPECIAL])
    made.add_tokens([AddedToken(text, normalized=False) for text in (*QWEN3_ADDED, *FAMILIES[family].controls)])
    return made


@cache
def renderer_of(name: str) -> Renderer:
    """A variant with its vocabulary."""
    return get_renderer(name, vocabulary(family_of(name)))


# ---- what a model of one of this package's own dialects samples, by the renderer's name


def sampled(name: str, text: str) -> list[int]:
    """The ids of a text with control tokens written out."""
    if name in GPT_OSS_NAMES:
        return list(harmony_encoding().encode(text, allowed_special="all"))
    return list(qwen3_tokenizer().encode(text, add_special_tokens=False).ids)


def letters(name: str, text: str) -> list[int]:
    """The ids of a text whose control tokens are only spelled, letter by letter."""
    return renderer_of(name).codec.encode([text])


def decoded(name: str, ids: list[int]) -> str:
    """The text of ids, control tokens written out, by the vocabulary's own decoder."""
    if name in GPT_OSS_NAMES:
        return str(harmony_encoding().decode(ids))
    return str(qwen3_tokenizer().decode(ids, skip_special_tokens=False))


def lone_byte(name: str) -> int:
    """A token that is one byte, which alone is not UTF-8."""
    return next(id_ for id_ in range(256) if decoded(name, [id_]) == "\ufffd")


def valid_call(name: str, command: str) -> str:
    """A right completion that runs a command."""
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    if name in GPT_OSS_NAMES:
        return (
            "<|channel|>analysis<|message|>hm<|end|>"
            "<|start|>assistant to=functions.execute_bash<|channel|>commentary <|constrain|>json<|message|>"
            f"{arguments}<|call|>"
        )
    call = f'<tool_call>\n{{"name": "execute_bash", "arguments": {arguments}}}\n</tool_call>'
    return f"<think>\nhm\n</think>\n\n{call}<|im_end|>"


@cache
def chat_of(family: str) -> Any:
    """The vocabulary as transformers wraps it."""
    from transformers import PreTrainedTokenizerFast

    first = {"llama3": "<|begin_of_text|>", "gemma4": "<bos>"}.get(family)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=vocabulary(family), bos_token=first)


@cache
def template_text(name: str) -> str | None:
    """A chat template of trl's; None where trl is not installed or has none of that name."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.submodule_search_locations is None:
        return None
    path = Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    return path.read_text() if path.is_file() else None


def words(random: Random, most: int = 8) -> str:
    """Random text without control tokens, not blank, without white space around it."""
    text = "".join(random.choice(WORDS) for _ in range(random.randint(1, most))).strip()
    return text or "ok"


def anything(random: Random) -> str:
    """Random text of any characters but "<", without which no control token is spelled. It may be blank or empty."""
    ranges = range(60), range(61, 0xD800), range(0xE000, 0x110000)
    return "".join(chr(random.choice(random.choice(ranges))) for _ in range(random.randint(0, 12)))


@dataclass
class Played:
    """One episode as messages and as tokens."""

    messages: list[dict[str, Any]]
    tokens: TokenTranscript


def play(name: str, random: Random, output: Callable[[Random], str] = words) -> Played:
    """An episode of up to three turns in which the model writes as its template would."""
    renderer, family = renderer_of(name), family_of(name)
    system, user = words(random, 8), words(random, 8)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    tokens = TokenTranscript(renderer.initial_ids(system, user))
    for _ in range(random.randint(0, 3)):
        most = 1 if name in ONE_CALL else 3
        commands = [words(random, 4) for _ in range(random.randint(1, most))]
        thinking = words(random, 5) if renderer.thinks else ""
        # Gemma's template moves such a text behind the results, and Llama's drops it.
        text = words(random, 4) if random.random() < 0.5 and family not in ("gemma4", "llama3") else ""
        turn = renderer.turn_ids(ModelTurn(thinking, text, tuple(map(ToolCall.of, commands))))
        if name == "gpt_oss":
            turn = recipient_first(turn)
        action = renderer.parse_ids(turn)
        assert (action.kind, list(action.commands), action.notes) == ("command", commands, ())
        assert (action.thinking, action.text) == (thinking, text)
        outputs = [output(random) for _ in commands]
        reply = renderer.observation_ids(outputs, turn)
        assert list(map(nfc, renderer.outputs(reply))) == list(map(nfc, outputs))
        tokens.add_action(turn)
        tokens.append(reply)
        calls = [_call(number, command) for number, command in enumerate(commands)]
        message = {"role": "assistant", "content": text, "tool_calls": calls}
        results = [
            {"role": "tool", "name": TOOL_NAME, "tool_call_id": call["id"], "content": output}
            for call, output in zip(calls, outputs, strict=True)
        ]
        messages += [message | ({"reasoning_content": thinking} if thinking else {}), *results]
    return Played(messages, tokens)


def recipient_first(turn: list[int]) -> list[int]:
    """A turn of gpt-oss with the calls' recipient before the channel, as openai-harmony writes it."""
    text = harmony_encoding().decode(turn)
    channel, recipient = "<|channel|>commentary", f" to=functions.{TOOL_NAME}"
    return list(
        harmony_encoding().encode(text.replace(channel + recipient, recipient + channel), allowed_special="all")
    )


def _call(number: int, command: str) -> dict[str, Any]:
    function = {"name": TOOL_NAME, "arguments": {"command": command}}
    return {"type": "function", "id": f"functions.{TOOL_NAME}:{number}", "function": function}


def by_harmony(messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by openai-harmony."""
    import openai_harmony as oh

    def message(role: Any, content: Any, channel: str = "", recipient: str = "") -> Any:
        made = oh.Message.from_role_and_content(role, content)
        made = made.with_channel(channel) if channel else made
        return made.with_recipient(recipient) if recipient else made

    system, user = (entry["content"] for entry in messages[:2])
    function: Any = TOOL["function"]
    tool = oh.ToolDescription.new(function["name"], function["description"], function["parameters"])
    developer = oh.DeveloperContent.new().with_instructions(system).with_function_tools([tool])
    effort = oh.SystemContent.new().with_reasoning_effort(oh.ReasoningEffort.MEDIUM)
    made = [message(oh.Role.SYSTEM, effort), message(oh.Role.DEVELOPER, developer), message(oh.Role.USER, user)]
    tools = f"functions.{TOOL_NAME}"
    for entry in messages[2:]:
        if entry["role"] == "tool":
            answer = oh.Message.from_author_and_content(oh.Author.new(oh.Role.TOOL, tools), entry["content"])
            made.append(answer.with_recipient("assistant").with_channel("commentary"))
            continue
        made += [message(oh.Role.ASSISTANT, entry["reasoning_content"], "analysis")]
        made += [message(oh.Role.ASSISTANT, entry["content"], "commentary")] if entry["content"] else []
        [call] = entry["tool_calls"]
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        made.append(message(oh.Role.ASSISTANT, arguments, "commentary", tools).with_content_type("<|constrain|>json"))
    conversation = oh.Conversation.from_messages(made)
    options = oh.RenderConversationConfig(auto_drop_analysis=False)
    return list(harmony_encoding().render_conversation_for_completion(conversation, oh.Role.ASSISTANT, options))


def by_template(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by the official template."""
    if name == "gpt_oss":
        return by_harmony(messages)
    template, options = TEMPLATES[name]
    chat = chat_of(family_of(name))
    text = chat.apply_chat_template(
        messages,
        tools=[TOOL],
        chat_template=template_text(template),
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    return list(chat.encode(text, add_special_tokens=False))


@cache
def library_of(name: str) -> Any:
    """The library's own renderer with the vocabulary itself."""
    from renderers import configs
    from renderers.base import create_renderer

    kinds = {kind.model_fields["name"].default: kind for kind in configs.BaseRendererConfig.__subclasses__()}
    variant = VARIANTS.get(name)
    if name == "gpt_oss":
        with vocabularies._harmony_cache():  # the library loads Harmony's vocabulary itself
            return create_renderer(HarmonyAsTokenizer(harmony_encoding()), kinds["gpt-oss"]())
    chat = chat_of(family_of(name))
    if variant is None:
        return create_renderer(chat, kinds["qwen3"](enable_thinking=name != "qwen3_disable_thinking"))
    chat.name_or_path = variant.model
    return create_renderer(chat, kinds[FAMILIES[variant.family].config](**variant.options))


def by_library(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by the library's own rendering."""
    messages = json.loads(json.dumps(messages))
    return list(library_of(name).render_ids(messages, tools=[TOOL], add_generation_prompt=True))


@cache
def cookbook_of(name: str) -> Any:
    """tinker-cookbook's renderer with the vocabulary itself. Raises what the cookbook does where it has none."""
    from tinker_cookbook import renderers

    if name == "gpt_oss":
        harmony: Any = HarmonyAsTokenizer(harmony_encoding())
        return renderers.get_renderer("gpt_oss_medium_reasoning", harmony)
    return renderers.get_renderer(name, chat_of(family_of(name)))


def by_cookbook(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by tinker-cookbook's renderer with the vocabulary itself."""
    from tinker_cookbook.renderers.base import ToolCall as Call

    renderer = cookbook_of(name)
    system, *rest = messages
    made: list[Any] = list(renderer.create_conversation_prefix_with_tools(cookbook_tools(name), system["content"]))
    for message in rest:
        message = dict(message)
        if message["role"] == "assistant":
            parts = [{"type": "thinking", "thinking": message.pop("reasoning_content", "")}]
            parts += [{"type": "text", "text": message["content"]}]
            message["content"] = [part for part in parts if part[part["type"]]] or [{"type": "text", "text": ""}]
            message["tool_calls"] = [
                Call(
                    id=call["id"],
                    function=Call.FunctionBody(
                        name=call["function"]["name"],
                        arguments=json.dumps(call["function"]["arguments"], ensure_ascii=False),
                    ),
                )
                for call in message["tool_calls"]
            ]
        made.append(message)
    return list(renderer.build_generation_prompt(made).to_ints())


def cookbook_tools(name: str) -> list[Any]:
    """The tool as the cookbook takes it. It writes what it gets, where templates expect OpenAI's envelope."""
    return [TOOL if family_of(name).startswith(("qwen3_5", "qwen3_8")) else TOOL["function"]]
