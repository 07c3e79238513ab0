"""gpt-oss's dialect on text and on ids: the same turns have the same outcome on both sides."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import Action, get_renderer
from rtl_agent_gym.renderers.gpt_oss import EXAMPLE, pieces_of, read_turn
from rtl_agent_gym.renderers.vocabularies import harmony_encoding

from .fuzzing import can_be_sent, fuzz

TO = "to=functions.execute_bash"
JSON = "<|constrain|>json"
LS = '{"command": "ls"}'
ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"

RENDERER = get_renderer("gpt_oss")


def parse(text: str, *, truncated: bool = False) -> Action:
    """Parse on both sides, which must agree."""
    by_text = RENDERER.parse_text(text, truncated=truncated)
    by_ids = RENDERER.parse_ids(harmony_encoding().encode(text, allowed_special="all"))
    assert by_text == by_ids
    return by_text


@pytest.mark.parametrize(
    ("completion", "commands"),
    [
        (f"<|channel|>commentary {TO} {JSON}<|message|>{LS}<|call|>", ["ls"]),
        (f" {TO}<|channel|>commentary {JSON}<|message|>{LS}<|call|>", ["ls"]),
        (f"{ANALYSIS}<|channel|>commentary {TO} {JSON}<|message|>{LS}<|call|>", ["ls"]),
        (f"{ANALYSIS} {TO}<|channel|>commentary {JSON}<|message|>{LS}<|call|>", ["ls"]),
        (f"{ANALYSIS} {TO}<|channel|>commentary<|message|>{LS}<|call|>", ["ls"]),
        (f"<|channel|>commentary {TO} code<|message|>{LS}<|call|>", ["ls"]),
        (f"<|channel|>commentary {TO} {JSON}<|message|>{LS}<|return|>", ["ls"]),
        (f'<|channel|>commentary {TO} {JSON}<|message|>{{"command": "a\nb\tc"}}<|call|>', ["a\nb\tc"]),
        (
            f"<|channel|>commentary {TO} {JSON}<|message|>{LS}<|end|>"
            f'<|start|>assistant<|channel|>commentary {TO} {JSON}<|message|>{{"command": "pwd"}}<|call|>',
            ["ls", "pwd"],
        ),
    ],
)
def test_calls_are_read(completion: str, commands: list[str]) -> None:
    action = parse(completion)
    assert (action.kind, list(action.commands), action.notes) == ("command", commands, ())
    assert action.thinking == ("hm" if completion.startswith(ANALYSIS) else "")


def test_a_preamble_is_text_and_a_final_answer_ends_the_task() -> None:
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    action = parse(f"{preamble}<|channel|>commentary {TO} {JSON}<|message|>{LS}<|call|>")
    assert (action.commands, action.text) == (("ls",), "I look.")
    final = parse(f"{ANALYSIS}<|channel|>final<|message|>All done.<|return|>")
    assert (final.kind, final.text, final.thinking) == ("final", "All done.", "hm")


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        ("<|channel|>final<|message|> <|return|>", ["was empty"]),
        ("<|channel|>analysis<|message|>hm<|return|>", ["nothing but thinking"]),
        ("<|channel|>analysis<|message|>hm<|call|>", ["ended in <|call|>", "no recipient"]),
        (f"<|channel|>analysis<|message|>{LS}<|call|>", ["ended in <|call|>", "no recipient"]),
        ("<|message|>hm<|return|>", ["no channel"]),
        ("<|channel|>chat<|message|>hm<|return|>", ['the channel "chat"', "analysis, commentary, final"]),
        (f"<|channel|>commentary to=functions.python {JSON}<|message|>{LS}<|call|>", ["no tool", "functions.python"]),
        (f"<|channel|>commentary to=python {JSON}<|message|>{LS}<|call|>", ['no tool "python"']),
        (f"<|channel|>commentary {TO} {JSON}<|message|><|call|>", ["it is empty"]),
        (f"<|channel|>commentary {TO} {JSON}<|message|>ls -la<|call|>", ["broken at line 1 column 1"]),
        (f'<|channel|>commentary {TO} {JSON}<|message|>{{"command": "ls"<|call|>', ["stops before it is whole"]),
        (f"<|channel|>commentary {TO} {JSON}<|message|>{LS}{LS}<|call|>", ["more text"]),
        (f'<|channel|>commentary {TO} {JSON}<|message|>{{"cmd": "ls"}}<|call|>', ['"command" is missing', '"cmd"']),
        (f'<|channel|>commentary {TO} {JSON}<|message|>{{"command": ["ls"]}}<|call|>', ["it is a list"]),
        (f'<|channel|>commentary {TO} {JSON}<|message|>"ls"<|call|>', ["these are a string"]),
        ("<|channel|>final<|message|>a<|end|><|start|>user<|message|>b<|return|>", ['as "user"']),
        ("<|channel|>analysis<|message|>a<|end|>and then<|return|>", ["must start with <|start|>assistant"]),
        (f"<|channel|>commentary {TO} {JSON} {LS}<|call|>", ["no <|message|>"]),
        (f"<|channel|>commentary {TO} to=b c<|message|>{LS}<|call|>", ["header could not be read"]),
    ],
)
def test_mistakes_are_told(completion: str, words: list[str]) -> None:
    action = parse(completion)
    assert action.kind == "malformed"
    assert action.correction is not None
    assert action.correction.endswith(EXAMPLE)
    assert "Nothing was run." in action.correction
    for word in words:
        assert word in action.correction


@pytest.mark.parametrize(
    "completion",
    [
        "<|channel|>ana",
        "<|channel|>analysis<|message|>hm",
        f"{ANALYSIS}<|channel|>commentary {TO} {JSON}<|message|>" + '{"command": "cat > x',
        f"{ANALYSIS}<|channel|>commentary {TO} {JSON}<|message|>{LS}",
        "<|channel|>final<|message|>Do",
        "<|channel|>analysis<|message|>hm<|end|>",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assist",
    ],
)
def test_what_the_token_limit_cut_is_told(completion: str) -> None:
    action = parse(completion, truncated=True)
    assert action.kind == "malformed"
    assert "cut off by the token limit" in (action.correction or "")


def test_a_stop_token_that_was_taken_off_is_no_mistake() -> None:
    assert RENDERER.parse_text(f"<|channel|>commentary {TO} {JSON}<|message|>{LS}").commands == ("ls",)
    assert RENDERER.parse_text("<|channel|>final<|message|>Done.").kind == "final"


def test_results_and_corrections() -> None:
    assert RENDERER.observation_text(["a", "b"]) == "a\nb"
    assert RENDERER.correction_text("a") == "a"
    for use in (RENDERER.observation_text, lambda outputs: RENDERER.observation_ids(outputs, [])):
        with pytest.raises(UsageError, match="one output per command"):
            use([])
    one = "<|start|>functions.execute_bash to=assistant<|channel|>commentary<|message|>"
    assert harmony_encoding().decode(RENDERER.observation_ids(["a", "b"], [200012])) == (
        f"{one}a<|end|>{one}b<|end|><|start|>assistant"
    )
    # After a call the tool answers, otherwise the user.
    assert harmony_encoding().decode(RENDERER.correction_ids("x", [200012])) == f"{one}x<|end|><|start|>assistant"
    assert harmony_encoding().decode(RENDERER.correction_ids("x", [200002])) == (
        "<|start|>user<|message|>x<|end|><|start|>assistant"
    )


def test_the_opening_as_messages_declares_the_tool() -> None:
    assert RENDERER.stop == [200012, 200002]
    system, user = RENDERER.initial_messages("Be good.", "Do it.")
    assert system["content"].startswith("# Instructions\n\nBe good.\n\n# Tools\n\n## functions")
    assert user == {"role": "user", "content": "Do it."}


_MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>", "<|constrain|>", JSON)
_WORDS = (
    "assistant",
    "user",
    "analysis",
    "commentary",
    "final",
    " ",
    "\n",
    "\u00a0",
    "to=",
    TO,
    LS,
    "code",
    "x",
    "<",
    "é",
)
_TURNS = ("<|end|><|start|>assistant", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
_PIECES = st.sampled_from([*_MARKS, *_WORDS, *_TURNS, f"<|channel|>commentary {TO} {JSON}<|message|>"])
_COMPLETIONS = st.lists(_PIECES, max_size=14).map("".join)


@given(st.lists(_PIECES | st.just("\ud800"), max_size=14).map("".join), st.booleans())
@settings(deadline=None)
def test_any_text_has_an_outcome_that_can_be_sent(completion: str, truncated: bool) -> None:
    can_be_sent(RENDERER.parse_text(completion, truncated=truncated))


@given(_COMPLETIONS, st.sampled_from(["<|call|>", "<|return|>"]))
@example(f"{JSON}<|channel|>commentary<|message|><|channel|><|return|>", "<|return|>")
@example("<|channel|>final<|message|>x<|call|>", "<|return|>")
@example("assistant<|channel|>final<|message|>x", "<|return|>")
@example(f"<|channel|>commentary x {TO}<|message|>{LS}", "<|call|>")
@example("<|channel|>final <|constrain|>json<|message|>{}", "<|return|>")
@example("<|return|><|message|>", "<|call|>")
@settings(fuzz, max_examples=300)
def test_text_and_ids_are_read_alike(completion: str, stop: str) -> None:
    completion += stop
    by_ids = RENDERER.parse_ids(harmony_encoding().encode(completion, allowed_special="all"))
    assert RENDERER.parse_text(completion) == by_ids


@given(_COMPLETIONS, st.sampled_from(["<|call|>", "<|return|>"]))
@example(f"{JSON}<|channel|>commentary<|message|><|channel|>", "<|return|>")
@example("assistant<|channel|>final<|message|>x", "<|return|>")
@example(f"<|channel|>commentary x {TO}<|message|>{LS}", "<|call|>")
@example(f"<|channel|>commentary {TO} <|start|><|message|>{LS}", "<|call|>")
@example("<|constrain|><|constrain|><|message|>", "<|call|>")
@settings(fuzz, max_examples=300)
def test_messages_are_those_of_openai_harmony(completion: str, stop: str) -> None:
    """Where its parser takes a turn for messages, they are ours; what it refuses is malformed."""
    import openai_harmony as oh

    ids = harmony_encoding().encode(completion + stop, allowed_special="all")
    stop_at = next(place for place, id_ in enumerate(ids) if id_ in (200012, 200002))
    parser = oh.StreamableParser(harmony_encoding(), oh.Role.ASSISTANT)
    try:
        for id_ in ids[: stop_at + 1]:
            parser.process(id_)
        parser.process_eos()
    except oh.HarmonyError:
        assert RENDERER.parse_ids(ids).kind == "malformed"
        return
    ours = read_turn(pieces_of(completion + stop)).messages
    theirs = [
        # A format alone is no recipient; the version that is pinned takes it for one, later ones do not.
        (m.author.role == oh.Role.ASSISTANT, m.channel, _no_format(m.recipient), "".join(c.text for c in m.content))
        for m in parser.messages
    ]
    assert [(m.role == "assistant", m.channel, _no_format(m.recipient), m.body) for m in ours] == theirs


def _no_format(recipient: str | None) -> str | None:
    return None if recipient is not None and recipient.startswith("<|constrain|>") else recipient


@pytest.mark.parametrize("body", ["<|channel|>", LS, ""])
def test_a_call_without_a_recipient_does_not_end_the_task(body: str) -> None:
    for completion in (
        f"{JSON}<|channel|>commentary<|message|>{body}",
        f"<|channel|>commentary {JSON}<|message|>{body}",
    ):
        action = parse(completion + "<|return|>")
        assert action.kind == "malformed"
        assert "no recipient (to=functions.execute_bash)" in (action.correction or "")
    assert parse("<|channel|>final <|constrain|>json<|message|>{}<|return|>").kind == "final"


@pytest.mark.parametrize(
    "call", [f"<|channel|>commentary {TO} {JSON}<|message|>{{", f"<|channel|>commentary {TO}<|message|>{LS}"]
)
def test_thousands_of_calls_are_malformed_at_once(call: str) -> None:
    completion = "<|end|><|start|>assistant".join([call] * 20_000) + "<|call|>"
    begun = time.process_time()
    action = RENDERER.parse_text(completion)
    assert time.process_time() - begun < 1.5
    assert "more than 256 messages" in (action.correction or "")
    few = parse("<|end|><|start|>assistant".join([call] * 65) + "<|call|>")
    assert "contains 65 tool calls" in (few.correction or "")


def test_no_text_is_read_again_and_again() -> None:
    copied = 0

    class Counted(str):
        """A text that counts the characters that are copied from it."""

        __slots__ = ()

        def __getitem__(self, key: Any) -> str:
            nonlocal copied
            found = super().__getitem__(key)
            copied += len(found)
            return found

    text = Counted("<|channel|>final<|message|>x" * 1_000)
    assert "".join(pieces_of(text)) == text
    assert copied <= len(text)
