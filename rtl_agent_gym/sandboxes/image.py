"""The simulation image: its name, the digest of its content, and how it is copied to other machines.

The tag is a digest of the build context (`image_context/`): changing any file there gives another tag and image.

Unlike the image's id, the digest of the content is the same for builds on other days and hosts. It is part of the key
of every cached grading, and all machines of a cluster must have the same one. A program in a container of the image
computes it, so that a daemon on another machine sends only the result, which is cached by image id. An image is copied
through a file or a registry; the receiver computes the digest again, and refuses an image with another one.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import hashlib
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import docker
import requests
from docker.errors import APIError, DockerException, ImageLoadError, ImageNotFound, NotFound
from docker.utils.socket import frames_iter
from pydantic import BaseModel, ValidationError

from ..errors import ImageError, SandboxError, UsageError, cannot_write
from ..files import cache_folder, replace_file
from . import image_program
from .client import CPU_SHARES, PROCESSES
from .daemon import attach, connect, docker_errors, is_podman, tail

REPOSITORY = "rtl-agent-gym/sim"
"""The image's name; its tag is a digest of the build context."""
CONTEXT = Path(__file__).parent / "image_context"
CONTENT_LABEL = "io.rtl-agent-gym.content"
"""The label with the digest that the build recorded."""
RECORDED = Path(__file__).with_name("image_recorded.txt")
"""The digest of the image with the recorded versions, on amd64."""
LOCK = CONTEXT / "packages.lock"
"""The recorded versions of Debian's packages: one line ``NAME VERSION`` each."""
_NAMED = 3
"""Number of packages that a remark names."""


def context_files() -> dict[str, bytes]:
    """The files of the build context by relative path, without empty folders and Python's caches."""
    paths = (path for path in CONTEXT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(CONTEXT).as_posix(): path.read_bytes() for path in sorted(paths)}


def image_tag() -> str:
    """The image's name for the build context as it is now, such as ``rtl-agent-gym/sim:3f9c0e21ab44``."""
    return tag_of(REPOSITORY, context_files())


def tag_of(repository: str, files: Mapping[str, bytes]) -> str:
    """The name of an image that is built from these files, in this order."""
    digest = hashlib.sha256()
    for path, content in files.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return f"{repository}:{digest.hexdigest()[:12]}"


def find_image(client: docker.DockerClient) -> str:
    """The id of the simulation image. Raises `ImageError` if it has not been built."""
    if (found := image_id(client, tag := image_tag())) is None:
        raise ImageError(f"the simulation image {tag} is not there; build it with: rtl-agent-gym image build")
    return found


def image_id(client: docker.DockerClient, name: str) -> str | None:
    """The id of an image that the daemon has, or None."""
    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        return None


def inspect() -> dict[str, Any]:
    """A description of the simulation image.

    Returns:
        Its `tag`, the `digest` of its content, a `remark` on whether this is the recorded one, and, from the daemon,
        its `id`, `created` (ISO 8601) and `size` in bytes.

    Raises:
        ImageError: It has not been built, or was changed afterwards.
    """
    with connected() as client:
        found = client.api.inspect_image(find_image(client))
        content = checked_content(client, found["Id"])
    record = {"id": found["Id"], "created": found["Created"], "size": found["Size"]}
    return {"tag": image_tag(), "digest": content.digest, "remark": content.remark, **record}


@contextmanager
def connected(host: str | None = None) -> Iterator[docker.DockerClient]:
    """A client of the daemon at `host`, as for `connect`; Docker's exceptions become this package's."""
    with docker_errors(), closing(connect(host)) as client:
        yield client


class Content(BaseModel):
    """The content of an image."""

    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    packages: dict[str, str]
    """Versions of its Debian packages by name."""

    @classmethod
    def printed(cls, output: str) -> Content | None:
        """The content that `content_program` has printed; None for any other output."""
        digest, *lines = output.splitlines() or [""]
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            return None
        return cls(digest=digest, packages=dict(line.split(" ", 1) for line in lines))

    @property
    def differing(self) -> list[str]:
        """The packages with versions other than the recorded ones, each as ``NAME VERSION (recorded: VERSION)``."""
        recorded = dict(re.findall(r"(?m)^([^#\s]\S*) (\S+)$", LOCK.read_text(encoding="utf-8")))
        return [
            f"{name} {version} (recorded: {recorded.get(name, 'none')})"
            for name, version in sorted(self.packages.items())
            if recorded.get(name) != version
        ]

    @property
    def remark(self) -> str:
        """One line: whether this is the recorded content; if not, why, and what to do."""
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
    """The content of an image, read in a container of it (seconds), once per image and user.

    `image` is its id, not a name, since a name may be moved to another image.

    Raises:
        ImageError: It has no Python that can read it.
    """
    with contextlib.suppress(OSError, ValidationError):
        return Content.model_validate_json(_known(image).read_bytes())
    content = _read(client, image)
    remember(image, content)
    return content


