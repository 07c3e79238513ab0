"""A policy that draws random commands from a list, to test shells, transcripts and replays."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..problems import Problem
from ..renderers import Message, Renderer
from .golden import heredoc
from .protocol import Completion
from .scripted import write_turn

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

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> RandomPlayer:
        """A player for one episode."""
        return RandomPlayer(problem, renderer, random.Random(seed), self.turns)


class RandomPlayer:
    """Plays one episode."""

    def __init__(self, problem: Problem, renderer: Renderer, draw: random.Random, turns: int) -> None:
        self._problem, self._renderer, self._draw, self._left = problem, renderer, draw, turns

    async def act(self, messages: Sequence[Message]) -> Completion:
        """The next turn, which does not depend on the shell's output."""
        self._left -= 1
        if self._left < 0:
            return Completion(write_turn(self._renderer, "Enough."))
        if self._draw.random() < 0.1:
            return Completion('<tool_call>\n{"name": "execute_bash", "arguments": {')
        commands = [self._command() for _ in range(self._draw.choice((1, 1, 1, 2, 3)))]
        return Completion(write_turn(self._renderer, "", commands))

    def _command(self) -> str:
        if self._draw.random() < 0.2:
            body = self._draw.choice(("a", "~a", "a &", "1'b0"))
            target = self._draw.choice((*self._problem.targets, "rtl/scratch.sv"))
            return heredoc(target, _MODULE.format(number=self._draw.randrange(10), body=body))
        return self._draw.choice(COMMANDS)
