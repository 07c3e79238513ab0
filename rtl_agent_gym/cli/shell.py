"""``rtl-agent-gym shell``: open an interactive shell in a problem's sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

import typer
from rich.console import Console

from ..episodes.episode import Episode
from ..errors import SandboxBroken, SandboxError, UsageError
from ..problems import Problem
from ..problems.paths import UNREAD, editable, graded_folders
from ..renderers import get_renderer
from ..sandboxes import Process, Sandbox
from ..sandboxes.choice import make_provider
from ..scoring import RewardWeights, Scorer
from ..scoring.score import Score
from ..scoring.scorer import require_scorable
from .options import ProblemOption, ProblemsOption, one_problem
from .show import print_line, print_score

_IN_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
"""A program that runs a command in a new pseudo-terminal, and forwards its own stdin and the terminal's output."""
_SIZED = 'stty rows "$0" columns "$1" && shift && exec "$@"'
_PIECE = 1 << 16


def shell_command(problems: ProblemsOption = "bundled", problem: ProblemOption = None) -> None:
    """Open an interactive shell in a problem's sandbox, and score the files when you leave it.

    The sandbox, user, limits and files are those that an agent gets. If the terminal is closed, as when a connection
    breaks, nothing is scored: your files are saved in a new folder rtl-agent-gym-shell-… in $TMPDIR or /tmp.
    """
    require_terminal("shell", '; to run commands from a program, use `run --policy "scripted FILE"`')
    chosen, console = require_scorable(one_problem(problems, problem), texts=False), Console()

    async def open_shell() -> Score:
        async with (
            make_provider() as provider,
            Scorer(provider) as scorer,
            Episode(chosen, provider=provider, grader=scorer, renderer=get_renderer("qwen3")) as episode,
        ):
            await episode.start()
            print_line(console, chosen.prompt)
            console.rule(f"{chosen.id}: leave with exit or Ctrl-D")
            closed: list[bool] = []
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, closed.append, True)
            try:
                await attach_terminal(episode.sandbox, "bash")
            except OSError:  # what was printed found no terminal
                closed.append(True)
            files: Mapping[str, bytes] = {}
            with contextlib.suppress(SandboxBroken):  # then no files can be saved
                files = await episode.sandbox.read_files(graded_folders(chosen), first=chosen.targets, skip=UNREAD)
            try:
                if closed:
                    raise UsageError("the terminal was closed")
                with console.status("scoring"):
                    return await episode.finish("completed")
            except BaseException:  # a machine fault, Ctrl-C or a closed terminal: the user's work must not be lost
                folder = _keep(files, chosen)
                said = f"your files are in {folder}; grade them: `rtl-agent-gym score --files`"
                with contextlib.suppress(OSError):
                    print_line(console, said, "yellow")
                raise

    score = asyncio.run(open_shell())
    print_score(console, score, RewardWeights())
    raise typer.Exit(0 if score.passed else 1)


def _keep(files: Mapping[str, bytes], problem: Problem) -> Path:
    """Save the files that count for the score in a new folder. Returns the folder."""
    folder = Path(mkdtemp(prefix="rtl-agent-gym-shell-"))
    for path, content in files.items():
        if editable(problem, path):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    return folder


def require_terminal(what: str, instead: str = "") -> None:
    """Raise `UsageError` if this process has no terminal, which `what` needs. The message ends with `instead`."""
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError(f"{what} needs a terminal{instead}")


async def attach_terminal(sandbox: Sandbox, *command: str) -> None:
    """Run `command` in the work folder of a sandbox on this terminal, until it ends or this terminal is closed."""
    sized = "sh", "-c", _SIZED, *map(str, termios.tcgetwinsize(0)), *command
    process = await sandbox.spawn(["python3", "-Ic", _IN_TERMINAL, *sized], env={"TERM": "xterm-256color"})
    before = termios.tcgetattr(0)
    typing = asyncio.create_task(_pass_on_keys(process))
    try:
        tty.setraw(0)  # Ctrl-C and the like are for the sandbox
        while data := await process.output.read(_PIECE):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        await process.wait()
    finally:
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        typing.cancel()
        await asyncio.gather(typing, return_exceptions=True)


async def _pass_on_keys(process: Process) -> None:
    """Forward typed input to a process, and kill the process when this terminal is closed."""
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        data = b""
        with contextlib.suppress(OSError):  # EIO: the terminal was closed
            data = os.read(0, _PIECE)
        if not data:
            loop.remove_reader(0)
        typed.put_nowait(data)

    loop.add_reader(0, read)
    try:
        with contextlib.suppress(BrokenPipeError, SandboxError):  # `attach_terminal` reports that the process ended
            while data := await typed.get():
                await process.write(data)
            await process.kill()
    finally:
        loop.remove_reader(0)
