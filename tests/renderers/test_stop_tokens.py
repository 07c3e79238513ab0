"""What stands behind a stop token is ignored, as text and as tokens, unless the token is part of a call's own JSON."""

from __future__ import annotations

import time

import pytest

from rtl_agent_gym.renderers import Action, get_renderer
from rtl_agent_gym.renderers.gpt_oss import GPT_OSS_NAMES
from rtl_agent_gym.renderers.qwen import QWEN_NAMES
from rtl_agent_gym.renderers.renderer import ToollessRenderer

from .families import renderer_of, sampled, valid_call

NAMES = [*QWEN_NAMES, *GPT_OSS_NAMES]
STOPS = ("<|im_end|>", "<|call|>", "<|return|>", "<|end|>")


def final(name: str, text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>" if name in GPT_OSS_NAMES else f"{text}<|im_end|>"


def core(action: Action) -> tuple[object, ...]:
    return action.kind, action.commands, action.text, action.notes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("glue", ["", "\n", "<|im_start|>assistant\n", "<|start|>assistant"])
def test_nothing_behind_a_stop_token_is_run(name: str, glue: str) -> None:
    for begin, kind, commands in ((valid_call(name, "ls"), "command", ("ls",)), (final(name, "Done."), "final", ())):
        completion = begin + glue + valid_call(name, "rm x")
        action = renderer_of(name).parse_text(completion)
        assert (action.kind, action.commands) == (kind, commands)
        assert core(action) == core(renderer_of(name).parse_text(begin))
        assert core(action) == core(renderer_of(name).parse_text(completion, truncated=True))
        assert core(action) == core(renderer_of(name).parse_ids(sampled(name, completion)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_token_in_a_calls_own_json_is_part_of_the_command(name: str, stop: str) -> None:
    command = f"grep '{stop}' \"a b\" | head"
    completion = valid_call(name, command) + valid_call(name, "rm x")
    assert get_renderer(name).parse_text(completion).commands == (command,)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_ends_at_its_stop_token(name: str) -> None:
    completion = final(name, "module right; endmodule") + final(name, "module wrong; endmodule")
    renderer = ToollessRenderer(renderer_of(name))
    assert renderer.parse_text(completion).text == "module right; endmodule"
    assert renderer.parse_ids(sampled(name, completion)).text == "module right; endmodule"


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_many_unfinished_calls_cost_no_time(name: str) -> None:
    opening = '<tool_call>["' if name == "qwen3" else "<|channel|>commentary to=x<|message|>[{"
    begun = time.monotonic()
    get_renderer(name).parse_text(opening * 20_000 + STOPS[0])
    assert time.monotonic() - begun < 20  # a fraction of a second; quadratic parsing would take minutes
