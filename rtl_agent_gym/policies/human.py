"""A person at the terminal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence

from ..errors import UsageError
from ..problems import Problem
from ..renderers import Renderer
from ..renderers.protocol import Message
from .protocol import Completion
from .wording import write_turn

DONE = "/done"
PROMPT, CONTINUED = "agent$ ", "     > "


class HumanPolicy:
    """Reads each turn from the terminal: a bash command, over several lines where bash would go on reading.

    ``/done`` or Ctrl-D ends the episode.

    Args:
        read: Gives a line for a prompt and raises `EOFError` at the end; None for the terminal.
    """

    name = "human"
    interactive = True
    """One episode at a time, with its output shown."""

    def __init__(self, read: Callable[[str], str] | None = None) -> None:
        self._read = read

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> HumanPlayer:
        """A player for one episode."""
        if self._read is None and not sys.stdin.isatty():
            raise UsageError('the human policy needs a terminal; from a program use "scripted FILE"')
        return HumanPlayer(renderer, self._read or input)


class HumanPlayer:
    """One person's episode."""

    def __init__(self, renderer: Renderer, read: Callable[[str], str]) -> None:
        self._renderer, self._read = renderer, read

    async def act(self, messages: Sequence[Message]) -> Completion:
        """Ask for a command."""
        command = await asyncio.to_thread(self._command)
        if command is None:
            return Completion(write_turn(self._renderer, "Done."))
        return Completion(write_turn(self._renderer, "", [command]))

    def _command(self) -> str | None:
        lines: list[str] = []
        while True:
            try:
                lines.append(self._read(CONTINUED if lines else PROMPT))
            except EOFError:
                return "\n".join(lines) or None
            if lines == [DONE]:
                return None
            if not "".join(lines).strip():
                lines = []
            elif is_whole("\n".join(lines)):
                return "\n".join(lines)


def is_whole(command: str) -> bool:
    """Whether bash would run this now rather than read on, as it does after an open quote, loop or here-document."""
    if command.endswith("\\") and not command.endswith("\\\\"):
        return False
    checked = subprocess.run(
        ["bash", "-n", "-c", command], capture_output=True, text=True, errors="replace", check=False
    )
    unfinished = ("unexpected end of file", "unexpected EOF", "delimited by end-of-file")
    return not any(words in checked.stderr for words in unfinished)
