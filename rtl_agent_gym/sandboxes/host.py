"""What this machine is, and Debian's packages on it."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rtl_agent_gym.errors import SandboxError

Progress = Callable[[str], None]
"""Told, in one line each, what is being done."""

_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def silent(line: str) -> None:
    """A `Progress` that says nothing."""


def is_root() -> bool:
    """Whether this process may install packages and start daemons."""
    return os.geteuid() == 0


def is_debian_like() -> bool:
    """Whether this is Debian, Ubuntu or a relative of theirs, with `apt-get`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return bool(names & {"debian", "ubuntu"}) and find_program("apt-get") is not None


def find_program(name: str) -> str | None:
    """The path of a program, also of one in the system folders that a user's PATH leaves out."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_SYSTEM_FOLDERS))


def tail(lines: Iterable[str], count: int = 30) -> str:
    """The last lines that are not empty, indented to stand below a message."""
    return "\n".join(f"    {line}" for line in deque((text.rstrip() for text in lines if text.strip()), maxlen=count))


def run_program(argv: Sequence[str], *, error: type[SandboxError], timeout: float = 1800.0) -> str:
    """Run a program of the machine and return its output, stdout and stderr together.

    Args:
        argv: The program and its arguments.
        error: What to raise when it cannot be run, fails or takes too long; the message ends with its last lines.
        timeout: Seconds it may take.
    """
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    command = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            timeout=timeout,
        )
    except OSError as cause:
        raise error(f"cannot run `{command}`: {cause.strerror}") from cause
    except subprocess.TimeoutExpired as cause:
        raise error(f"`{command}` did not end within {timeout:.0f} s") from cause
    if done.returncode != 0:
        raise error(f"`{command}` failed with exit code {done.returncode}:\n{tail(done.stdout.splitlines())}")
    return done.stdout


def apt_install(packages: Sequence[str], *, error: type[SandboxError], progress: Progress = silent) -> None:
    """Install Debian packages as root. Waits up to two minutes for another apt to finish."""
    progress(f"installing {' '.join(packages)} with apt-get")
    wait = "DPkg::Lock::Timeout=120"
    run_program(["apt-get", "-o", wait, "update"], error=error)
    run_program(["apt-get", "-o", wait, "install", "-y", "--no-install-recommends", *packages], error=error)


@contextmanager
def exclusive(work: str, progress: Progress = silent) -> Iterator[None]:
    """Let one process of this user on this machine do `work` (a word) at a time; the others wait.

    The lock goes with the process, however it ends, and is not handed on to children.
    """
    path = Path(tempfile.gettempdir()) / f"rtl-agent-gym-{work}-{os.geteuid()}.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another process is at the {work}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
