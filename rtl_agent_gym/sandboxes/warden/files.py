"""Writes and reads the files of a sandbox. Runs inside it; standard library only.

Paths are resolved one component at a time with folder descriptors, so that links are never followed. An agent controls
the folders' contents: reading takes linear time, opens at most `DEPTH` folders at once, and reports what cannot be read
instead of raising.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

DEPTH = 64
"""Maximum depth of a file; deeper files are not graded."""
LONGEST_PATH = 4096
MOST_ENTRIES = 100_000
"""Maximum number of folder entries that one call examines."""
MOST_CHARACTERS = 8 << 20
"""Maximum total length of their paths: an agent chooses them, and they must not fill the memory of process 1."""
MOST_FILES = 5000
"""Maximum number of files, and of their parent folders, that one call returns."""
MOST_NAMED = 20
"""Maximum number of unread files that are reported by name."""
LONGEST_NAMED = 200
"""Maximum characters of such a name; the rest is cut off."""
_PIECE = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def _open(name: str, flags: int, fd: int | None = None) -> int:
    """Open an entry that its owner may have made inaccessible (``chmod 000``): the owner's permissions are restored."""
    try:
        opened = os.open(name, flags, dir_fd=fd)
    except PermissionError:
        os.chmod(name, os.stat(name, dir_fd=fd).st_mode & 0o777 | stat.S_IRWXU, dir_fd=fd)
        opened = os.open(name, flags, dir_fd=fd)
    mode = os.fstat(opened).st_mode
    if stat.S_ISDIR(mode) and not mode & stat.S_IXUSR:  # it could be listed, but nothing in it opened
        with contextlib.suppress(PermissionError):
            os.fchmod(opened, mode & 0o777 | stat.S_IRWXU)
    return opened


def _open_folder(root: str, parts: Sequence[str], make: bool) -> int:
    """A descriptor of root/parts. With `make`, missing folders are made, and entries of other kinds are replaced."""
    fd = _open(root, _FOLDER & ~os.O_NOFOLLOW)
    for part in parts:
        try:
            try:
                below = _open(part, _FOLDER, fd)
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
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        import shutil  # rarely needed, and its import would delay the start of every sandbox

        shutil.rmtree(name, dir_fd=fd)


def read_small(path: str) -> bytes:
    """The first 64 KiB of a file, in three system calls; `open` needs eight and takes several times as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def write_files(header: Mapping[str, Any], body: bytes) -> None:
    """Write ``header["files"]`` ([path, size] each, contents one after another in `body`) below ``header["root"]``.

    The folders ``header["folders"]`` are made first.
    """
    for path in header["folders"]:
        os.close(_open_folder(header["root"], path.split("/"), make=True))
    offset = 0
    for path, size in header["files"]:
        *parts, name = path.split("/")
        fd = _open_folder(header["root"], parts, make=True)
        try:
            _remove(name, fd)
            with os.fdopen(os.open(name, _CREATE, 0o600, dir_fd=fd), "wb") as stream:
                stream.write(body[offset : offset + size])
                os.fchmod(stream.fileno(), 0o644)
        finally:
            os.close(fd)
        offset += size


def read_files(header: Mapping[str, Any], send: Callable[[bytes], None]) -> dict[str, Any]:
    """Send the contents of the regular files at or below ``header["paths"]``, one after another.

    The paths ``header["first"]`` come first; the others are sorted by size, so that a limit excludes large files rather
    than small ones. Nothing at or below ``header["skip"]`` is read.

    Returns:
        ``files``: (path, size) of each sent file, in order; ``left_out``: (path, reason) of at most `MOST_NAMED`
        files that were not read; ``left_out_count``: the number of those.
    """
    left_out: list[tuple[str, str]] = []
    sent: list[tuple[str, int]] = []
    folders: set[str] = set()
    total = 0
    for _, size, path in sorted(_find(header, left_out)):
        new = set(itertools.accumulate(path.split("/")[:-1], "{}/{}".format)) - folders
        if size > header["max_file"]:
            reason = f"{size} bytes; at most {header['max_file']} a file are read"
        elif total + size > header["max_total"]:
            reason = f"{size} bytes; at most {header['max_total']} are read in all"
        elif max(len(sent) + 1, len(folders) + len(new)) > MOST_FILES:
            reason = f"at most {MOST_FILES} files and folders are read"
        else:
            try:
                sent.append((path, _send(header["root"], path, size, send)))
                folders |= new
                total += sent[-1][1]
                continue
            except OSError as error:
                reason = f"it cannot be read: {error.strerror}"
        left_out.append((path, reason))
    named = [(path[:LONGEST_NAMED], reason) for path, reason in left_out[:MOST_NAMED]]
    return {"files": sent, "left_out": named, "left_out_count": len(left_out)}


class _Look:
    """The entries that one call skips, and the number of others that it may still examine."""

    def __init__(self, skip: Sequence[str]) -> None:
        self.skip = frozenset(skip)
        self.entries, self.characters = MOST_ENTRIES, MOST_CHARACTERS
        self.over = ""
        """Why nothing more is read; empty until a limit is reached."""

    def take(self, path: str) -> None:
        self.entries -= 1
        self.characters -= len(path)
        if self.entries < 0:
            self.over = f"there are more than {MOST_ENTRIES} entries"
        elif self.characters < 0:
            self.over = f"their paths have more than {MOST_CHARACTERS} characters together"


def _send(root: str, path: str, size: int, send: Callable[[bytes], None]) -> int:
    """Send a file's bytes, at most its size when it was found. Returns the number of sent bytes."""
    *parts, name = path.split("/")
    fd = _open_folder(root, parts, make=False)
    try:
        source = _open(name, _LOOK, fd)
    finally:
        os.close(fd)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise OSError(0, "it is no longer a regular file")
        left = size
        while left and (data := os.read(source, min(left, _PIECE))):
            left -= len(data)
            send(data)
        return size - left
    finally:
        os.close(source)


