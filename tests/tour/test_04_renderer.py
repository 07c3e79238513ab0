"""A renderer: the dialect of a model family. Tokens that were sampled are appended, never re-rendered."""

from __future__ import annotations

from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer


def test_a_renderer() -> None:
    qwen, harmony = get_renderer("qwen3", qwen3_tokenizer()), get_renderer("gpt_oss")
    completions = [write_turn(renderer, "Look.", ["ls rtl"]) for renderer in (qwen, harmony)]
    assert completions[0] != completions[1]
    actions = [
        renderer.parse_text(completion) for renderer, completion in zip((qwen, harmony), completions, strict=True)
    ]
    assert [(action.kind, action.commands) for action in actions] == [("command", ("ls rtl",))] * 2

    # What is nearly a call is never guessed at: the model reads what is wrong.
    broken = qwen.parse_text('<tool_call>\n{"name": "execute_bash", "arguments": {"cmd": "ls"}}\n</tool_call>')
    assert broken.kind == "malformed"
    assert "command" in (broken.correction or "")

    # In tokens, an episode is one growing list: prompt, what was sampled, the reply.
    tokens = TokenTranscript(qwen.initial_ids("You design hardware.", "Write an adder."))
    prompt, sampled = len(tokens), [*qwen.codec.encode(completions[0]), *qwen.stop]
    tokens.add_action(sampled)
    tokens.append(qwen.observation_ids(["top.sv\n"], sampled))
    assert tokens.tokens[prompt : prompt + len(sampled)] == sampled
    assert sum(tokens.mask) == len(sampled)  # only what was sampled is trained on
