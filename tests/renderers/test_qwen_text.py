"""Qwen's dialect on text: every kind of completion has one outcome, and the model is told of every mistake."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import Action, get_renderer, with_notes
from rtl_agent_gym.renderers.qwen import EXAMPLE
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer

from .families import renderer_of
from .fuzzing import can_be_sent, fuzz

RENDERER = get_renderer("qwen3")


def parse(completion: str, *, truncated: bool = False) -> Action:
    return RENDERER.parse_text(completion, truncated=truncated)


def call(command: Any = "ls", **changes: Any) -> str:
    body = {"name": "execute_bash", "arguments": {"command": command}} | changes
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


def told(action: Action, *words: str) -> None:
    """The action is malformed, and its correction holds these words and the right form."""
    assert action.kind == "malformed"
    assert action.commands == ()
    assert action.correction is not None
    assert action.correction.endswith(EXAMPLE)
    assert "Nothing was run." in action.correction
    for word in words:
        assert word in action.correction


@pytest.mark.parametrize(
    ("completion", "commands"),
    [
        (call("ls"), ["ls"]),
        ('<tool_call>{"name":"execute_bash","args":{"command":"ls"}}</tool_call>', ["ls"]),
        (call(arguments=json.dumps({"command": "ls"})), ["ls"]),
        (call("a\nb\tc"), ["a\nb\tc"]),
        ('<tool_call>{"name": "execute_bash", "arguments": {"command": "a\nb\tc"}}</tool_call>', ["a\nb\tc"]),
        (call("echo '</tool_call>' \"<think>\""), ["echo '</tool_call>' \"<think>\""]),
        (call("printf 'é 漢 🙂'"), ["printf 'é 漢 🙂'"]),
        (call("a") + "\n" + call("b"), ["a", "b"]),
        (call("ls") + "<|im_end|>", ["ls"]),
        (call("ls") + "<|im_end|>\n", ["ls"]),
        ("I look around.\n" + call("ls") + "\nThen I write.", ["ls"]),
        ("<think>\nhm\n</think>\n\n" + call("ls"), ["ls"]),
        ("hm\n</think>\n\n" + call("ls"), ["ls"]),
        (call("ls") + "<think>never closed", ["ls"]),
        ("```bash\nls\n```\n" + call("pwd"), ["pwd"]),
    ],
)
def test_calls_are_read(completion: str, commands: list[str]) -> None:
    action = parse(completion)
    assert (action.kind, list(action.commands), action.notes) == ("command", commands, ())
    assert action.correction is None


def test_text_and_thinking_are_told_apart() -> None:
    action = parse("<think>\none\n</think>\nBefore. " + call("ls") + "<think>two</think> After.")
    assert (action.text, action.thinking) == ("Before.  After.", "one\ntwo")


def test_a_closing_tag_may_be_missing_when_the_json_is_whole() -> None:
    body = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}'
    for completion in (body, body + "\n", body + "\nThis lists the files."):
        action = parse(completion)
        assert action.commands == ("ls",)
        assert any("</tool_call> was missing" in note for note in action.notes)
    assert parse(body + "\n" + call("pwd")).commands == ("ls", "pwd")
    assert parse(body, truncated=True).commands == ("ls",)


def test_more_than_eight_calls_are_refused_with_a_note() -> None:
    action = parse("\n".join(call(f"echo {n}") for n in range(10)))
    assert action.commands == tuple(f"echo {n}" for n in range(8))
    assert "10 calls" in action.notes[0]
    assert "the other 2 were not" in action.notes[0]


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        ("", ["was empty"]),
        ("  \n<|im_end|>", ["was empty"]),
        ("<think>\nhm\n</think>\n", ["nothing but thinking"]),
        ("<think>\nhm", ["never closed with </think>"]),
        ("<tool_call></tool_call>", ["it is empty"]),
        ("<tool_call>\nls -la\n</tool_call>", ["broken at line 1 column 1", "ls -la"]),
        (
            '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "echo "hi""}}\n</tool_call>',
            ["line 1 column 58", "delimiter", 'is written \\"'],
        ),
        (r'<tool_call>{"name": "execute_bash", "arguments": {"command": "grep \d x"}}</tool_call>', [r"written \\"]),
        ("<tool_call>{'name': 'execute_bash'}</tool_call>", ["broken at line 1 column 2"]),
        ('<tool_call>{"name": "execute_bash", "arguments": {"command": "ls"</tool_call>', ["stops before"]),
        ('<tool_call>{"name": "execute_bash", "arguments": {"command": "ls', ["stops before it is whole"]),
        (call("ls").replace("\n</tool_call>", "}\n</tool_call>"), ["more text: }"]),
        (call("ls").replace("\n</tool_call>", "}"), ["more text: }"]),
        ("<tool_call>" + '{"name": "execute_bash", "arguments": {"command": "a"}}' * 2 + "</tool_call>", ["more text"]),
        ("<tool_call>[1]</tool_call>", ["is a list"]),
        (call(name="bash"), ['no tool "bash"', 'the only tool is "execute_bash"']),
        (call(name=3), ["no tool a number"]),
        ('<tool_call>{"arguments": {"command": "ls"}}</tool_call>', ['"name" is missing']),
        ('<tool_call>{"name": "execute_bash"}</tool_call>', ['"arguments" is missing']),
        (call(args={"command": "ls"}), ['both "arguments" and "args"']),
        (call(arguments=["ls"]), ["are a list"]),
        (call(arguments="ls"), ["are a string"]),
        (call(arguments={}), ['"command" is missing']),
        (call(arguments={"cmd": "ls"}), ['"command" is missing', 'key "cmd"']),
        (call(3), ["must be a string, and it is a number"]),
        (call(["ls"]), ["it is a list"]),
        (call(None), ["it is null"]),
        (call(""), ['"command" is empty']),
        (call(" \n"), ['"command" is empty']),
        (call("a\0b"), ["a NUL, which shells do not accept, at character 1"]),
        (call("a\ud800"), ["not valid UTF-8"]),
        ('<tool_call>{"name": "execute_bash", "name": "x", "arguments": {}}</tool_call>', ['"name" is repeated']),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", ["could not be read"]),
        ("<tool_call>" + "9" * 10_000 + "</tool_call>", ["could not be read"]),
        (call("a") + call(""), ["Call 2 of 2"]),
        ('{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>', ["without a <tool_call>"]),
        ('{"name": "execute_bash", "arguments": {"command": "ls"}}', ["a call without <tool_call>"]),
        ('```json\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n```', ["a call without <tool_call>"]),
        ("<think>" + call("ls") + "</think>\nDone.", ["inside your thinking"]),
        ("<think>I will now list.\n" + call("ls"), ["inside your thinking"]),
        (call("ls") + "\n</think>\nDone.", ["inside your thinking"]),
        ("<think>Perhaps <tool_call>?</think>", ["inside your thinking"]),
        ("```bash\nls", ["no closing ``` line"]),
        ("```bash\n\n```", ["is empty"]),
    ],
)
def test_mistakes_are_told(completion: str, words: list[str]) -> None:
    told(parse(completion), *words)


def test_thinking_may_speak_of_calls() -> None:
    assert parse("<think>I could write <tool_call> now.</think>All done.").kind == "final"
    rehearsed = parse("<think>" + call("ls") + "</think>" + call("ls"))
    assert (rehearsed.commands, rehearsed.notes) == (("ls",), ())
    other = parse("<think>" + call("pwd") + "</think>" + call("ls"))
    assert (other.commands, other.notes) == (("ls",), ("a call inside your thinking was not run",))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"id": 7}, 'unknown key "id" of the call ignored'),
        ({"arguments": {"command": "ls", "timeout": 5}}, 'unknown key "timeout" ignored'),
    ],
)
def test_unknown_keys_are_ignored_with_a_note(changes: dict[str, Any], note: str) -> None:
    action = parse(call(**changes))
    assert action.commands == ("ls",)
    assert note in action.notes[0]


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        (
            '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "cat > x',
            ["call was cut off", "token limit"],
        ),
        (call("ls") + '\n<tool_call>\n{"name"', ["Call 2 of 2 was cut off"]),
        ("<tool_call>", ["was cut off by the token limit"]),
        ("<think>hm", ["cut off", "while you were thinking"]),
        ("I now", ["cut off", "before it was complete"]),
        ("", ["cut off"]),
        ("```bash\ncat > x", ["```bash block was cut off"]),
    ],
)
def test_what_the_token_limit_cut_is_told(completion: str, words: list[str]) -> None:
    told(parse(completion, truncated=True), *words)


def test_whole_calls_before_the_token_limit_are_run() -> None:
    action = parse(call("ls") + "\nAnd now I", truncated=True)
    assert action.commands == ("ls",)
    assert "cut off by the token limit after the last complete call" in action.notes[0]


@pytest.mark.parametrize("language", ["bash", "sh", "shell", "Bash"])
def test_a_shell_fence_is_taken_when_there_is_no_call(language: str) -> None:
    action = parse(f"Look:\n```{language}\nls\npwd\n```\nDone.")
    assert action.commands == ("ls\npwd",)
    assert "use <tool_call> instead" in action.notes[0]


def test_several_fences_are_run_in_order_and_others_are_text() -> None:
    action = parse("```bash\na\n```\n```verilog\nmodule m;\n```\n~~~sh\nb\n~~~\n")
    assert action.commands == ("a", "b")


@pytest.mark.parametrize(
    "completion",
    [
        "The arbiter is done.",
        "```verilog\nmodule m; endmodule\n```",
        "```markdown\n```bash\nls\n```\n",
        "Run `ls` yourself.",
        '{"name": "other"}',
        '{"execute_bash": ',
    ],
)
def test_anything_else_ends_the_task(completion: str) -> None:
    action = parse(completion)
    assert (action.kind, action.text, action.commands) == ("final", completion.strip(), ())


def test_a_fence_keeps_its_body_as_it_is() -> None:
    body = "cat > x.md <<'E'\n    ```\n\x0c``\nE"
    assert parse(f"````bash\n{body}\n```\n````").commands == (body + "\n```",)
    assert parse("```bash\r\nls\r\npwd\r\n```\r\n").commands == ("ls\npwd",)


def test_results_and_corrections_go_back_as_tool_responses() -> None:
    one = "<tool_response>\na\n</tool_response>"
    assert RENDERER.observation_text(["a"]) == one
    assert RENDERER.observation_text(["a", "b"]) == one + "\n<tool_response>\nb\n</tool_response>"
    assert RENDERER.correction_text("a") == one
    with pytest.raises(UsageError, match="one output per command"):
        RENDERER.observation_text([])


def test_notes_stand_below_the_last_output() -> None:
    assert with_notes(["a", "b"], []) == ["a", "b"]
    assert with_notes(["a", "b"], ["x", "y"]) == ["a", "b\n[note] x\n[note] y"]
    assert with_notes(["a\n"], ["x"]) == ["a\n[note] x"]
    assert with_notes([""], ["x"]) == ["[note] x"]


def test_the_opening_declares_the_tool() -> None:
    assert RENDERER.stop == ["<|im_end|>"]
    system, user = RENDERER.initial_messages("Be good.", "Do it.")
    assert system["content"].startswith("Be good.\n\n# Tools\n")
    assert '"name": "execute_bash"' in system["content"]
    assert user == {"role": "user", "content": "Do it."}
    text = RENDERER.initial_text("Be good.", "Do it.")
    assert text == (
        f"<|im_start|>system\n{system['content']}<|im_end|>\n"
        "<|im_start|>user\nDo it.<|im_end|>\n<|im_start|>assistant\n"
    )
    quiet = get_renderer("qwen3_disable_thinking").initial_text("Be good.", "Do it.")
    assert quiet == text + "<think>\n\n</think>\n\n"


def test_without_a_tokenizer_the_token_side_says_what_is_missing() -> None:
    for use in (
        lambda: RENDERER.initial_ids("", ""),
        lambda: RENDERER.parse_ids([1]),
        lambda: RENDERER.observation_ids(["a"], [1]),
        lambda: RENDERER.correction_ids("a", [1]),
    ):
        with pytest.raises(UsageError, match="needs the model's tokenizer"):
            use()


OPENED = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "'


@pytest.mark.parametrize("piece", ["<tool_call>", call("ls"), OPENED, OPENED + "\n</tool_call>"])
@pytest.mark.parametrize("frame", ["@", "<think>@</think>", "<think>@", "@</think>"])
def test_thousands_of_calls_are_read_in_linear_time(piece: str, frame: str) -> None:
    begun = time.process_time()
    action = parse(frame.replace("@", piece * 20_000))
    assert time.process_time() - begun < 1.5
    told(action, "tool calls. Send at most 8 a turn" if frame == "@" else "inside your thinking")


def test_so_many_calls_that_none_is_run() -> None:
    assert len(parse(call("ls") * 64).commands) == 8
    told(parse(call("ls") * 65), "contains 65 tool calls")
    told(parse(call("ls") * 65, truncated=True), "contains 65 tool calls")


def test_what_was_thought_before_an_unopened_close_does_not_count_as_calls() -> None:
    assert parse(call("ls") * 100 + "</think>" + call("pwd")).commands == ("pwd",)


@pytest.mark.parametrize("line", ["```" + " " * 50_000 + "`", "~" * 50_000 + "`", "```bash" + " \t" * 25_000 + "`"])
def test_long_lines_are_no_trouble_in_fences(line: str) -> None:
    begun = time.process_time()
    assert parse(line).kind == "final"
    assert time.process_time() - begun < 0.2


_PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
        "```bash\n",
        "\n```\n",
        call("ls"),
        '{"name": "execute_bash", "arguments": {"command": "',
        '"}}',
        "\n",
        "{",
        "[",
        "\ud800",
        "\0",
    ]
)


@given(st.lists(_PIECES | st.text(max_size=8), max_size=12).map("".join), st.booleans())
def test_any_text_has_an_outcome_that_can_be_sent(completion: str, truncated: bool) -> None:
    can_be_sent(parse(completion, truncated=truncated))


_READABLE = _PIECES.filter(lambda piece: piece not in ("\ud800", "<|im_end|>")) | st.sampled_from([OPENED, " ", "é"])


@given(st.lists(_READABLE, max_size=12).map("".join), st.booleans())
@example("I look.</think>\n" + call("ls"), False)
@example("I look." + call("ls") + "</think>", True)
@settings(fuzz, max_examples=200)
def test_text_and_ids_are_read_alike(completion: str, truncated: bool) -> None:
    completion = unicodedata.normalize("NFC", completion) + ("" if truncated else "<|im_end|>")
    ids = qwen3_tokenizer().encode(completion, add_special_tokens=False).ids
    assert parse(completion, truncated=truncated) == renderer_of("qwen3").parse_ids(ids)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip))
def test_every_command_arrives_as_it_was_meant(command: str) -> None:
    assert parse(call(command)).commands == (command,)
    body = json.dumps({"name": "execute_bash", "args": {"command": command}}, ensure_ascii=False)
    assert parse(f"<think>x</think><tool_call>{body}</tool_call>").commands == (command,)
