"""The reference solution, played through real shell turns, or given in one answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..errors import UsageError
from ..problems import Problem
from ..renderers import Message, Renderer
from ..renderers.toolless import ToollessRenderer
from .protocol import Completion
from .scripted import write_turn


class GoldenPolicy:
    """Looks around, writes the golden files, compiles them, and says that it is done; without a shell, answers once."""

    name = "golden"

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> GoldenPlayer:
        """A player for one episode."""
        if not problem.golden:
            raise UsageError(f"{problem.id} comes without a reference solution, so the golden policy cannot play it")
        return GoldenPlayer(problem, problem.golden, renderer)


class GoldenPlayer:
    """Plays one problem's golden files."""

    def __init__(self, problem: Problem, golden: dict[str, str], renderer: Renderer) -> None:
        self._problem, self._golden, self._renderer = problem, golden, renderer
        self._turns = self._plan()

    async def act(self, messages: Sequence[Message]) -> Completion:
        """The next turn; what the shell says changes nothing."""
        return Completion(next(self._turns))

    def _plan(self) -> Iterator[str]:
        if isinstance(self._renderer, ToollessRenderer):
            yield write_turn(self._renderer, "\n\n".join(fenced(*file) for file in self._golden.items()))
        documents = [path for path in self._problem.context if path.startswith("docs/")]
        look = ["ls -R rtl docs verif", *(f"head -n 40 '{path}'" for path in documents[:1])]
        yield write_turn(self._renderer, "First a look at the work folder and the specification.", ["\n".join(look)])
        writes = [heredoc(path, content) for path, content in self._golden.items()]
        yield write_turn(self._renderer, "Now the design.", ["\n".join(writes)])
        sources = [path for path in self._golden if path.endswith((".v", ".sv"))]
        if sources:
            listed = " ".join(f"'{path}'" for path in sources)
            check = f"verilator --lint-only -Wno-fatal --timing -y rtl {listed} && echo checked"
            yield write_turn(self._renderer, "Does it compile?", [check])
        while True:
            yield write_turn(self._renderer, "The design is written and checked.")


def fenced(path: str, content: str) -> str:
    """A file as a fenced block of an answer; the fence is longer than any in the file."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", content)), 0)
    return f"{fence}systemverilog {path}\n{content.removesuffix(chr(10))}\n{fence}"


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
