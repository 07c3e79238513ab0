"""A person at the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from typing import Any

from ..engines.threads import in_thread
from ..errors import UsageError
from ..problems import Problem
from ..renderers import Message, Renderer
from ..renderers.renderer import ToollessRenderer
from .protocol import Completion
from .scripted import write_turn

DONE = "/done"
PROMPT, CONTINUED = "agent$ ", "     > "
_NO_TERMINAL = (termios.error, ValueError, OSError)


class HumanPolicy:
    """Reads each turn from the terminal: a bash command, which may span several lines as in bash.

    ``/done`` or Ctrl-D ends the episode.

    Args:
        read: Takes a prompt, returns a line and raises `EOFError` at the end of input; None for the terminal.
    """

    name = "human"

    def __init__(self, read: Callable[[str], str] | None = None) -> None:
        self._read = read

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> HumanPlayer:
        if isinstance(renderer, ToollessRenderer):
            raise UsageError("the human policy works in a shell, and a single-turn episode has none")
        if self._read is None and not sys.stdin.isatty():
            raise UsageError('the human policy needs a terminal; from a program use "scripted FILE"')
        return HumanPlayer(renderer, self._read or input)


class HumanPlayer:
    """One person's episode."""

    def __init__(self, renderer: Renderer, read: Callable[[str], str]) -> None:
        self._renderer, self._read = renderer, read

    async def act(self, messages: Sequence[Message]) -> Completion:
        """Read the next command. Ctrl-C ends the wait at once, though the thread that reads cannot be stopped."""
        before: list[Any] | None = None
        with contextlib.suppress(*_NO_TERMINAL):
            before = termios.tcgetattr(sys.stdin)
        try:
            command = await in_thread(self._command)
        except asyncio.CancelledError:
            with contextlib.suppress(*_NO_TERMINAL):
                if before is not None:  # line editing may have disabled the echo
                    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
            raise
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
            elif is_complete("\n".join(lines)):
                return "\n".join(lines)


def is_complete(command: str) -> bool:
    """Whether bash would run this, instead of waiting for more lines as after an open quote, loop or here-document."""
    if command.endswith("\\") and not command.endswith("\\\\"):
        return False
    english = os.environ | {"LC_ALL": "C"}
    checked = subprocess.run(  # through stdin: an argument is limited to 128 KiB
        ["bash", "-n"], input=command, env=english, capture_output=True, text=True, errors="replace", check=False
    )
    unfinished = ("unexpected end of file", "unexpected EOF", "delimited by end-of-file")
    return not any(words in checked.stderr for words in unfinished)
