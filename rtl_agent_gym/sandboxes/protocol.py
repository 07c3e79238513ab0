"""The interface of sandboxes: everything that the rest of the package uses of them.

A `Sandbox` is one isolated machine with one persistent shell; a `SandboxProvider` starts sandboxes and builds images.
`container.py` implements both with Docker, `namespaces.py` without a daemon. Implementations inherit the methods that
have a body here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from .channel import Process
from .results import WORK_DIR, CommandResult, FoundFiles, ReadRequest

OutputSink = Callable[[bytes], None]
"""Called with raw output as it arrives, for live display. Output that the observation omits is not passed."""


@dataclass(frozen=True)
class SandboxSpec:
    """The image, limits and files of a sandbox. Sizes are in bytes."""

    image: str | None = None
    """Image name or id; None for the package's own simulation image."""
    role: Literal["agent", "scoring"] = "agent"
    """``agent``: everything runs as one unprivileged user. ``scoring``: there is a second user, the keeper;
    processes of the first user can neither change the keeper's files nor signal its processes."""
    memory: int = 2 << 30
    """Maximum memory of all processes and the work folder together."""
    cpus: float = 2.0
    """Maximum number of processors in use, on average."""
    pids: int = 512
    """Maximum number of processes and threads."""
    file_size: int = 256 << 20
    """Maximum size of a single file."""
    disk: int = 512 << 20
    """Size of the work folder, which lives in memory and counts against `memory`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Extra environment variables of the shell and of processes."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files that exist from the start, by absolute path; in the scoring role, they belong to the keeper."""
    keeper_folders: tuple[str, ...] = ("/src", f"{WORK_DIR}/src")
    """Folders that only the keeper can write to (scoring role)."""
    standby: tuple[str, ...] = ()
    """The command of a process started with the sandbox, in the folder /; see `Sandbox.standby`."""
    for_grading: bool = False
    """Whether one in the agent's role uses the budget of gradings, since an agent may be waiting for it."""
    network: str = ""
    """An existing Docker network to join; empty for no network."""
    programs: str = ""
    """The id of an agent's programs, mounted read-only (`programs.programs_id`); empty for none."""
    kind: str = field(default="auto", compare=False, repr=False)
    """The kind of sandbox, as in the option `sandbox`. Environments choose a provider by it; providers ignore it."""

    @property
    def room(self) -> Literal["agent", "scoring"]:
        """Whether it uses the budget of agents or that of gradings."""
        return "scoring" if self.for_grading else self.role


