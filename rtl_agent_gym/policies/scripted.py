"""Policies whose turns do not depend on the shell's output: from a file, the reference solution, or random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import UsageError
from ..problems import Problem
from ..problems.paths import expand_home
from ..prompts import fence
from ..renderers import Message, ModelTurn, Renderer, ToolCall
from ..renderers.renderer import ToollessRenderer
from ..transcripts import read_transcript
from .protocol import Completion


def write_turn(renderer: Renderer, text: str, commands: Sequence[str] = ()) -> str:
    """A completion with `text` and one tool call per command, in the renderer's dialect."""
    return renderer.turn_text(ModelTurn(text=text, calls=tuple(map(ToolCall.of, commands))))


class ScriptedTurn(BaseModel, extra="forbid"):
    """One turn of a script: either text and commands, written in the model's dialect, or a literal completion."""

    say: str = ""
    run: str | list[str] = []
    completion: str | None = None
    native: ModelTurn | None = None
    """For a completion of a transcript: the turn as a chat service reported it, used instead of the completion."""
    cut_off: bool = False
    """For a completion: whether the token limit ended it."""

    def text(self, renderer: Renderer) -> str:
        """The completion."""
        if self.completion is not None:
            return self.completion
        return write_turn(renderer, self.say, [self.run] if isinstance(self.run, str) else self.run)


_TURNS = TypeAdapter(list[ScriptedTurn])


class ScriptedPolicy:
    """Plays a file's turns in order, then ends the episode.

    Args:
        path: A YAML list of `ScriptedTurn`, or a transcript (``.jsonl``), whose completions are repeated.

    Raises:
        UsageError: The file cannot be read or is not a script; the message names the turn and the field.
        TranscriptError: The transcript cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = expand_home(path)
        self.name = f"scripted {self.path.name}"
        if self.path.suffix == ".jsonl":
            recorded = read_transcript(self.path).turns
            self.turns = [
                ScriptedTurn(completion=turn.completion, native=turn.native, cut_off=turn.cut_off) for turn in recorded
            ]
        else:
            self.turns = _read_script(self.path)

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        completions = [Completion(turn.text(renderer), native=turn.native, cut_off=turn.cut_off) for turn in self.turns]
        return ScriptedPlayer([*completions, Completion(write_turn(renderer, "Done."))])


class ScriptedPlayer:
    """Returns prepared completions in order, and then repeats the last."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        self._completions, self._last = iter(completions), completions[-1]

    async def act(self, messages: Sequence[Message]) -> Completion:
        """The next turn, which does not depend on the shell's output."""
        return next(self._completions, self._last)


def _read_script(path: Path) -> list[ScriptedTurn]:
    try:
        return _TURNS.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(
            f"{path}: turn {place}: {first['msg']}; a script is a list of {{say, run, completion}}"
        ) from error


# ---- the reference solution


class GoldenPolicy:
    """Looks at the work folder, writes the reference solution's files, compiles them, and ends the episode."""

    name = "golden"

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        if problem.asks_text and problem.reference_response.strip():
            return ScriptedPlayer([Completion(write_turn(renderer, problem.reference_response.strip()))])
        if not problem.golden:
            raise UsageError(f"{problem.id} has no reference solution, so the golden policy cannot play it")
        if isinstance(renderer, ToollessRenderer):
            blocks = []
            for path, content in problem.golden.items():
                marks = fence(content)
                blocks.append(f"{marks}systemverilog {path}\n{content.removesuffix(chr(10))}\n{marks}")
            return ScriptedPlayer([Completion(write_turn(renderer, "\n\n".join(blocks)))])
        documents = [path for path in problem.context if path.startswith("docs/")]
        look = ["ls -R rtl docs verif", *(f"head -n 40 '{path}'" for path in documents[:1])]
        writes = [heredoc(path, content) for path, content in problem.golden.items()]
        turns = [
            ("First a look at the work folder and the specification.", "\n".join(look)),
            ("Now the design.", "\n".join(writes)),
        ]
        sources = " ".join(f"'{path}'" for path in problem.golden if path.endswith((".v", ".sv")))
        if sources:
            check = f"verilator --lint-only -Wno-fatal --timing -y rtl {sources} && echo checked"
            turns.append(("Does it compile?", check))
        completions = [Completion(write_turn(renderer, text, [command])) for text, command in turns]
        return ScriptedPlayer([*completions, Completion(write_turn(renderer, "The design is written and checked."))])


def heredoc(path: str, content: str) -> str:
    """The bash command that writes a file with exactly this content."""
    mark = "EOF"
    while mark in content:
        mark += "_"
    folder = path.rpartition("/")[0]
    make = f"mkdir -p '{folder}' && " if folder else ""
    if content and not content.endswith("\n"):  # a here-document always ends its last line
        return f"{make}{{ head -c -1 > '{path}'; }} <<'{mark}'\n{content}\n{mark}"
    return f"{make}cat > '{path}' <<'{mark}'\n{content}{mark}"


# ---- random commands, to test shells, transcripts and replays

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
"""Each is deterministic in a given state, except for what `evaluation.replay` declares."""

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