def remember(image: str, content: Content) -> None:
    """Cache the content of an image, by its id. If the cache cannot be written, the content is read again later."""
    known = _known(image)
    with contextlib.suppress(OSError):
        known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(known, content.model_dump_json())


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
def content_program() -> str:
    """The program that runs in an image and reads its content."""
    return Path(image_program.__file__).read_text(encoding="utf-8")


def _known(image: str) -> Path:
    """The cache file for an image's content, for this version of the program that reads it."""
    return (
        cache_folder("images")
        / hashlib.sha256(content_program().encode()).hexdigest()[:12]
        / f"{image.removeprefix('sha256:')}.json"
    )


def _read(client: docker.DockerClient, image: str) -> Content:
    try:
        output = run_once(client, image, ["/usr/bin/python3", "-ISBc", content_program()], user="0:0")
    except APIError as error:
        if error.status_code != 400:  # Docker's answer if the image has no such program
            raise
        output = str(error.explanation or error)
    if (content := Content.printed(output)) is None:
        raise ImageError(f"the content of image {image[:19]} cannot be read:\n{tail(output.splitlines())}")
    return content


def run_once(client: docker.DockerClient, image: str, command: list[str], *, user: str = "1000") -> str:
    """Run a command in a new container, which Docker removes when the command ends. Returns its output."""
    limits = {"nofile": 4096} | ({"nproc": PROCESSES} if is_podman(client.api) else {})
    container = client.containers.create(
        image,
        command,
        entrypoint=[],
        user=user,
        auto_remove=True,
        init=False,  # otherwise the daemon's default may make another program process 1
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "size=64m"},
        cap_drop=["ALL"],
        cap_add=["DAC_READ_SEARCH"] if user.startswith("0") else None,
        mem_limit="1g",
        pids_limit=256,
        cpu_shares=CPU_SHARES["scoring"],  # otherwise it takes minutes on a machine full of gradings
        ulimits=[docker.types.Ulimit(name=name, soft=limit, hard=limit) for name, limit in limits.items()],
    )
    # Before the start, since the container and its log are removed as soon as it ends.
    with attach(client, str(container.id)) as stream:
        container.start()
        return b"".join(data for _, data in frames_iter(stream, tty=False)).decode(errors="replace")


def save_image(path: Path) -> str:
    """Write the simulation image to a file, compressed with gzip. Returns the digest of its content.

    Raises:
        ImageError: It has not been built, or was changed afterwards.
        UsageError: The file cannot be written.
    """
    with connected() as client:
        digest = checked_content(client, find_image(client)).digest
        with new_file(path) as packed, gzip.open(packed, "wb", compresslevel=1) as file:
            file.writelines(client.api.get_image(image_tag()))
    return digest


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path in a temporary folder, whose file replaces `path` at the end of the context if there is no error.

    If `path` is a link, the file that it points to is replaced.

    Raises:
        UsageError: `path` cannot be written, or is not a regular file.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot write the image: {path} is not a regular file; choose another path")
        path = Path(os.path.realpath(path))
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            yield (scratch := Path(folder, "new"))
            scratch.replace(path)
    except requests.RequestException:  # also an OSError, but the daemon's
        raise
    except OSError as error:
        raise cannot_write("the image", path, error) from error


def load_image(path: Path, digest: str | None = None) -> str:
    """Read the simulation image from a file that `save_image` or ``docker save`` wrote.

    Args:
        path: The file.
        digest: The required digest of its content, as `save_image` returned it; None for what its build recorded. It
            detects another build or a change, but not a malicious image, whose own Python computes the digest.

    Returns:
        The digest of its content.

    Raises:
        UsageError: The file cannot be read.
        ImageError: It contains another image than this version needs, or one that was changed.
    """
    with connected() as client, tempfile.TemporaryFile() as unpacked:
        try:
            with path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                shutil.copyfileobj(gzip.GzipFile(fileobj=file) if packed else file, cast(BinaryIO, unpacked), 1 << 20)
        except (OSError, EOFError, zlib.error) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                where = tempfile.gettempdir()
                raise SandboxError(f"no space to unpack {path} in {where}; set TMPDIR to another folder") from error
            raise UsageError(f"cannot read the image in {path}: {error}") from error
        unpacked.seek(0)
        before = image_id(client, image_tag())
        try:
            names = [tag for image in client.images.load(unpacked) for tag in image.tags]
        except (ImageLoadError, APIError) as error:
            raise ImageError(f"{path} contains no image: {error}") from error
        require_own(names, path)
        return _accept(client, find_image(client), before, digest, str(path))


