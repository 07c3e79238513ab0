"""The prompts teach the work and keep quiet about how it is judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rtl_agent_gym import prompts
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.prompts import build_prompt
from rtl_agent_gym.renderers import RENDERER_NAMES, get_renderer
from rtl_agent_gym.renderers.gpt_oss import GPT_OSS_NAMES
from rtl_agent_gym.renderers.qwen import QWEN_NAMES

FORBIDDEN = re.compile(
    r"hidden|cocotb|py\s?test|harness|\bscor|grad(e|ing)|reward|verdict|judg|evaluat|benchmark|cvdp|\btests?\b|checker",
    re.IGNORECASE,
)

PROBLEM = Problem(
    id="some_id_0001",
    category=3,
    difficulty="easy",
    prompt="  Write {{ it }} with 100% care.\n\n",
    system_message="Send a patch.",
    context={"rtl/b.sv": "x", "docs/a.md": "é" * 2000},
    targets=("rtl/b.sv", "rtl/c.sv"),
    harness={"src/test_secret.py": "assert secret_value"},
    golden={"rtl/b.sv": "golden_text"},
)


@pytest.mark.parametrize("path", sorted(Path(prompts.__path__[0]).glob("*.md")), ids=lambda path: path.stem)
def test_no_prompt_hints_at_how_the_work_is_judged(path: Path) -> None:
    assert FORBIDDEN.findall(path.read_text()) == []


@pytest.mark.parametrize("renderer", ["", *RENDERER_NAMES])
def test_nothing_but_the_task_and_the_files_reaches_the_agent(renderer: str) -> None:
    system, user = build_prompt(PROBLEM, renderer=renderer)
    for text in (system, user):
        for secret in ("secret", "golden_text", "some_id_0001", "Send a patch."):
            assert secret not in text
    assert "{{" not in system
    assert "{%" not in system + user


@pytest.mark.parametrize("renderer", RENDERER_NAMES)
def test_no_prompt_spells_a_control_token(renderer: str) -> None:
    # It would reach the model as letters, which is not how it calls.
    system, _ = build_prompt(PROBLEM, renderer=renderer)
    assert not re.search(r"<\|\w+\|>|</?(tool_call|tool_response|think)>", system)


def test_the_system_message_teaches_what_an_agent_must_know() -> None:
    system, _ = build_prompt(PROBLEM, command_timeout=12.5, max_output=9_000, max_turns=7)
    for fact in (
        "`execute_bash`",
        "`command`",
        "12.5 seconds",
        "Output over 9,000 characters",
        "at most 7 turns",
        "/code/rtl",
        "/code/docs",
        "/code/verif",
        "/code/rundir",
        "iverilog -g2012",
        "verilator --lint-only",
        "<<'EOF_RTL'",
        "without a tool call",
    ):
        assert fact in system


def test_the_user_message_names_files_with_sizes_and_targets() -> None:
    _, user = build_prompt(PROBLEM)
    assert user == (
        "Write {{ it }} with 100% care.\n\n# Files\n\nIn /code there are:\n"
        "- docs/a.md (4,000 bytes)\n- rtl/b.sv (1 bytes)\n\n"
        "Your work is done when these files are right:\n- /code/rtl/b.sv\n- /code/rtl/c.sv"
    )
    bare = Problem(id="x", category=3, difficulty="easy", prompt="Do it.")
    assert build_prompt(bare)[1] == "Do it.\n\n# Files\n\n/code holds no files yet."


def test_each_dialect_has_its_own_words() -> None:
    parts = {name: build_prompt(PROBLEM, renderer=name)[0] for name in ("", "qwen3", "gpt_oss")}
    assert "up to 8 calls" in parts["qwen3"]
    assert "commentary channel" in parts["gpt_oss"]
    assert len(set(parts.values())) == 3
    assert build_prompt(PROBLEM, renderer="gpt_oss_high_reasoning")[0] == parts["gpt_oss"]


@pytest.mark.parametrize("renderer", RENDERER_NAMES)
def test_only_dialects_with_calls_in_json_are_told_to_write_json(renderer: str) -> None:
    """Qwen3.5's calls are XML, whose texts have no escapes, whatever its name begins with."""
    resolved = get_renderer(renderer).name
    told = "a line break is `\\n`" in build_prompt(PROBLEM, renderer=resolved)[0]
    assert told == (resolved in (*QWEN_NAMES, *GPT_OSS_NAMES))


def test_the_example_of_the_prompt_compiles_as_a_command() -> None:
    system, _ = build_prompt(PROBLEM)
    block = next(block for block in system.split("```") if "cat > /code/rtl/pulse_counter.sv" in block)
    action = get_renderer("qwen3").parse_text(f"```bash{block}```")
    assert action.kind == "command"
    assert action.commands[0].endswith("\nEOF_RTL")  # at the start of its line, or the here-document never ends


@pytest.mark.parametrize("renderer", ["", *RENDERER_NAMES])
def test_submissions_add_one_section_and_change_nothing_else(renderer: str) -> None:
    without, user = build_prompt(PROBLEM, renderer=renderer)
    assert build_prompt(PROBLEM, renderer=renderer, harness_feedback=0) == (without, user)
    assert "submit" not in without + user
    for count, words in ((1, "You may submit once."), (3, "You may submit 3 times.")):
        with_it, same_user = build_prompt(PROBLEM, renderer=renderer, harness_feedback=count)
        assert same_user == user
        begin, end = with_it.index("# Checks\n"), with_it.index("# Finishing\n")
        assert with_it[:begin] + with_it[end:] == without
        assert words in with_it[begin:end]
        assert FORBIDDEN.findall(with_it[begin:end]) == []
