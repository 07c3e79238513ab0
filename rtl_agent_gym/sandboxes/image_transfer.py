"""Moves the simulation image between machines, so that all of them grade with the same one.

The digest of its content says whether it is the same: it is part of the key of every cached grading, and the machines
of a cluster must share it. Builds with the same packages have the same digest; otherwise a file or a registry carries
it. Whoever receives an image computes the digest again, and does not keep an image that has another one.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from docker.errors import APIError, ImageLoadError, ImageNotFound, NotFound

from ..errors import ImageError, SandboxError, UsageError, cannot_write
from .image import connected, find_image, image_tag
from .image_digest import checked_content


def save_image(path: Path) -> str:
    """Write the simulation image to a file, compressed with gzip. Returns the digest of its content.

    Raises:
        ImageError: It has not been built, or was changed afterwards.
        UsageError: The file cannot be written.
    """
    with connected() as client:
        digest = checked_content(client, find_image(client)).digest
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise cannot_write("the image", path, error) from error
        try:
            with os.fdopen(handle, "wb") as file, gzip.open(file, "wb", compresslevel=1) as packed:
                for piece in client.api.get_image(image_tag()):
                    packed.write(piece)
            os.replace(name, path)
        except OSError as error:
            raise cannot_write("the image", path, error) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)
    return digest


def load_image(path: Path, digest: str | None = None) -> str:
    """Read the simulation image from a file that `save_image` or ``docker save`` wrote.

    Args:
        path: The file.
        digest: Of the content that it must have, as `save_image` returned it; None for what its build recorded.

    Returns:
        The digest of its content.

    Raises:
        UsageError: The file cannot be read.
        ImageError: It holds another image than the one that this version needs, or one that was changed.
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
                raise SandboxError(f"no room to unpack {path} in {where}: set TMPDIR to another folder") from error
            raise UsageError(f"cannot read the image in {path}: {error}") from error
        unpacked.seek(0)
        before = _id(client)
        try:
            names = [tag for image in client.images.load(unpacked) for tag in image.tags]
        except (ImageLoadError, APIError) as error:
            raise ImageError(f"{path} holds no image: {error}") from error
        # Podman gives a name without a registry the registry `localhost`.
        if image_tag() not in [name.removeprefix("localhost/") for name in names]:
            what = ", ".join(names) or "an image without a name"
            raise ImageError(f"{path} holds {what}; this version needs {image_tag()}")
        return _accept(client, find_image(client), before, digest, str(path))


def push_image(repository: str) -> tuple[str, str]:
    """Push the simulation image to a repository of a registry, such as ``registry.example:5000/rtl``.

    It gets two tags there: one for the content that it was built from, which a later push may move to another build,
    and one that ends with the digest of its own content.

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
    """Pull the simulation image that this version needs from where `push_image` put it.

    Args:
        repository: Of a registry.
        digest: Of the content that it must have, as `push_image` returned it; None for the build that was pushed last.

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
        before, pulled = _id(client), str(client.images.get(f"{repository}:{name}").id)
        client.api.tag(pulled, *_own_name())
        client.api.remove_image(f"{repository}:{name}", noprune=True)  # only the name
        return _accept(client, pulled, before, digest, f"{repository}:{name}")


def _accept(client: Any, image: str, before: str, digest: str | None, source: str) -> str:
    """Keep an image that has just received the name of the simulation image, in place of the one before, or refuse it.

    Returns the digest of its content. A refused image is removed, and the one before gets its name back.
    """
    unwanted = before
    try:
        found = checked_content(client, image).digest
        if digest not in (None, found):
            raise ImageError(f"its content is {found}, not {digest}")
    except ImageError as error:
        unwanted = image
        if before:
            client.api.tag(before, *_own_name())
        raise ImageError(f"the image from {source} is refused: {error}") from error
    finally:
        if unwanted and before != image:
            with contextlib.suppress(NotFound):
                client.api.remove_image(unwanted, force=True)
    return found


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


def _id(client: Any) -> str:
    try:
        return find_image(client)
    except ImageError:
        return ""