def _find(header: Mapping[str, Any], left_out: list[tuple[str, str]]) -> Iterator[tuple[int, int, str]]:
    """(rank, size, path) of each file at or below the paths. The rank is the file's index in ``first``. What cannot be
    read is added to `left_out`.
    """
    ranks = {path: rank for rank, path in reversed(list(enumerate(header["first"])))}
    seen: set[str] = set()
    look = _Look(header.get("skip", ()))
    for path in [*header["first"], *sorted(header["paths"])]:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path in ranks and not any(_is_below(path, top) for top in header["paths"]):
            continue
        if any(_is_below(path, top) for top in look.skip):
            continue
        try:
            fd = _open_folder(header["root"], parts[:-1], make=False)
        except OSError as error:
            if path in ranks and not isinstance(error, FileNotFoundError):
                left_out.append((path, f"it cannot be reached: {error.strerror}"))
            continue
        try:
            for found, size, reason in _below(parts[-1] if parts else ".", parts[:-1], fd, look):
                name = found or path
                if name in seen:
                    continue
                seen.add(name)
                if not reason:
                    yield ranks.get(name, len(ranks)), size, name
                elif reason != _SPECIAL or name in ranks:
                    left_out.append((name, reason))
        finally:
            os.close(fd)


def _is_below(path: str, top: str) -> bool:
    return top in ("", ".") or path == top or path.startswith(f"{top.rstrip('/')}/")


_SPECIAL = "it is no plain file, and links are not followed"


def _below(name: str, parts: list[str], fd: int, look: _Look) -> Iterator[tuple[str, int, str]]:
    """(path, size, reason why it is not read, or empty) of each file at or below the entry `name` of an open folder."""
    here = parts if name == "." else [*parts, name]
    path = "/".join(here)
    if look.over or path in look.skip:
        return
    look.take(path)
    if look.over:
        yield path, 0, f"nothing is read from here on: {look.over}"
        return
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if len(os.fsencode(path)) > LONGEST_PATH:
            yield path, info.st_size, f"its path is longer than {LONGEST_PATH} bytes"
            return
        if not stat.S_ISDIR(info.st_mode):
            yield path, info.st_size, "" if stat.S_ISREG(info.st_mode) else _SPECIAL
            return
        if len(here) > DEPTH:
            yield path, 0, f"a folder more than {DEPTH} folders deep"
            return
        folder = _open(name, _FOLDER, fd)
    except FileNotFoundError:
        return
    except OSError as error:
        yield path, 0, f"it cannot be read: {error.strerror}"
        return
    try:
        for entry in sorted(os.listdir(folder)):
            yield from _below(entry, here, folder, look)
    finally:
        os.close(folder)
