"""Random episodes, official chat templates and vocabularies of today's model families."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall, get_renderer
from rtl_agent_gym.renderers.families import FAMILIES, VARIANTS
from rtl_agent_gym.renderers.protocol import TOOL, TOOL_NAME
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import qwen3_5_tokenizer, qwen3_tokenizer

REAL = {"qwen3_5": "Qwen3.5", "qwen3_6": "Qwen3.6", "qwen3_8": "Qwen3.8", "qwen3_coder": "Qwen3"}
"""Families whose vocabulary is at hand. The others get Qwen3's with their own control tokens."""

TEMPLATES: dict[str, tuple[str, dict[str, Any]]] = {
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

COOKBOOK_DIFFERS = {
    "qwen3_5": "it drops the thinking of earlier turns; the official template keeps it in a tool loop",
    "kimi_k2": "it is of K2 Thinking, and writes an empty think block where nothing was thought",
    "deepseekv3": "it leaves out the end token of a turn that has a call and no text",
    "deepseekv3_disable_thinking": "it leaves out the end token of a turn that has a call and no text",
    "deepseekv3_thinking": "it writes `</think>` before the thinking of earlier turns, which no model sampled",
    "inkling": "its `tml_v0` puts the tools behind the system message, and lets the model open its own turn",
    "llama3": "it declares no tools; the official template does",
}
"""Variants in which tinker-cookbook's rendering is not the appended stream, and why."""

MODELS = {
    "qwen3_5": "Qwen3.5",
    "qwen3_6": "Qwen3.6",
    "qwen3_8": "Qwen3.8",
    "qwen3_coder": "Qwen3-Coder",
    "nemotron3": "Nemotron 3 Nano, Super",
    "nemotron3_ultra": "Nemotron 3 Ultra",
    "nemotron3_5": "Nemotron 3.5",
    "glm5_3": "GLM-5.3",
    "kimi_k2": "Kimi K2",
    "kimi_k25": "Kimi K2.5, K2.6",
    "deepseekv3": "DeepSeek V3.1",
    "deepseekv4_1": "DeepSeek V4.1",
    "deepseekv4": "DeepSeek V4 Flash (0731)",
    "inkling": "Inkling",
    "llama3": "Llama 3.2",
    "gemma4": "Gemma 4",
}


def documented() -> str:
    """The table of families in docs/renderers.md."""
    rows = [
        "| family | models | names | vocabulary tested | official template | library `renderers` | tinker-cookbook |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, models in MODELS.items():
        names = [name for name, variant in VARIANTS.items() if variant.family == family]
        templates = dict.fromkeys(TEMPLATES[name][0] for name in names if name in TEMPLATES)
        differing = list(dict.fromkeys(COOKBOOK_DIFFERS[name] for name in names if name in COOKBOOK_DIFFERS))
        absent = family in ("qwen3_6", "qwen3_coder", "nemotron3_5", "deepseekv4", "gemma4")
        cookbook = "none" if absent else "equal" if not differing else "differs: " + "; ".join(differing)
        if differing and len(names) > len(differing) + 1:
            cookbook = f"equal, but for {', '.join(f'`{n}`' for n in names if n in COOKBOOK_DIFFERS)}: {differing[0]}"
        cells = [
            f"`{family}`",
            models,
            ", ".join(f"`{name}`" for name in names),
            f"{REAL[family]}'s own" if family in REAL else "stand-in",
            f"equal ({', '.join(f'`{name}`' for name in templates)})" if templates else "not at hand",
            "none" if FAMILIES[family].config == "cookbook" else "equal",
            cookbook,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


WORDS = ["ls", "cat a.v", "x = 1'b0;", "漢字", "é🙂", "\n", "  ", "\t", '"q"', "'s'", "\\n", "{", "}", "$a", "`b`", "ﬁ"]


@cache
def vocabulary(family: str) -> Any:
    """The family's tokenizer, or a stand-in with its control tokens; a `tokenizers.Tokenizer`."""
    if family in REAL and family != "qwen3_coder":
        return qwen3_5_tokenizer()
    if family in REAL:
        return qwen3_tokenizer()
    from tokenizers import AddedToken, Tokenizer

    made = Tokenizer.from_str(qwen3_tokenizer().to_str())
    made.add_tokens([AddedToken(text, normalized=False) for text in FAMILIES[family].controls])
    return made


@cache
def renderer_of(name: str) -> Renderer:
    """A variant with its vocabulary."""
    return get_renderer(name, vocabulary(VARIANTS[name].family))


@cache
def chat_of(family: str) -> Any:
    """The vocabulary as transformers wraps it."""
    from transformers import PreTrainedTokenizerFast

    first = {"llama3": "<|begin_of_text|>", "gemma4": "<bos>"}.get(family)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=vocabulary(family), bos_token=first)


def template_text(name: str) -> str | None:
    """A chat template of trl's; None where trl is not installed or has none of that name."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.submodule_search_locations is None:
        return None
    path = Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    return path.read_text() if path.is_file() else None


def words(random: Random, most: int) -> str:
    """Random text without control tokens, not blank, without white space around it."""
    text = "".join(random.choice(WORDS) for _ in range(random.randint(1, most))).strip()
    return text or "ok"


@dataclass
class Played:
    """One episode as messages and as tokens."""

    messages: list[dict[str, Any]]
    tokens: TokenTranscript


def play(name: str, random: Random) -> Played:
    """An episode of up to three turns in which the model writes as its template would."""
    renderer, family = renderer_of(name), VARIANTS[name].family
    system, user = words(random, 8), words(random, 8)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    tokens = TokenTranscript(renderer.initial_ids(system, user))
    for _ in range(random.randint(0, 3)):
        most = FAMILIES[family].calls or 3
        commands = [words(random, 4) for _ in range(random.randint(1, most))]
        thinking = words(random, 5) if renderer.thinks else ""
        # Gemma's template moves such a text behind the results, and Llama's drops it.
        text = words(random, 4) if random.random() < 0.5 and family not in ("gemma4", "llama3") else ""
        turn = renderer.turn_ids(ModelTurn(thinking, text, tuple(map(ToolCall.of, commands))))
        action = renderer.parse_ids(turn)
        assert (action.kind, list(action.commands), action.notes) == ("command", commands, ())
        assert (action.thinking, action.text) == (thinking, text)
        outputs = [words(random, 8) for _ in commands]
        reply = renderer.observation_ids(outputs, turn)
        assert renderer.outputs(reply) == outputs
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


def _call(number: int, command: str) -> dict[str, Any]:
    function = {"name": TOOL_NAME, "arguments": {"command": command}}
    return {"type": "function", "id": f"functions.{TOOL_NAME}:{number}", "function": function}


def by_template(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by the official template."""
    template, options = TEMPLATES[name]
    chat = chat_of(VARIANTS[name].family)
    text = chat.apply_chat_template(
        messages,
        tools=[TOOL],
        chat_template=template_text(template),
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    return list(chat.encode(text, add_special_tokens=False))


def by_library(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by the library's own rendering with the vocabulary itself."""
    from renderers import configs
    from renderers.base import create_renderer

    variant = VARIANTS[name]
    family = FAMILIES[variant.family]
    kinds = {kind.model_fields["name"].default: kind for kind in configs.BaseRendererConfig.__subclasses__()}
    chat = chat_of(variant.family)
    chat.name_or_path = variant.model
    engine = create_renderer(chat, kinds[family.config](**variant.options))
    return list(engine.render_ids(json.loads(json.dumps(messages)), tools=[TOOL], add_generation_prompt=True))


def by_cookbook(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """The episode's ids by tinker-cookbook's renderer with the vocabulary itself."""
    from tinker_cookbook import renderers
    from tinker_cookbook.renderers.base import ToolCall as Call

    chat = chat_of(VARIANTS[name].family)
    renderer = renderers.get_renderer(name, chat)
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
    return [TOOL if VARIANTS[name].family.startswith(("qwen3_5", "qwen3_8")) else TOOL["function"]]
