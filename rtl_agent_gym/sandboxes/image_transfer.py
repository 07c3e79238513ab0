"""Moves the simulation image between machines, so that all of them grade with the same one.

Images that are built on two machines differ in their ids, which are part of the key of every cached grading and which
the machines of a cluster must share. A file or a registry keeps the id.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, cast

from docker.errors import APIError, ImageLoadError, ImageNotFound, NotFound

from ..errors import ImageError, UsageError, cannot_write
from .image import connected, find_image, image_tag


def save_image(path: Path) -> str:
    """Write the simulation image to a file, compressed with gzip. Returns the image's id.

    Raises:
        ImageError: It has not been built.
        UsageError: The file cannot be written.
    """
    with connected() as client:
        image = find_image(client)
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
    return image


def load_image(path: Path) -> str:
    """Read the simulation image from a file that `save_image` or ``docker save`` wrote. Returns the image's id.

    Raises:
        UsageError: The file cannot be read.
        ImageError: It holds another image than the one that this version needs.
    """
    with connected() as client, tempfile.TemporaryFile() as unpacked:
        try:
            with path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                shutil.copyfileobj(gzip.GzipFile(fileobj=file) if packed else file, cast(BinaryIO, unpacked), 1 << 20)
        except (OSError, EOFError) as error:
            raise UsageError(f"cannot read the image in {path}: {error}") from error
        unpacked.seek(0)
        before = _id(client)
        try:
            names = [tag for image in client.images.load(unpacked) for tag in image.tags]
        except (ImageLoadError, APIError) as error:
            raise ImageError(f"{path} holds no image: {error}") from error
        if image_tag() not in names:
            what = ", ".join(names) or "an image without a name"
            raise ImageError(f"{path} holds {what}; this version needs {image_tag()}")
        found = find_image(client)
        if before not in ("", found):
            with contextlib.suppress(NotFound):  # the one that had the name before
                client.api.remove_image(before, force=True)
        return found


def push_image(repository: str) -> str:
    """Push the simulation image to a repository of a registry, such as ``registry.example:5000/rtl``.

    Returns:
        The reference that was pushed; its tag names the content that the image was built from.

    Raises:
        ImageError: It has not been built, or the registry refuses it.
    """
    repository, tag = _reference(repository)
    with connected() as client:
        client.api.tag(find_image(client), repository, tag)
        try:
            for event in client.api.push(repository, tag=tag, stream=True, decode=True):
                if "error" in event:
                    raise ImageError(f"cannot push {repository}:{tag}: {event['error']}")
        finally:
            client.api.remove_image(f"{repository}:{tag}", noprune=True)  # only the name
    return f"{repository}:{tag}"


def pull_image(repository: str) -> str:
    """Pull the simulation image that this version needs from where `push_image` put it. Returns the image's id.

    Raises:
        ImageError: The registry does not have it.
    """
    repository, tag = _reference(repository)
    with connected() as client:
        try:
            client.images.pull(repository, tag=tag)
        except (ImageNotFound, NotFound) as error:
            raise ImageError(f"{repository} has no image {tag}: {error.explanation or error}") from error
        client.api.tag(f"{repository}:{tag}", image_tag().partition(":")[0], tag)
        client.api.remove_image(f"{repository}:{tag}", noprune=True)  # only the name
        return find_image(client)


def _reference(repository: str) -> tuple[str, str]:
    name = repository.rpartition("/")[2]
    if ":" in name or "@" in name:
        raise UsageError(f"{repository}: give a repository without a tag; the tag is {image_tag().split(':')[1]}")
    return repository, image_tag().split(":")[1]


def _id(client: Any) -> str:
    try:
        return find_image(client)
    except ImageError:
        return ""
