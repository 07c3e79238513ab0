"""Roots for problems whose harness builds an image of its own: a copy of the simulation image's root, changed by the
steps of a Dockerfile.

Only a Dockerfile of one stage on the simulation image, with the instructions that harnesses use, and steps without a
network. Anything else is an error that says so: such a problem needs Docker.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from ..errors import ImageError
from .daemon import exclusive, silent, tail
from .root_folder import RECORD, Root, remove_tree, roots_folder
from .userns import bubblewrap

_STEP_SECONDS = 600.0
_CONTINUED = re.compile(r"\\[ \t]*\n")
_IGNORED = ("LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "CMD", "ENTRYPOINT")
"""Instructions that change nothing of a sandbox."""


def build_root(base: Root, files: Mapping[str, bytes], dockerfile: str) -> Root:
    """The root that a Dockerfile makes of the simulation image's; built once for the same files and image.

    Args:
        base: The simulation image.
        files: The build context: contents by relative path.
        dockerfile: The path of its Dockerfile among them.

    Raises:
        ImageError: It cannot be built; the message says which instruction is the reason.
    """
    key = hashlib.sha256(repr((base.digest, dockerfile, sorted(files.items()))).encode()).hexdigest()
    place = roots_folder() / f"harness-{key[:24]}"
    with exclusive("root", silent):
        if (known := find_built(place)) is None:
            try:
                known = _build(base, files, dockerfile, place, f"sha256:{key}")
            except OSError as error:
                raise ImageError(f"{place} cannot be written: {error}") from error
    return known


def find_built(place: Path) -> Root | None:
    """The root in a folder, if it has been built."""
    try:
        found = Root.model_validate_json((place / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None
    return found.model_copy(update={"folder": place / "root"})


def _build(base: Root, files: Mapping[str, bytes], dockerfile: str, place: Path, digest: str) -> Root:
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=place.parent))
    try:
        root, environment, folder = scratch / "root", dict(base.environment), "/"
        copy = ["cp", "--archive", "--reflink=auto", str(base.folder), str(root)]
        subprocess.run(copy, check=True, capture_output=True)
        for keyword, rest in _instructions(files[dockerfile].decode(errors="replace")):
            if keyword == "FROM":
                if rest.split() != [base.id]:
                    raise ImageError(f"without Docker, a harness has one stage on the simulation image, not {rest}")
            elif keyword == "ENV":
                environment |= _variables(rest)
            elif keyword == "RUN":
                _run(root, rest, environment, folder)
            elif keyword in ("COPY", "ADD"):
                _copy(root, rest, files, folder)
            elif keyword == "WORKDIR":
                folder = posixpath.join(folder, rest)
                _run(root, f"mkdir -p -- {shlex.quote(folder)}", environment, "/")
            elif keyword not in _IGNORED:
                raise ImageError(f"without Docker, a harness cannot use {keyword}")
        made = base.model_copy(update={"digest": digest, "environment": environment})
        (scratch / RECORD).write_text(made.model_dump_json(exclude={"folder"}), encoding="utf-8")
        scratch.chmod(0o755)
        os.rename(scratch, place)
    except subprocess.CalledProcessError as error:
        raise ImageError(f"copying the root failed: {error.stderr.decode(errors='replace').strip()}") from error
    finally:
        remove_tree(scratch)
    return made.model_copy(update={"folder": place / "root"})


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile: keyword and the rest."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in _CONTINUED.sub(" ", "\n".join(lines)).splitlines():
        if line.strip():
            keyword, _, rest = line.strip().partition(" ")
            yield keyword.upper(), rest.strip()


def _variables(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if "=" not in words[0]:  # the older form, NAME VALUE
        return {words[0]: rest.partition(" ")[2].strip()}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _run(root: Path, command: str, environment: Mapping[str, str], folder: str) -> None:
    """Run a step as root of a user namespace, without a network and with nothing of this machine but the root."""
    if command.startswith(("[", "--")):
        raise ImageError(f"without Docker, a harness's step is a command of the shell, not: RUN {command}")
    words = [bubblewrap(), "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    words += ["--die-with-parent", "--new-session", "--clearenv", "--bind", str(root), "/", "--dev", "/dev"]
    words += ["--proc", "/proc", "--tmpfs", "/tmp", "--chdir", folder]
    for name, value in environment.items():
        words += ["--setenv", name, value]
    try:
        done = subprocess.run(
            [*words, "--", "/bin/sh", "-c", command], capture_output=True, timeout=_STEP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"the step took more than {_STEP_SECONDS:g} s: RUN {command}") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
        raise ImageError(f"RUN {command}: exit status {done.returncode}, without a network:\n{tail(lines)}")


def _copy(root: Path, rest: str, files: Mapping[str, bytes], folder: str) -> None:
    """Write files of the context into the root, following no link that leaves it."""
    words = shlex.split(rest)
    if len(words) < 2 or words[0].startswith(("-", "[")) or any("://" in word or "*" in word for word in words):
        raise ImageError(f"without Docker, a harness copies named files and folders, not: {rest}")
    *sources, target = words
    for source in sources:
        name = posixpath.normpath(source).lstrip("/")
        inside = {path: path[len(name) + 1 :] if name != "." else path for path in files if _below(path, name)}
        if name in files:
            last = posixpath.basename(name) if target.endswith("/") or len(sources) > 1 or target == "." else ""
            inside = {name: last}
        if not inside:
            raise ImageError(f"{source} is not found among the files of the harness")
        for path, below in inside.items():
            to = posixpath.normpath(posixpath.join(folder, target, below))
            place = root / to.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.parent.resolve().is_relative_to(root.resolve()) or place.is_symlink():
                raise ImageError(f"{to} is behind a link of the image")
            place.write_bytes(files[path])


def _below(path: str, folder: str) -> bool:
    return folder == "." or path.startswith(f"{folder}/")
