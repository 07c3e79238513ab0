"""Malformed, cut-off and odd completions in tokens: one outcome each, which the model is told about."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.qwen import QwenRenderer
from rtl_agent_gym.renderers.renderer import ToollessRenderer
from rtl_agent_gym.renderers.vocabularies import Codec, qwen3_tokenizer

from .families import OWN, letters, lone_byte, renderer_of, sampled, valid_call
from .fuzzing import can_be_sent, fuzz


@pytest.mark.parametrize("name", OWN)
def test_a_right_call_is_read(name: str) -> None:
    command = "cat > 漢.sv <<'E'\n</tool_call> <think> \\\"é\"\nE"
    action = renderer_of(name).parse_ids(sampled(name, valid_call(name, command)))
    assert (action.kind, action.commands, action.thinking, action.notes) == ("command", (command,), "hm", ())


@pytest.mark.parametrize("name", OWN)
def test_letters_that_spell_a_stop_token_do_not_stop(name: str) -> None:
    renderer = renderer_of(name)
    stop = "<|call|>" if name == "gpt_oss" else "<|im_end|>"
    before, after = valid_call(name, "echo @").split("@")
    ids = [*sampled(name, before), *letters(name, stop), *sampled(name, after)]
    assert renderer.parse_ids(ids).commands == (f"echo {stop}",)
    ids = [*sampled(name, valid_call(name, "ls").removesuffix(stop)), *letters(name, stop)]
    assert renderer.parse_ids(ids).kind == ("malformed" if name == "gpt_oss" else "command")
    done = [*sampled(name, "<|channel|>final<|message|>" if name == "gpt_oss" else ""), *letters(name, "Done." + stop)]
    assert "cut off" in (renderer.parse_ids(done).correction or "")


@pytest.mark.parametrize("name", OWN)
def test_every_way_to_cut_a_call_is_told(name: str) -> None:
    renderer = renderer_of(name)
    ids = sampled(name, valid_call(name, "echo 'a long enough command' && ls"))
    for length in range(len(ids)):
        action = renderer.parse_ids(ids[:length])
        if action.kind == "command":  # Qwen: the JSON was whole, only the closing tag or the stop token is missing
            assert name != "gpt_oss"
            assert length >= len(ids) - 3
            assert action.commands == ("echo 'a long enough command' && ls",)
            assert any("token limit" in note for note in action.notes)
        else:
            assert action.kind == "malformed"
            assert "cut off by the token limit" in (action.correction or "")


@pytest.mark.parametrize("name", OWN)
def test_empty_and_silent_completions_are_told(name: str) -> None:
    renderer = renderer_of(name)
    assert "cut off" in (renderer.parse_ids([]).correction or "")
    for stop in renderer.stop:
        assert isinstance(stop, int)
        assert renderer.parse_ids([stop]).kind == "malformed"
    thought = "<|channel|>analysis<|message|>hm<|return|>" if name == "gpt_oss" else "<think>hm</think><|im_end|>"
    assert "nothing but thinking" in (renderer.parse_ids(sampled(name, thought)).correction or "")


@pytest.mark.parametrize("name", OWN)
def test_bytes_that_are_not_utf8_are_told(name: str) -> None:
    renderer = renderer_of(name)
    before, after = valid_call(name, "echo @").split("@")
    action = renderer.parse_ids([*sampled(name, before), lone_byte(name), *sampled(name, after)])
    assert action.kind == "malformed"
    assert "UTF-8" in (action.correction or "")
    # A replacement character that the model wrote itself is a character like any other.
    honest = renderer.parse_ids(sampled(name, valid_call(name, "echo \ufffd")))
    assert honest.commands == ("echo \ufffd",)


@pytest.mark.parametrize("name", OWN)
def test_bytes_that_are_not_utf8_outside_a_call_are_replaced(name: str) -> None:
    start = "<|channel|>final<|message|>Done" if name == "gpt_oss" else "Done"
    end = "<|return|>" if name == "gpt_oss" else "<|im_end|>"
    action = renderer_of(name).parse_ids([*sampled(name, start), lone_byte(name), *sampled(name, end)])
    assert (action.kind, action.text) == ("final", "Done\ufffd")


@pytest.mark.parametrize("name", OWN)
def test_ids_beyond_the_vocabulary_are_told(name: str) -> None:
    ids = sampled(name, valid_call(name, "ls"))
    for place in range(len(ids)):
        action = renderer_of(name).parse_ids([*ids[:place], 400_000, *ids[place:]])
        assert action.kind in ("malformed", "command")
        assert all("\ufffd" not in command and command == "ls" for command in action.commands)


@pytest.mark.parametrize("name", OWN)
@given(data=st.data())
@settings(fuzz, max_examples=60)
def test_any_ids_have_an_outcome_that_can_be_sent(name: str, data: st.DataObject) -> None:
    renderer = renderer_of(name)
    special = range(199_998, 200_020) if name == "gpt_oss" else range(151_643, 151_670)
    ids = data.draw(st.lists(st.integers(0, 260_000) | st.sampled_from(special), max_size=40))
    action = renderer.parse_ids(ids)
    can_be_sent(action)
    if action.correction is not None:
        assert renderer.correction_ids(action.correction, ids)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@fuzz
def test_the_codec_is_the_tokenizer_where_no_control_token_is_spelled(text: str) -> None:
    codec = Codec(qwen3_tokenizer())
    ids = codec.encode([text])
    if "<" not in text:
        assert ids == qwen3_tokenizer().encode(text, add_special_tokens=False).ids
    assert codec.decode(ids) == qwen3_tokenizer().decode(ids, skip_special_tokens=False)


def test_a_renderer_takes_either_kind_of_tokenizer(qwen_chat: Any) -> None:
    ids = get_renderer("qwen3", qwen3_tokenizer()).initial_ids("S", "U")
    assert get_renderer("qwen3", qwen_chat).initial_ids("S", "U") == ids


def test_a_tokenizer_that_will_not_do_is_refused() -> None:
    from tokenizers import Tokenizer, decoders, models

    with pytest.raises(UsageError, match="not str"):
        get_renderer("qwen3", "Qwen/Qwen3-8B").initial_ids("", "")
    tokenizer = Tokenizer(models.BPE())
    with pytest.raises(UsageError, match="byte-level"):
        get_renderer("qwen3", tokenizer).initial_ids("", "")
    tokenizer.decoder = decoders.ByteLevel()
    with pytest.raises(UsageError, match=r"no token <\|im_start\|>"):
        get_renderer("qwen3", tokenizer).initial_ids("", "")


@pytest.mark.parametrize("name", OWN)
def test_renderers_can_be_pickled_after_use(name: str) -> None:
    renderer = renderer_of(name)
    ids = renderer.initial_ids("S", "U")
    again = pickle.loads(pickle.dumps(renderer))
    assert again.name == name
    assert again.initial_ids("S", "U") == ids


class Teaching(QwenRenderer):
    def __init__(self, examples: int) -> None:
        super().__init__("qwen3")
        self.examples = examples


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda renderer: pickle.loads(pickle.dumps(renderer))], ids=["deepcopy", "pickle"]
)
def test_copies_of_a_users_renderer_keep_its_settings(copied: Any) -> None:
    renderer = Teaching(3)
    again = copied(renderer)
    assert (again.name, again.examples) == ("qwen3", 3)
    toolless = ToollessRenderer(renderer)
    assert copied(toolless).initial_pieces("S", "U") == toolless.initial_pieces("S", "U")
