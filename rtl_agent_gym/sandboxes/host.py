"""Facts about this machine, and installing Debian packages on it."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import SandboxError

Progress = Callable[[str], None]
"""Called with one line per step of long work."""

_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"


def silent(line: str) -> None:
    """A `Progress` that prints nothing."""


def is_root() -> bool:
    """Whether this process may install packages and start daemons."""
    return os.geteuid() == 0


def is_debian_like() -> bool:
    """Whether this is Debian, Ubuntu or a derivative, with `apt-get`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return bool(names & {"debian", "ubuntu"}) and find_program("apt-get") is not None


def find_program(name: str) -> str | None:
    """The path of a program, also in the system folders that a user's PATH omits."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS)


def tail(lines: Iterable[str], count: int = 30) -> str:
    """The last lines that are not empty, indented for the end of a message."""
    return "\n".join([f"    {line.rstrip()}" for line in lines if line.strip()][-count:])


def run_program(argv: Sequence[str], *, error: type[SandboxError], timeout: float = 1800.0) -> str:
    """Run a program of the machine and return its stdout and stderr.

    Args:
        argv: The program and its arguments.
        error: Raised if it cannot be run, fails or takes longer than `timeout` seconds; the message ends with its last
            lines of output.
    """
    command = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
            timeout=timeout,
        )
    except OSError as cause:
        raise error(f"cannot run `{command}`: {cause.strerror}") from cause
    except subprocess.TimeoutExpired as cause:
        raise error(f"`{command}` did not end within {timeout:.0f} s") from cause
    if done.returncode != 0:
        raise error(f"`{command}` failed with exit code {done.returncode}:\n{tail(done.stdout.splitlines())}")
    return done.stdout


def apt_install(packages: Sequence[str], *, error: type[SandboxError], progress: Progress) -> None:
    """Install Debian packages as root. Waits up to two minutes for another apt to finish."""
    progress(f"installing {' '.join(packages)} with apt-get")
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        run_program(["apt-get", "-o", "DPkg::Lock::Timeout=120", *words], error=error)


@contextmanager
def exclusive(work: str, progress: Progress) -> Iterator[None]:
    """Let one process of this user on this machine do `work` (a word) at a time; the others wait.

    The lock ends with the process, and children do not inherit it.
    """
    path = Path(tempfile.gettempdir()) / f"rtl-agent-gym-{work}-{os.geteuid()}.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares the {work}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
