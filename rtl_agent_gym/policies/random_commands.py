"""A policy that draws random commands from a list, to test shells, transcripts and replays."""

from __future__ import annotations

import random

from ..problems import Problem
from ..renderers import Renderer
from .golden import heredoc
from .protocol import Completion
from .scripted import ScriptedPlayer, write_turn

COMMANDS = (
    "ls -la rtl verif docs",
    "ls -l --time-style=full-iso docs; date; date +%s.%N",
    "pwd; cd rtl && pwd",
    "cd /code",
    "cat docs/*.md | head -n 20",
    "wc -c docs/* rtl/* 2>/dev/null",
    "iverilog -V 2>/dev/null | head -n 1",
    'for file in rtl/*.sv; do iverilog -g2012 -t null "$file"; echo "$file: $?"; done',
    "verilator --lint-only -Wall rtl/*.sv",
    'COUNT=$((COUNT + 1)); echo "call $COUNT"',
    'greet() { echo "hello $1"; }; greet world',
    "greet again",
    "false",
    "(exit 3)",
    "no_such_command --at all",
    "echo 'not closed",
    "seq 1 4000",
    "mktemp; mktemp -d",
    "python3 -c 'import tempfile; print(tempfile.mkdtemp())'",
    "python3 -c 'print(object())'",
    "time sleep 0.05",
    'sleep 0.1 & wait; echo "pid $!"',
    "sleep 30 &",
    "kill %1; wait 2>/dev/null; echo ended",
    "printf 'no line end'",
    "printf '\\xff\\x00\\x1b[31mred\\x1b[0m\\n'",
    "find . -type f | sort | xargs sha256sum | head -n 5",
    "rm -f rtl/scratch.sv && echo gone",
    "exit 7",
)
"""Each is deterministic in a given state, except for what `evaluation.volatile` declares."""

_MODULE = "module scratch_{number} (input logic a, output logic b);\n    assign b = {body};\nendmodule\n"


class RandomPolicy:
    """Plays random commands, sometimes several in a turn, and occasionally a malformed turn.

    Args:
        turns: Number of turns before it ends the episode.
    """

    name = "random"

    def __init__(self, turns: int = 8) -> None:
        self.turns = turns

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        """A player for one episode, which ignores the shell's output."""
        draw = random.Random(seed)
        turns = [_turn(problem, renderer, draw) for _ in range(self.turns)]
        return ScriptedPlayer([*turns, Completion(write_turn(renderer, "Enough."))])


def _turn(problem: Problem, renderer: Renderer, draw: random.Random) -> Completion:
    if draw.random() < 0.1:
        return Completion('<tool_call>\n{"name": "execute_bash", "arguments": {')
    commands = [_command(problem, draw) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    return Completion(write_turn(renderer, "", commands))


def _command(problem: Problem, draw: random.Random) -> str:
    if draw.random() < 0.2:
        body = draw.choice(("a", "~a", "a &", "1'b0"))
        target = draw.choice((*problem.targets, "rtl/scratch.sv"))
        return heredoc(target, _MODULE.format(number=draw.randrange(10), body=body))
    return draw.choice(COMMANDS)
