"""What the rest of the package may ask of a sandbox.

A `Sandbox` is one isolated machine with one persistent shell. `SandboxProvider` makes them. The Docker implementation
is in `docker.py`; anything that keeps these two promises can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

WORK_DIR = "/code"
"""The work folder of a problem inside every sandbox; paths of problems are relative to it."""

MAX_COUNT = 5000
"""Files, and folders on the way to them, that one reading returns."""

OutputSink = Callable[[bytes], None]
"""Called with raw output as it comes, for live display. Only what the observation will keep is passed on."""


@dataclass(frozen=True)
class CommandResult:
    """What one command of the persistent shell, or one process beside it, did."""

    output: str
    """stdout and stderr in the order they were written; decoded as UTF-8 with U+FFFD for what is not; cut to the limit
    with head and tail kept and a line between them that says from how much to how much."""
    exit_code: int | None
    """The exit status (128 + n after signal n); None when the time ran out."""
    timed_out: bool = False
    """Whether the time ran out and the command's processes were ended."""
    truncated: bool = False
    """Whether `output` was cut."""
    output_chars: int = 0
    """Characters that were written before the cut."""
    seconds: float = 0.0
    """Wall time."""
    restarted: str | None = None
    """Why the shell had to be replaced by a new one, or None. Files last; variables, functions and jobs do not."""
    cwd: str = WORK_DIR
    """The shell's working folder after the command (for a process: where it ran)."""


class FoundFiles(dict[str, bytes]):
    """Files of a sandbox: contents by path.

    Args:
        files: The files.
        left_out: Some of those that were not read for a limit, each with the reason.
        left_out_count: How many were not read.
    """

    def __init__(
        self, files: Mapping[str, bytes], left_out: Sequence[tuple[str, str]] = (), left_out_count: int = 0
    ) -> None:
        super().__init__(files)
        self.left_out = tuple(left_out)
        self.left_out_count = left_out_count

    def left_out_lines(self, most: int = 20) -> list[str]:
        """What was not read, as ``path: reason`` in printable characters; a last line gives the number of the rest."""
        lines = [f"{path if path.isprintable() else ascii(path)}: {reason}" for path, reason in self.left_out[:most]]
        more = self.left_out_count - len(lines)
        return [*lines, f"and {more} more"] if more > 0 else lines


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made of. Sizes are bytes unless named otherwise."""

    image: str | None = None
    """Image name or id; None for the package's own simulation image."""
    role: Literal["agent", "scoring"] = "agent"
    """``agent``: everything runs as one unprivileged user. ``scoring``: files can also be put in by a second user, the
    keeper, whom the processes run by `Sandbox.exec` can neither signal nor write to."""
    memory: int = 2 << 30
    """Of all processes and the work folder together."""
    cpus: float = 2.0
    """Processors that may be used at once, on average."""
    pids: int = 512
    """Processes and threads at the same time."""
    file_size: int = 256 << 20
    """Largest single file."""
    disk: int = 512 << 20
    """Size of the work folder, which lives in memory and counts against `memory`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Extra environment variables of the shell and of processes."""
    standby: tuple[str, ...] = ()
    """A process that is started with the sandbox, in the folder /, and waits for its stdin: an `exec` of the same words
    there finds it running, once."""


class Sandbox(Protocol):
    """One isolated machine. Not safe for two concurrent `run` calls; `exec` may run beside anything.

    Every method raises `SandboxLost` when the machine is gone, or `SandboxBroken` where the commands that were run in
    it have ended it, and nothing else on its account.
    """

    @property
    def id(self) -> str:
        """The container's id, for messages and transcripts."""
        ...

    async def run(
        self, command: str, *, timeout: float = 30.0, max_output: int = 16_000, on_output: OutputSink | None = None
    ) -> CommandResult:
        """Run a command in the persistent shell.

        Args:
            command: Any bash text, of any length, several lines and here-documents included.
            timeout: Seconds until the command's processes are killed. The call returns at most one second later.
            max_output: Characters to keep of the output.
            on_output: Told of output while the command runs.
        """
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = WORK_DIR,
        env: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        max_output: int = 1_000_000,
        stdin: bytes | None = None,
    ) -> CommandResult:
        """Run a process beside the shell and wait for it. On time-out it and its children are killed.

        `env` is added to the sandbox's own environment; `stdin` is all that the process can read there, None nothing.
        """
        ...

    async def write_files(
        self, files: Mapping[str, str | bytes], *, root: str = WORK_DIR, keeper: bool = False, mode: int = 0o644
    ) -> None:
        """Write files below `root`, making folders as needed. Existing files are replaced, links never followed.

        Args:
            files: Relative path to content (str is written as UTF-8).
            root: An absolute folder in the sandbox.
            keeper: Write as the keeper, so that the sandbox's processes can read but not change them (scoring role).
            mode: Permission bits.
        """
        ...

    async def read_files(
        self,
        paths: Sequence[str],
        *,
        root: str = WORK_DIR,
        first: Sequence[str] = (),
        max_file: int = 16 << 20,
        max_total: int = 64 << 20,
        max_count: int = MAX_COUNT,
    ) -> FoundFiles:
        """Regular files at or below `paths`, by their path relative to `root`.

        Links, devices, sockets and pipes are left out, and so is everything behind a linked folder; what is missing is
        missing. What is left out for a limit is named in the result.

        Args:
            paths: Files and folders.
            root: An absolute folder in the sandbox.
            first: Files that are read before all others, in this order; the others follow by size.
            max_file: Bytes of a file.
            max_total: Bytes in all.
            max_count: Files, and folders on the way to them.
        """
        ...

    async def ping(self) -> None:
        """Return when the sandbox answers. Raises `SandboxLost` when it is gone."""
        ...

    async def close(self) -> None:
        """End the sandbox and everything in it. Idempotent; never raises for a sandbox that is already gone."""
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes. An async context manager; leaving it closes every sandbox it made."""

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox. Raises `DaemonError` or `ImageError` when none can be had."""
        ...

    async def close(self) -> None:
        """Close everything this provider made."""
        ...
