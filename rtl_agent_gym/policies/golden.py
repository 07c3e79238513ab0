"""The reference solution, played as real shell turns or as one answer."""

from __future__ import annotations

import re

from ..errors import UsageError
from ..problems import Problem
from ..renderers import Renderer
from ..renderers.toolless import ToollessRenderer
from .protocol import Completion
from .scripted import ScriptedPlayer, write_turn


class GoldenPolicy:
    """Looks at the work folder, writes the reference solution's files, compiles them, and ends the episode."""

    name = "golden"

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        """A player for one episode, which ignores the shell's output."""
        if problem.asks_text and problem.reference_response.strip():
            return ScriptedPlayer([Completion(write_turn(renderer, problem.reference_response.strip()))])
        if not problem.golden:
            raise UsageError(f"{problem.id} is without a reference solution, so the golden policy cannot play it")
        if isinstance(renderer, ToollessRenderer):
            answer = "\n\n".join(fenced(*file) for file in problem.golden.items())
            return ScriptedPlayer([Completion(write_turn(renderer, answer))])
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
    """The bash command that writes a file, byte for byte when it ends with a line feed or is empty."""
    mark = "EOF"
    while mark in content:
        mark += "_"
    folder = path.rpartition("/")[0]
    make = f"mkdir -p '{folder}' && " if folder else ""
    if content and not content.endswith("\n"):  # a here-document always ends its last line
        return f"{make}{{ head -c -1 > '{path}'; }} <<'{mark}'\n{content}\n{mark}"
    return f"{make}cat > '{path}' <<'{mark}'\n{content}{mark}"


def fenced(path: str, content: str) -> str:
    """A file as a fenced block of an answer. The fence is longer than any in the file."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", content)), 0)
    return f"{fence}systemverilog {path}\n{content.removesuffix(chr(10))}\n{fence}"
