"""Files in and out of a sandbox. Runs inside it; standard library only.

Every path is walked one component at a time by folder descriptors, so that no link on the way is ever followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def _open_folder(root: str, parts: list[str], make: bool) -> int:
    """A descriptor of root/parts. With `make`, what is in the way is replaced by a folder."""
    fd = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    for part in parts:
        try:
            try:
                below = os.open(part, _FOLDER, dir_fd=fd)
            except OSError:
                if not make:
                    raise
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=fd)
                os.mkdir(part, 0o755, dir_fd=fd)
                below = os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _remove(name: str, fd: int) -> None:
    """Remove the entry `name` of an open folder, whatever it is."""
    try:
        os.unlink(name, dir_fd=fd)
        return
    except FileNotFoundError:
        return
    except IsADirectoryError:
        below = os.open(name, _FOLDER, dir_fd=fd)
    try:
        for entry in os.listdir(below):
            _remove(entry, below)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=fd)


def write_files(header: Mapping[str, Any], body: bytes) -> None:
    """Write ``header["files"]`` ([path, size] each, contents one after another in `body`) below ``header["root"]``."""
    offset = 0
    for path, size in header["files"]:
        *parts, name = path.split("/")
        fd = _open_folder(header["root"], parts, make=True)
        try:
            _remove(name, fd)
            with os.fdopen(os.open(name, _CREATE, 0o600, dir_fd=fd), "wb") as stream:
                stream.write(body[offset : offset + size])
                os.fchmod(stream.fileno(), header["mode"])
        finally:
            os.close(fd)
        offset += size


def read_files(header: Mapping[str, Any]) -> tuple[list[tuple[str, int]], bytes]:
    """Regular files at or below ``header["paths"]``: ([(path, size)], contents one after another)."""
    found, pieces, total = [], [], 0
    for path, data in _walk(header):
        if total + len(data) > header["max_total"]:
            break
        total += len(data)
        found.append((path, len(data)))
        pieces.append(data)
    return found, b"".join(pieces)


def _walk(header: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    seen = set()
    for path in sorted(header["paths"]):
        *parts, name = [part for part in path.split("/") if part not in ("", ".")] or ["."]
        try:
            fd = _open_folder(header["root"], parts, make=False)
        except OSError:
            continue
        try:
            for found, data in _below(name, "/".join([*parts, name]), fd, header["max_file"]):
                if found not in seen:
                    seen.add(found)
                    yield found, data
        finally:
            os.close(fd)


def _below(name: str, path: str, fd: int, most: int) -> Iterator[tuple[str, bytes]]:
    try:
        file = os.open(name, _LOOK, dir_fd=fd)
    except OSError:  # a link, gone, or closed to us
        return
    try:
        info = os.fstat(file)
        if stat.S_ISDIR(info.st_mode):
            for entry in sorted(os.listdir(file)):
                yield from _below(entry, entry if path == "." else f"{path}/{entry}", file, most)
        elif stat.S_ISREG(info.st_mode) and info.st_size <= most:
            with os.fdopen(os.dup(file), "rb") as stream:
                data = stream.read(most + 1)
            if len(data) <= most:
                yield path, data
    finally:
        os.close(file)
