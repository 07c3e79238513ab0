"""The digest of an image's content: the same for builds on other days and hosts, unlike the image's id.

A program in a container of the image computes it, so a daemon on another machine sends nothing but the result. An
image's id is a digest of everything that the daemon has of it, so the result is remembered for each id.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
from pathlib import Path

import docker
from docker.utils.socket import frames_iter
from pydantic import BaseModel, ValidationError

from ..errors import ImageError
from . import image_program
from .client import CPU_SHARES
from .daemon import attach
from .host import tail
from .podman import PROCESSES, is_podman

CONTENT_LABEL = "io.rtl-agent-gym.content"
"""The label with the digest that the build recorded."""
RECORDED = Path(__file__).with_name("image_recorded.txt")
"""The digest of the image with the recorded versions, on amd64."""
LOCK = Path(__file__).parent / "image_context" / "packages.lock"
"""The recorded versions of Debian's packages: a line ``NAME VERSION`` each."""
_NAMED = 3
"""Packages that a remark names."""


class Content(BaseModel):
    """What an image holds."""

    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    packages: dict[str, str]
    """Versions of its Debian packages by name."""

    @property
    def differing(self) -> list[str]:
        """The packages whose versions are not the recorded ones, each as ``NAME VERSION (recorded: VERSION)``."""
        recorded = dict(re.findall(r"(?m)^([^#\s]\S*) (\S+)$", LOCK.read_text(encoding="utf-8")))
        return [
            f"{name} {version} (recorded: {recorded.get(name, 'none')})"
            for name, version in sorted(self.packages.items())
            if recorded.get(name) != version
        ]

    @property
    def remark(self) -> str:
        """One line: whether this is the recorded content, and if not, why and what follows."""
        if self.digest == RECORDED.read_text(encoding="utf-8").strip():
            return f"content {self.digest}: the recorded one"
        names = self.differing
        why = "the packages are the recorded ones, so the rest was built differently (another architecture or builder)"
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            why = f"its Debian packages differ: {', '.join(names[:_NAMED])}{more}"
        return (
            f"content {self.digest} is not the recorded one: {why}. It grades, and its gradings are cached under this "
            f"digest; to share them between machines, give all the same image (image save/load or push/pull)"
        )


def content_of(client: docker.DockerClient, image: str) -> Content:
    """The content of an image; read in a container of it (seconds), once per image and user.

    Args:
        client: Of the daemon that has the image.
        image: Its id, not a name, since a name may get another image.

    Raises:
        ImageError: It has no Python that could read it.
    """
    with contextlib.suppress(OSError, ValidationError):
        return Content.model_validate_json(_known(image).read_bytes())
    content = _read(client, image)
    remember(image, content)
    return content


def remember(image: str, content: Content) -> None:
    """Note the content of an image, by its id. A folder that cannot be written only costs the time of a reading."""
    known = _known(image)
    with contextlib.suppress(OSError):
        known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=known.parent, prefix=".")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content.model_dump_json())
        os.replace(name, known)


def checked_content(client: docker.DockerClient, image: str) -> Content:
    """The content of a simulation image, compared with what its build recorded.

    Raises:
        ImageError: It was changed after its build.
    """
    content = content_of(client, image)
    recorded = (client.api.inspect_image(image)["Config"].get("Labels") or {}).get(CONTENT_LABEL)
    if recorded not in (None, content.digest):
        raise ImageError(
            f"the image {image[:19]} was changed after it was built: its content is {content.digest}, and its build "
            f"recorded {recorded}. Build it again: rtl-agent-gym image build --no-cache"
        )
    return content


@functools.cache
def _program() -> str:
    return Path(image_program.__file__).read_text(encoding="utf-8")


def _known(image: str) -> Path:
    """Where the content of an image is noted, for this version of the program that reads it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / "images"
    return folder / hashlib.sha256(_program().encode()).hexdigest()[:12] / f"{image.removeprefix('sha256:')}.json"


def _read(client: docker.DockerClient, image: str) -> Content:
    output = run_once(client, image, ["/usr/bin/python3", "-ISBc", _program()], user="0:0")
    digest, *lines = output.splitlines() or [""]
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise ImageError(f"the content of image {image[:19]} cannot be read:\n{tail(output.splitlines())}")
    return Content(digest=digest, packages=dict(line.split(" ", 1) for line in lines))


def run_once(client: docker.DockerClient, image: str, command: list[str], *, user: str = "1000") -> str:
    """Run a command in a container of its own, which Docker removes when the command ends. Returns its output."""
    limits = {"nofile": 4096} | ({"nproc": PROCESSES} if is_podman(client.api) else {})
    container = client.containers.create(
        image,
        command,
        entrypoint=[],
        user=user,
        auto_remove=True,
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "size=64m"},
        cap_drop=["ALL"],
        cap_add=["DAC_READ_SEARCH"] if user.startswith("0") else None,
        mem_limit="1g",
        pids_limit=256,
        cpu_shares=CPU_SHARES["scoring"],  # or a machine full of gradings would take minutes for it
        ulimits=[docker.types.Ulimit(name=name, soft=limit, hard=limit) for name, limit in limits.items()],
    )
    # Before the start, since the container and its log are removed as soon as it ends.
    with attach(client, str(container.id)) as stream:
        container.start()
        return b"".join(data for _, data in frames_iter(stream, tty=False)).decode(errors="replace")