class Sandbox(Protocol):
    """One isolated machine. Calls of `run` must not overlap; processes may run at any time.

    Every method raises `SandboxLost` if the machine is gone, or `SandboxBroken` if the sandbox's own commands ended it.
    """

    @property
    def id(self) -> str:
        """The container's id, for messages and transcripts."""
        ...

    async def run(
        self,
        command: str,
        *,
        timeout: float = 30.0,
        max_output: int = 16_000,
        on_output: OutputSink | None = None,
        then_read: ReadRequest | None = None,
    ) -> CommandResult:
        """Run a command in the persistent shell.

        Args:
            command: Any bash text, of any length, several lines and here-documents included.
            timeout: Seconds until the command's processes are killed. The call returns at most one second later.
            max_output: Characters of output to keep.
            on_output: Called with output while the command runs. If it raises, `run` raises the same at the end.
            then_read: Files to read right after the command, in the same round trip; see `CommandResult.files`.
        """
        ...

    async def spawn(self, argv: Sequence[str], *, cwd: str = WORK_DIR, env: Mapping[str, str] | None = None) -> Process:
        """Start a process beside the shell.

        Args:
            argv: The program, looked up in PATH, and its arguments.
            cwd: Its working folder; / if that folder is missing.
            env: Variables added to the sandbox's environment.
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
        stdin: bytes = b"",
    ) -> CommandResult:
        """Run a process to its end: `spawn`, then `Process.communicate`."""
        process = await self.spawn(argv, cwd=cwd, env=env)
        return await process.communicate(stdin, timeout=timeout, max_output=max_output)

    @property
    def standby(self) -> Process | None:
        """The process of `SandboxSpec.standby`, running since the sandbox started; None if the spec names none."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no command, and no process that was started through this object, is running."""
        ...

    async def write_files(
        self,
        files: Mapping[str, str | bytes],
        *,
        root: str = WORK_DIR,
        keeper: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        """Write files below `root`, creating folders as needed. Existing files are replaced; links are never followed.

        Args:
            files: Relative path to content (str is written as UTF-8).
            root: An absolute folder in the sandbox.
            keeper: Write as the keeper, so that the sandbox's processes can read but not change them (scoring role).
            folders: Relative paths of folders to create if they are missing; they may stay empty.
        """
        ...

    async def read_files(
        self,
        paths: Sequence[str],
        *,
        first: Sequence[str] = (),
        max_file: int = 16 << 20,
        max_total: int = 64 << 20,
        skip: Sequence[str] = (),
    ) -> FoundFiles:
        """Regular files at or below `paths`, all relative to the work folder; at most 5,000 files and folders.

        Links, devices, sockets and pipes are omitted, as is everything below a linked folder. The result names files
        that a limit excludes.

        Args:
            paths: Files and folders, which need not exist.
            first: Files that are read before all others, in this order; the others follow by size.
            max_file: Maximum size of a file in bytes.
            max_total: Maximum size of all files together in bytes.
            skip: Files and folders that are not read.
        """
        ...

    async def oom_kills(self) -> int | None:
        """The number of processes that the kernel has ended so far for lack of memory; None if unknown.

        The limit that was reached may be the sandbox's own or one above it.
        """
        return None

    async def lacked_memory(self) -> bool:
        """Whether the kernel ended a process for lack of memory although the sandbox never used half of its own limit.

        Then the limit that was reached is one above the sandbox's own. False if unknown.
        """
        return False

    async def ping(self) -> None:
        """Return when the sandbox answers. Raises `SandboxLost` if it is gone or its standby process has ended."""
        ...

    async def close(self) -> None:
        """End the sandbox and everything in it. Idempotent; never raises for a sandbox that is already gone."""
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes. An async context manager; leaving it closes every sandbox it started."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox when the budget has room. Raises `SandboxError`, such as `ImageError`, if that fails."""
        ...

    async def create_ahead(self, spec: SandboxSpec) -> Sandbox:
        """Like `create` for a sandbox that is not needed yet. Raises `SandboxError` if the budget has no room now."""
        return await self.create(spec)

    def handed_out(self, sandbox: Sandbox) -> None:
        """Count an agent's sandbox from `create_ahead` as in use from now on, if the agents' budget has room."""
        return None

    def grading(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait until a submission may be graded, and count it as being graded within the context.

        A provider without a limit on gradings returns a context that does nothing.
        """
        return contextlib.nullcontext()

    async def prepare(self, spec: SandboxSpec) -> None:
        """If the provider keeps sandboxes ready, start some of this spec; return when they are ready.

        Raises:
            SandboxError: None can be started.
        """
        return None

    async def image(self) -> str:
        """The id of the image of specs that name none. Raises `ImageError` if it has not been built."""
        ...

    async def image_digest(self) -> str:
        """An identifier of that image's content, the same on every machine. Raises `ImageError` as `image` does."""
        return await self.image()

    async def missing_limits(self) -> tuple[str, ...]:
        """The limits of its sandboxes that the machine cannot enforce, by name. Raises `SandboxError`."""
        return ()

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        """Build an image from a folder of files, once for the same files on this daemon; return its id.

        Args:
            files: The build context: contents by relative path.
            dockerfile: The path of the Dockerfile in `files`.

        Raises:
            ImageError: It cannot be built; the message ends with the last lines of the build.
        """
        ...

    async def close(self) -> None:
        """Close every sandbox this provider started. Idempotent."""
        ...