def require_own(names: Collection[str], source: Path) -> str:
    """The name of this version's image among those in a file. Raises `ImageError` if it is not there."""
    for name in names:
        if name.removeprefix("localhost/") == image_tag():  # Podman's prefix for names without a registry
            return name
    found = ", ".join(names) or "an image without a name"
    raise ImageError(f"{source} contains {found}; this version needs {image_tag()}")


def push_image(repository: str) -> tuple[str, str]:
    """Push the simulation image to a repository of a registry, such as ``registry.example:5000/rtl``.

    It gets two tags there: one for its build context, which a later push may move to another build, and one that ends
    with the digest of its content.

    Returns:
        The reference with the first tag, and the digest of the image's content.

    Raises:
        ImageError: It has not been built, was changed afterwards, or the registry refuses it.
    """
    repository, tag = _reference(repository)
    with connected() as client:
        image = find_image(client)
        digest = checked_content(client, image).digest
        for name in (_exact(tag, digest), tag):
            client.api.tag(image, repository, name)
            try:
                for event in client.api.push(repository, tag=name, stream=True, decode=True):
                    if "error" in event:
                        raise ImageError(f"cannot push {repository}:{name}: {event['error']}")
            finally:
                client.api.remove_image(f"{repository}:{name}", noprune=True)  # only the name
    return f"{repository}:{tag}", digest


def pull_image(repository: str, digest: str | None = None) -> str:
    """Pull the simulation image that this version needs from the repository that `push_image` pushed it to.

    Args:
        repository: The repository of a registry.
        digest: The required digest of its content, as `push_image` returned it; None for the build that was pushed
            last. As for `load_image`, it does not protect from a malicious image.

    Returns:
        The digest of its content.

    Raises:
        ImageError: The registry does not have it, or has one that was changed.
    """
    repository, tag = _reference(repository)
    name = _exact(tag, digest) if digest else tag
    with connected() as client:
        try:
            client.images.pull(repository, tag=name)
        except (ImageNotFound, NotFound) as error:
            raise ImageError(f"{repository} has no image {name}: {error.explanation or error}") from error
        before, pulled = image_id(client, image_tag()), str(client.images.get(f"{repository}:{name}").id)
        client.api.tag(pulled, *_own_name())
        client.api.remove_image(f"{repository}:{name}", noprune=True)  # only the name
        return _accept(client, pulled, before, digest, f"{repository}:{name}")


def _accept(client: Any, image: str, before: str | None, digest: str | None, source: str) -> str:
    """Accept an image that has just received the simulation image's name, and remove the previous one; or refuse it.

    Returns the digest of its content. A refused image is removed. On any error, the previous image gets the name back;
    if there was none, no image has it.
    """
    try:
        found = checked_content(client, image).digest
        if digest not in (None, found):
            raise ImageError(f"its content is {found}, not {digest}")
    except BaseException as error:  # also Ctrl-C, or a daemon that no longer answers
        with contextlib.suppress(DockerException, OSError):  # requests' exceptions are OSErrors
            if before:
                client.api.tag(before, *_own_name())
            else:  # only the name, even if a container uses the image
                client.api.remove_image(image_tag(), force=True, noprune=True)
        if not isinstance(error, ImageError):
            raise
        if before != image:
            _remove(client, image)
        raise ImageError(f"the image from {source} is refused: {error}") from error
    if before and before != image:
        _remove(client, before)
    return found


def _remove(client: Any, image: str) -> None:
    try:
        client.api.remove_image(image, force=True)
    except APIError as error:
        if error.status_code not in {404, 409}:  # gone already, or in use
            raise


def _own_name() -> tuple[str, str]:
    repository, _, tag = image_tag().partition(":")
    return repository, tag


def _exact(tag: str, digest: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise UsageError(f"{digest}: a digest is sha256: and 64 hexadecimal digits, as `image show` prints it")
    return f"{tag}-{digest.removeprefix('sha256:')[:32]}"


def _reference(repository: str) -> tuple[str, str]:
    name = repository.rpartition("/")[2]
    if ":" in name or "@" in name:
        raise UsageError(f"{repository}: give a repository without a tag; the tag is {image_tag().split(':')[1]}")
    return repository, _own_name()[1]
