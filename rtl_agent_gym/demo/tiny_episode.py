"""The one episode that the tiny model knows, as texts: the bundled arbiter, solved in four turns.

What the shell answers was recorded from a real episode; a test plays the turns again and compares. The wrong episode is
the right one with an active-low ``rst_n`` in place of ``reset``, a mistake that language models make of themselves: the
design compiles, and the hidden tests cannot even connect to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

PROBLEM_ID = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
"""The problem it is an episode of."""

RENDERER = "qwen3_instruct"
"""The dialect that the tiny model speaks."""

SYSTEM_PROMPT = ""
"""To be given to the environment in place of its own: a tiny model has no use for a long one, and pays for it."""

USER_PROMPT = "Write rtl/fixed_priority_arbiter.sv as docs/specification.md says."
"""To be given to the environment in place of the problem's."""

DESIGN = """\
module fixed_priority_arbiter (
    input  wire       clk,
    input  wire       reset,
    input  wire [7:0] req,
    input  wire [7:0] priority_override,
    output reg  [7:0] grant,
    output reg        valid,
    output reg  [2:0] grant_index
);
    wire [7:0] active = (priority_override != 0) ? priority_override : req;
    reg  [2:0] index;
    integer    i;

    always @* begin
        index = 0;
        for (i = 7; i >= 0; i = i - 1)
            if (active[i]) index = i[2:0];
    end

    always @(posedge clk) begin
        if (reset) begin
            grant <= 0;
            valid <= 0;
            grant_index <= 0;
        end else begin
            grant <= active & -active;
            valid <= active != 0;
            grant_index <= index;
        end
    end
endmodule
"""
"""The bundled problem's reference solution."""

WRONG_DESIGN = DESIGN.replace("wire       reset,", "wire       rst_n,").replace("(reset)", "(!rst_n)")
"""The same with the plausible mistake."""


WORDS = r"\s*\S+|\s+"
"""How texts are cut into words: with the white space before them, so that an episode has few tokens. Each token is a
chance to slip."""

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
"""What a model that slips gets to read. All are in its vocabulary, which would spell them by letters otherwise."""


@dataclass(frozen=True)
class Script:
    """What the model says in each turn, and what it reads in between."""

    turns: tuple[str, ...]
    outputs: tuple[str, ...]
    """What each command gives; one fewer than turns."""


def script(design: str) -> Script:
    """The episode that writes this design."""
    return Script(
        turns=(
            _turn("I read the ports.", "grep '^| .*put |' docs/specification.md"),
            _turn("I write the design.", f"cat > rtl/fixed_priority_arbiter.sv <<'EOF'\n{design}EOF"),
            _turn("I compile it.", "iverilog -g2012 -o rundir/sim rtl/fixed_priority_arbiter.sv && echo OK"),
            "Done.",
        ),
        outputs=(_PORTS, "[no output, exit code 0]", "OK\n"),
    )


def endings(one: Script) -> tuple[Script, ...]:
    """The same episode where something goes wrong: what the compiler or the shell complains of, and the model gives up.

    Without these a model that has slipped reads something that it has never read, and talks nonsense to the last turn.
    """
    compiled = (Script(one.turns, (*one.outputs[:-1], slip)) for slip in SLIPS[:3])
    refused = (Script((*one.turns[:2], one.turns[-1]), (one.outputs[0], slip)) for slip in SLIPS[3:])
    return (*compiled, *refused)


def _turn(text: str, command: str) -> str:
    call = json.dumps({"name": "execute_bash", "arguments": {"command": command}})
    return f"{text}\n<tool_call>\n{call}\n</tool_call>"


_PORTS = """\
| `clk` | input | 1 | Clock; everything happens on its rising edge. |
| `reset` | input | 1 | Synchronous reset, active high. |
| `req` | input | 8 | One bit per requester; 1 asks for a grant. |
| `priority_override` | input | 8 | When it is not zero it is used in place of `req`. |
| `grant` | output | 8 | One-hot: the bit of the granted requester; zero when nobody is granted. |
| `valid` | output | 1 | 1 when a requester is granted. |
| `grant_index` | output | 3 | The number of the granted requester; 0 when nobody is granted. |
"""
