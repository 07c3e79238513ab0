"""Runs programs in a root folder, with nothing else of the machine: by bubblewrap, or Apptainer where it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import SandboxError
from .userns import bubblewrap

UNCHANGED = "/mnt"
"""Where a program of `run_in` finds the root's files again, as they are; at ``/``, Apptainer adds lines to some."""
ISOLATION = (
    "--userns",  # also where Apptainer is installed with set-user-id
    "--containall",  # PID and IPC namespaces; no files, devices and variables of the machine
    "--no-home",
    "--no-mount",
    "home,cwd,tmp,sys,hostfs,bind-paths",  # whatever the machine's configuration mounts
    "--cleanenv",
    "--no-eval",
    "--no-privs",
    "--uts",
    "--net",
    "--network",
    "none",
    "--no-init",  # the warden is process 1
    "--no-umask",
    "--writable-tmpfs",  # places for the folders in memory; the warden makes the root read-only
    "--pwd",
    "/",
)
"""Options of ``apptainer exec``. ``--security`` is for root only; the warden has a filter of its own."""
_KEPT = ("HOME", "PATH", "TMPDIR", "USER")
"""The variables that Apptainer itself gets. Others, such as APPTAINER_BIND, could change what the options say."""


def apptainer() -> str:
    """The path of Apptainer's program. Raises `SandboxError` if it is not installed, or must not be used."""
    if (found := shutil.which("apptainer")) is None:
        raise SandboxError("the program apptainer is not installed")
    if os.geteuid() == 0:
        raise SandboxError(
            "below Apptainer the number of root's processes would not be limited; be another user, or use namespaces"
        )
    return found


def apptainer_exec(image: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """The beginning of a command below Apptainer, and Apptainer's own environment. Raises as `apptainer` does."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return [apptainer(), "exec", *ISOLATION, *options, str(image)], environment


def run_in(
    root: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of a root, which it cannot change, with these variables alone.

    Raises:
        SandboxError: Bubblewrap is missing, and Apptainer too.
    """
    own, variables = dict[str, str](), (environment or {}).items()
    if shutil.which("bwrap") is None and shutil.which("apptainer") is not None:
        words, own = apptainer_exec(root, "--scratch", "/tmp", "--bind", f"{root}:{UNCHANGED}:ro")
        words += ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables)]
    else:
        words = [bubblewrap(), "--unshare-all", "--die-with-parent", "--new-session"]
        words += ["--ro-bind", str(root), "/", "--ro-bind", str(root), UNCHANGED]
        words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
        words += [word for name, value in variables for word in ("--setenv", name, value)] + ["--"]
    return subprocess.run([*words, *command], env=own, capture_output=True, text=True, stdin=subprocess.DEVNULL)
