"""The parser of actions and the teachers find the same thinking in a turn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer

CALL = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
RENDERER: Any = get_renderer("qwen3", qwen3_tokenizer())


def ids_of(text: str) -> list[int]:
    return list(qwen3_tokenizer().encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("said", "thinking", "text", "calls"),
    [
        ("<think>\nI look.\n</think>\n\n" + CALL, ["I look."], [], 1),
        ("I look.\n</think>\n\n" + CALL, ["I look."], [], 1),  # as where the prompt ends in <think>
        ("I say " + CALL + " no.\n</think>\n\nSo: " + CALL, ["I say " + CALL + " no."], ["So:"], 1),
        ("<think>I say " + CALL + "</think>\n\nDone.", ["I say " + CALL], ["Done."], 0),
        ("I look. " + CALL, [], ["I look."], 1),
    ],
)
def test_an_opening_in_the_prompt_counts(said: str, thinking: list[str], text: list[str], calls: int) -> None:
    ids = ids_of(said + "<|im_end|>")
    contents = RENDERER.contents(ids)
    assert [one.data.decode() for one in contents if one.kind == "thinking"] == thinking
    assert [one.data.decode() for one in contents if one.kind == "text"] == text
    assert sum(one.kind == "call" for one in contents) == calls
    data = b"".join(map(RENDERER.codec.token_bytes, ids))
    assert all(data[one.place :].startswith(one.data) for one in contents)
    assert RENDERER.parse_ids(ids).thinking == "\n".join(thinking)


@given(st.lists(st.sampled_from(["<think>", "</think>", CALL, "a", " b ", "\n"]), max_size=9).map("".join))
@example("a</think>" + CALL)
@example("<think>a" + CALL + "</think>")
@settings(deadline=None)
def test_both_find_the_same_thinking(said: str) -> None:
    ids = ids_of(said + "<|im_end|>")
    found = [one.data.decode() for one in RENDERER.contents(ids) if one.kind == "thinking"]
    assert "".join("".join(found).split()) == "".join(RENDERER.parse_ids(ids).thinking.split())
