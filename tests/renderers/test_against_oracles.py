"""Prompts equal what the models' own templates and openai-harmony render, and parsing agrees with others' parsers."""

from __future__ import annotations

import datetime
import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtl_agent_gym.renderers.protocol import TOOL, TOOL_NAME
from rtl_agent_gym.renderers.vocabularies import harmony_encoding

from . import fuzzing
from .families import OWN, by_template, renderer_of, sampled

fuzz = settings(fuzzing.fuzz, max_examples=40)

# Text in which no control token is spelled: there templates and we differ on purpose.
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"))
words = st.text("abc {}\"'\\\n\té漢🙂$`", min_size=1).filter(str.strip)

PINNED_PROMPT = ("You are an engineer.\n", "\n\nBuild an arbiter: grant[7:0] 漢.")


@pytest.mark.parametrize("name", OWN[:3])
@pytest.mark.usefixtures("chat_template")
@given(system=plain, user=plain)
@example(system=PINNED_PROMPT[0], user=PINNED_PROMPT[1])
@example(system=" ", user="")
@fuzz
def test_qwen_prompts_equal_the_chat_template(name: str, system: str, user: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    if not system:
        del messages[0]
    assert renderer_of(name).initial_ids(system, user) == by_template(name, messages)


# SHA-256 of the prompts' ids as the published chat template gives them, so that this holds where trl is not installed.
QWEN_PROMPT_DIGESTS = {
    "qwen3": "003e43e5af6371d864ca36a4a311b89d5fd2778c282506003be05dde71542e61",
    "qwen3_disable_thinking": "b6746175f6ca752cc141a4b86b9525fe977efd67f4cf72fd9175b5146db5052d",
    "qwen3_instruct": "003e43e5af6371d864ca36a4a311b89d5fd2778c282506003be05dde71542e61",
}


@pytest.mark.parametrize("name", QWEN_PROMPT_DIGESTS)
def test_qwen_prompts_are_the_ones_that_were_compared(name: str) -> None:
    ids = renderer_of(name).initial_ids(*PINNED_PROMPT)
    assert hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest() == QWEN_PROMPT_DIGESTS[name]


@pytest.mark.parametrize(
    ("name", "effort"),
    [
        ("gpt_oss", "medium"),
        ("gpt_oss_low_reasoning", "low"),
        ("gpt_oss_medium_reasoning", "medium"),
        ("gpt_oss_high_reasoning", "high"),
    ],
)
@given(system=plain, user=plain)
@fuzz
def test_gpt_oss_prompts_equal_their_text(name: str, effort: str, system: str, user: str) -> None:
    renderer = renderer_of(name)
    ids = renderer.initial_ids(system, user)
    assert harmony_encoding().decode(ids) == renderer.initial_text(system, user)
    assert f"\nReasoning: {effort}\n" in harmony_encoding().decode(ids)


def test_gpt_oss_prompts_equal_the_chat_template_but_for_the_date(
    qwen_chat: Any, chat_template: Callable[[str], str]
) -> None:
    messages = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Do it."}]
    theirs = qwen_chat.apply_chat_template(  # only the template matters, not whose tokenizer carries it
        messages, tools=[TOOL], chat_template=chat_template("gptoss"), add_generation_prompt=True, tokenize=False
    )
    dates = {f"Current date: {day}\n" for day in _today_and_neighbours()}
    assert sum(date in theirs for date in dates) == 1
    for date in dates:
        theirs = theirs.replace(date, "")
    assert renderer_of("gpt_oss").initial_text("Be good.", "Do it.") == theirs


@pytest.mark.parametrize("name", OWN[:3])
@given(thought=words, before=words, commands=st.lists(words, max_size=3))
@fuzz
def test_qwen_parsing_agrees_with_the_cookbook(
    name: str, cookbook: Any, qwen_chat: Any, thought: str, before: str, commands: list[str]
) -> None:
    calls = [json.dumps({"name": TOOL_NAME, "arguments": {"command": command}}) for command in commands]
    text = f"<think>\n{thought}\n</think>\n\n{before}"
    text += "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls) + "<|im_end|>"
    ids = sampled(name, text)
    message, termination = cookbook.get_renderer(name, qwen_chat).parse_response(ids)
    assert termination.is_clean
    theirs = [json.loads(call.function.arguments)["command"] for call in message.get("tool_calls", [])]
    parts = [message["content"]] if isinstance(message["content"], dict) else message["content"]
    assert isinstance(parts, list)
    action = renderer_of(name).parse_ids(ids)
    assert list(action.commands) == theirs == commands
    assert action.kind == ("command" if commands else "final")
    assert action.text.split() == "".join(part.get("text", "") for part in parts).split()
    assert action.thinking.split() == "".join(part.get("thinking", "") for part in parts).split()


@pytest.mark.parametrize("recipient_first", [True, False])
@given(thought=words, command=words)
@fuzz
def test_gpt_oss_parsing_agrees_with_the_cookbook_and_harmony(
    recipient_first: bool, cookbook: Any, harmony_as_tokenizer: Any, thought: str, command: str
) -> None:
    import openai_harmony as oh

    arguments = json.dumps({"command": command})
    to, channel = " to=functions.execute_bash", "<|channel|>commentary"
    header = to + channel + " " if recipient_first else channel + to + " "
    text = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant{header}<|constrain|>json<|message|>"
    ids = sampled("gpt_oss", text + arguments + "<|call|>")
    action = renderer_of("gpt_oss").parse_ids(ids)
    assert (action.kind, action.commands, action.thinking, action.notes) == ("command", (command,), thought.strip(), ())
    message, termination = cookbook.get_renderer("gpt_oss_medium_reasoning", harmony_as_tokenizer).parse_response(ids)
    assert termination.is_clean
    assert [json.loads(call.function.arguments)["command"] for call in message["tool_calls"]] == [command]
    parsed = harmony_encoding().parse_messages_from_completion_tokens(ids, oh.Role.ASSISTANT)
    assert [(m.channel, m.recipient) for m in parsed] == [
        ("analysis", None),
        ("commentary", "functions.execute_bash"),
    ]
    assert json.loads(parsed[1].content[0].text) == {"command": command}


@given(answer=words)
@fuzz
def test_final_answers_agree_with_the_cookbook(cookbook: Any, harmony_as_tokenizer: Any, answer: str) -> None:
    ids = sampled("gpt_oss", f"<|channel|>final<|message|>{answer}<|return|>")
    action = renderer_of("gpt_oss").parse_ids(ids)
    message, _ = cookbook.get_renderer("gpt_oss_medium_reasoning", harmony_as_tokenizer).parse_response(ids)
    content = message["content"]
    theirs = content if isinstance(content, str) else "".join(part["text"] for part in content)
    assert (action.kind, action.text) == ("final", theirs.strip())


def _today_and_neighbours() -> list[datetime.date]:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return [today + datetime.timedelta(days=n) for n in (-1, 0, 1)]
