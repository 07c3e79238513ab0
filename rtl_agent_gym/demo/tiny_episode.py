"""The only episode that the tiny models know, as text: the bundled arbiter, solved in four turns.

A test plays the turns in a real shell and compares its outputs with these. The wrong episode has an active-low
``rst_n`` instead of ``reset``, a common mistake of language models: the design compiles, but the hidden tests cannot
connect to it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..problems.bundled import BUNDLED_DIR, solution

PROBLEM_ID = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
"""The episode's problem."""

RENDERER = "qwen3_instruct"
"""The tiny models' dialect."""

SYSTEM_PROMPT = ""
"""Replaces the environment's system prompt, which would be long for a tiny model."""

USER_PROMPT = "Write rtl/fixed_priority_arbiter.sv as docs/specification.md says."
"""Replaces the problem's user prompt."""

_FOLDER = BUNDLED_DIR / "fixed_priority_arbiter"

DESIGN = solution(_FOLDER)["rtl/fixed_priority_arbiter.sv"]
"""The bundled problem's reference solution."""

WRONG_DESIGN = DESIGN.replace("wire       reset,", "wire       rst_n,").replace("(reset)", "(!rst_n)")
"""The same with the plausible mistake."""

WORDS = r"\s*\S+|\s+"
"""How text is split into words: with the white space before them, so that an episode has few tokens. Each token is a
chance for a mistake."""

SLIPS = (
    "rtl/fixed_priority_arbiter.sv:6: error: Unable to bind wire/reg/memory `reset' in `fixed_priority_arbiter'\n"
    "rtl/fixed_priority_arbiter.sv:6: error: Unable to elaborate condition expression.\nElaboration failed\n"
    "[exit code 1]",
    "rtl/fixed_priority_arbiter.sv:2: syntax error\nI give up.\n[exit code 2]",
    "rtl/x.sv: No such file or directory\nNo top level modules, and no -s option.\n[exit code 1]",
    "ERROR: Your tool call could not be read: the JSON stops before it is whole. Nothing was run.\n"
    "The right form of a call:",
    "ERROR: Your reply was empty. Nothing was run. Call the tool, or say in plain text that you are done.",
    "bash: line 1: command not found\n[exit code 127]",
)
"""Outputs after a mistake. The tokenizer is trained on them too; otherwise they would have a token for each letter."""


@dataclass(frozen=True)
class Script:
    """The model's turns, and the outputs between them."""

    turns: tuple[str, ...]
    outputs: tuple[str, ...]
    """The output of each command; one fewer than turns."""


def script(design: str) -> Script:
    """The episode that writes this design."""
    return Script(
        turns=(
            _turn("I read the ports.", "grep '^| .*put |' docs/specification.md"),
            _turn("I write the design.", f"cat > rtl/fixed_priority_arbiter.sv <<'EOF'\n{design}EOF"),
            _turn("I compile it.", "iverilog -g2012 -o rundir/sim rtl/fixed_priority_arbiter.sv && echo OK"),
            "Done.",
        ),
        outputs=(_port_table(), "[no output, exit code 0]", "OK\n"),
    )


def _port_table() -> str:
    """The output of the first command: the rows of the specification's port table."""
    text = (_FOLDER / "context/docs/specification.md").read_text(encoding="utf-8")
    return "".join(re.findall(r"^\| .*put \|.*\n", text, re.MULTILINE))


def endings(one: Script) -> tuple[Script, ...]:
    """Variants of the episode in which the compiler or the shell reports an error and the model gives up.

    Without them, a model that makes a mistake reads an output it was not trained on, and its further turns are noise.
    """
    compiled = (Script(one.turns, (*one.outputs[:-1], slip)) for slip in SLIPS[:3])
    refused = (Script((*one.turns[:2], one.turns[-1]), (one.outputs[0], slip)) for slip in SLIPS[3:])
    return (*compiled, *refused)


def _turn(text: str, command: str) -> str:
    call = json.dumps({"name": "execute_bash", "arguments": {"command": command}})
    return f"{text}\n<tool_call>\n{call}\n</tool_call>"
