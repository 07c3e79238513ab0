"""Builds a root folder from the steps of a Dockerfile, without Docker.

`RootSteps` runs the steps of one stage. `build_root` runs those of a harness's Dockerfile in a copy of the simulation
image's root: one stage on that image, with the instructions that harnesses use, and without a network. Anything else is
an error that says so: such a problem needs Docker. `root_image` builds the simulation image itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import posixpath
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ImageError, SandboxError, UsageError
from .daemon import run_program, silent, tail
from .dockerfile import Instruction, file_mode, read_stages, split_words, variables
from .results import WORK_DIR
from .root_folder import RECORD, Root, extent_of, find_built, held, in_scratch, locked, require_unchanged, roots_folder
from .userns import UserNamespace, as_builder, bubblewrap
from .zygote import memory_file

_VERSION = 3
"""Part of the key of every built root; increased when the same steps give another root."""
_STEP_SECONDS = 600.0
_RESOLVER = "/etc/resolv.conf"
_IGNORED = ("LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "CMD", "ENTRYPOINT")
"""Instructions that have no effect on a sandbox."""
_LOGGER = logging.getLogger(__name__)


def build_root(base: Root, files: Mapping[str, bytes], dockerfile: str) -> Root:
    """Build the root of a Dockerfile from the simulation image's root (`base`), once for the same files and image.

    See `SandboxProvider.build_image` for the files, the Dockerfile and `ImageError`; its message names the instruction
    that failed.
    """
    key = hashlib.sha256(repr((_VERSION, base.digest, dockerfile, sorted(files.items()))).encode()).hexdigest()
    place = roots_folder() / f"harness-{key[:24]}"
    if (known := find_built(place)) is not None:  # even if the folder is read-only, or another build takes minutes
        return known
    try:
        with locked(silent):
            if (known := find_built(place)) is None:
                known = _build(base, files, dockerfile, place, f"sha256:{key}")
    except UsageError as error:  # roots in a read-only folder can still be used
        raise ImageError(str(error)) from error
    return known


def _build(base: Root, files: Mapping[str, bytes], dockerfile: str, place: Path, digest: str) -> Root:
    stages = read_stages(files[dockerfile].decode(errors="replace"))
    if len(stages) != 1 or stages[0].base != base.digest:
        found = ", ".join(stage.base for stage in stages) or "none"
        raise ImageError(f"without Docker, a harness needs one stage on the simulation image, not {found}")
    if any(step.keyword in ("RUN", "WORKDIR") for step in stages[0].steps):
        try:
            bubblewrap()
        except SandboxError as error:
            raise ImageError(f"without Docker, the steps of a harness need bubblewrap: {error}") from error
    require_unchanged(base)
    with in_scratch(".building-", place) as scratch:
        steps = RootSteps(scratch / "root", dict(base.environment), folder=WORK_DIR)
        run_program(["cp", "--archive", "--reflink=auto", str(base.folder), str(steps.root)], error=ImageError)
        for step in stages[0].steps:
            steps.take(step, files)
        made = base.model_copy(
            update={"digest": digest, "environment": steps.environment, "extent": extent_of(steps.root)}
        )
        (scratch / RECORD).write_text(made.model_dump_json(), encoding="utf-8")
    held(place / RECORD)
    return made.model_copy(update={"folder": place / "root"})


class RootSteps:
    """Runs the steps of a stage in a root folder.

    Args:
        root, runner: The root folder, and the runner of the steps' commands.
        environment: Variables of the steps, to which ENV adds.
        inputs: The roots of other stages, by name, in the same folder as this one.
        folder: The steps' working folder, until a WORKDIR.
    """

    def __init__(
        self,
        root: Path,
        environment: dict[str, str],
        runner: StepRunner | None = None,
        inputs: Mapping[str, Path] | None = None,
        folder: str = "/",
    ) -> None:
        self.root, self.environment = root, environment
        self._runner, self._inputs = runner or StepRunner(), inputs or {}
        self._declared: dict[str, str] = {}
        self.folder = folder

    def take(self, step: Instruction, files: Mapping[str, bytes]) -> None:
        """Run one step, with these files as the build context. Raises `ImageError`, with the end of its output."""
        try:
            self._take(step, files)
        except ValueError as error:
            raise ImageError(f"{step}: {error}") from error

    def _take(self, step: Instruction, files: Mapping[str, bytes]) -> None:
        keyword, rest, values = step.keyword, step.rest, {**self._declared, **self.environment}
        if keyword == "ENV":
            self.environment |= variables(rest, values)
        elif keyword == "ARG":
            self._declared |= variables(rest, values)
        elif keyword == "RUN":
            self._run(rest, self.folder)
        elif keyword == "COPY" and step.source in self._inputs:
            _, *sources, target = rest.split()
            for path in sources:
                self._runner.link(self._inputs[step.source], path, self.root, posixpath.join(self.folder, target))
        elif keyword in ("COPY", "ADD"):
            _copy(self.root, rest, split_words(rest, values), files, self.folder)
        elif keyword == "WORKDIR":
            self.folder = posixpath.join(self.folder, " ".join(split_words(rest, values)))
            self._run(f"mkdir -p -- {shlex.quote(self.folder)}", "/")
        elif keyword not in _IGNORED and str(step) != "USER root":
            raise ImageError(f"without Docker, a harness cannot use {keyword}")

    def _run(self, command: str, folder: str) -> None:
        if command.startswith(("[", "--")):
            raise ImageError(f"without Docker, a harness's step is a command of the shell, not: RUN {command}")
        self._runner.run(self.root, command, {**self._declared, **self.environment}, folder)


class StepRunner:
    """Runs commands as root of a user namespace, with access only to a root folder.

    `users` is the namespace for building the simulation image, with a network and all system users; None for a single
    user, no network and a time limit.
    """

    def __init__(self, users: UserNamespace | None = None) -> None:
        self.users = users
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, root: Path, command: str, environment: Mapping[str, str], folder: str) -> None:
        """Run a shell command in a root. Raises `ImageError` if it fails, with its last lines."""
        if self.users is None:
            words = [bubblewrap(), "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
            words += ["--die-with-parent", "--new-session"]
        else:
            words = as_builder(self.users, network=True)
            environment = {"HOME": "/root", **environment}
        words += ["--clearenv", "--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc"]
        if self.users is not None:  # files that the image's build leaves in /tmp would be part of its content
            words += ["--perms", "1777", "--tmpfs", "/tmp"]
            if os.path.exists(_RESOLVER):
                words += ["--ro-bind", _RESOLVER, _RESOLVER]
        variables = [word for name, value in environment.items() for word in ("--setenv", name, value)]
        if "\0" in "".join(variables):
            raise ValueError("a variable contains a NUL character")
        # Every user of this machine can read command lines, and a proxy's address may have a password.
        arguments = memory_file(b"".join(os.fsencode(word) + b"\0" for word in variables))
        try:
            words += ["--args", str(arguments), "--chdir", folder, "--", "/bin/sh", "-c", command]
            self._finish(words, f"RUN {command}", arguments)
        finally:
            os.close(arguments)

    def link(self, source_root: Path, source: str, root: Path, target: str) -> None:
        """Hard-link `source` of a finished root into another root beside it, owned by root."""
        assert self.users is not None
        script = """
            if [ -d "$1" ]; then mkdir -p "$2"; set -- "$1/." "$2"; fi
            cp --archive --link "$1" "$2"; chown -Rh 0:0 "$2"
        """
        self.on_host(root.parent, ["/bin/sh", "-ec", script, "sh", f"{source_root}{source}", f"{root}{target}"])

    def on_host(self, folder: Path, command: list[str]) -> None:
        """Run a program of this machine that can write to one folder. Raises `ImageError` as `run` does."""
        assert self.users is not None
        words = [*as_builder(self.users, network=True), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        words += ["--perms", "1777", "--tmpfs", "/tmp", "--bind", str(folder), str(folder), "--"]
        self._finish([*words, *command], shlex.join(command))

    def stop(self) -> None:
        """Kill the running commands, and those that start later."""
        self._stopped = True
        for process in list(self._running):
            process.kill()

    def _finish(self, words: list[str], what: str, *shared: int) -> None:
        last: deque[str] = deque(maxlen=200)
        shared += () if self.users is None else (self.users.descriptor,)
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        begun = time.monotonic()
        with subprocess.Popen(words, pass_fds=shared, umask=0o022, **pipes) as process:
            self._running.add(process)
            late = threading.Timer(_STEP_SECONDS, process.kill)
            try:
                if self._stopped:
                    process.kill()
                if self.users is None:
                    late.start()
                assert process.stdout is not None
                for line in process.stdout:
                    last.append(line.decode(errors="replace"))
                    _LOGGER.debug("%s", last[-1].rstrip())
                process.wait()
            finally:
                self._running.discard(process)
                process.kill()
                late.cancel()
        if self.users is None and time.monotonic() - begun >= _STEP_SECONDS:
            raise ImageError(f"the step took more than {_STEP_SECONDS:g} s: {what}")
        if process.returncode:
            alone = ", without a network" if self.users is None else ""
            raise ImageError(f"{what}: exit status {process.returncode}{alone}:\n{tail(last)}")


def _copy(root: Path, rest: str, words: Sequence[str], files: Mapping[str, bytes], folder: str) -> None:
    """Write files of the context into the root, following no link that leaves it."""
    if len(words) < 2 or words[0].startswith(("-", "[")) or any("://" in word or "*" in word for word in words):
        raise ImageError(f"without Docker, a harness copies named files and folders, not: {rest}")
    *sources, target = words
    at = posixpath.normpath(posixpath.join(folder, target))
    into = target.endswith("/") or len(sources) > 1 or target == "." or (root / at.lstrip("/")).is_dir()
    for source in sources:
        name = posixpath.normpath(source).lstrip("/")
        prefix = "" if name == "." else f"{name}/"
        inside = {path: path.removeprefix(prefix) for path in files if path.startswith(prefix)}
        if name in files:
            inside = {name: posixpath.basename(name) if into else ""}
        if not inside:
            raise ImageError(f"{source} is not found among the files of the harness")
        for path, below in inside.items():
            to = posixpath.normpath(posixpath.join(at, below))
            place = root / to.lstrip("/")
            if not Path(os.path.realpath(place.parent)).is_relative_to(root.resolve()) or place.is_symlink():
                raise ImageError(f"{to} is behind a link of the image")
            _make_folders(place.parent)
            place.write_bytes(files[path])
            place.chmod(file_mode(files[path]))


def _make_folders(folder: Path) -> None:
    """Make missing folders with the mode that a build gives them, whatever the umask."""
    if not folder.is_dir():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
