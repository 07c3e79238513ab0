"""Reading a folder of this machine that an agent has filled, for example one that another framework copied out."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..sandboxes.results import FoundFiles
from ..scoring.submission import MAX_COUNT, MAX_DEPTH, MAX_FILE, MAX_TOTAL
from .rules import FOLDERS

_NAMED = 100  # files left out that are named; the rest are counted
_CHUNK = 1 << 20


def read_untrusted(folder: Path, folders: Sequence[str] = FOLDERS) -> FoundFiles:
    """The regular files below some folders of `folder`, by path relative to it, in the order of their names.

    No link is followed, and no device, pipe or socket is opened. Anything else than a regular file is left out with
    the reason, as are files over the limits of a submission (`scoring.submission`) and names that are not UTF-8.
    A file that changes meanwhile gives any of its states, within the limits.

    Raises:
        UsageError: `folder` is missing or not a folder.
    """
    walk = _FolderWalk()
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"cannot read the folder {folder}: {error.strerror}") from None
    try:
        for name in folders:
            walk.visit(root, name, name, 1)
    finally:
        os.close(root)
    return FoundFiles(walk.files, walk.left_out, walk.left_out_count)


class _FolderWalk:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.left_out: list[tuple[str, str]] = []
        self.left_out_count = 0
        self._total = 0
        self._seen = 0

    def visit(self, parent: int, name: str, path: str, depth: int) -> None:
        """Read what `name` is in the open folder `parent`: a file, or a folder with all that it holds."""
        try:
            # O_NONBLOCK: opening a pipe does not wait for its other end.
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            return self._leave(path, f"not a readable regular file ({error.strerror})")
        try:
            kind = os.fstat(opened).st_mode
            if stat.S_ISREG(kind):
                self._read(opened, path)
            elif stat.S_ISDIR(kind):
                self._enter(opened, path, depth)
            else:
                self._leave(path, "not a regular file")
        finally:
            os.close(opened)

    def _enter(self, opened: int, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            return self._leave(path, f"more than {MAX_DEPTH} folders deep")
        with os.scandir(opened) as entries:
            names = []
            for entry in entries:
                self._seen += 1
                if self._seen > 2 * MAX_COUNT:
                    return self._leave(path, f"more than {2 * MAX_COUNT} entries in all")
                names.append(entry.name)
        for name in sorted(names):
            self.visit(opened, name, f"{path}/{name}", depth + 1)

    def _read(self, opened: int, path: str) -> None:
        if not _is_text(path):
            return self._leave(path, "its name is not UTF-8")
        if len(self.files) >= MAX_COUNT:
            return self._leave(path, f"more than {MAX_COUNT} files")
        room = min(MAX_FILE, MAX_TOTAL - self._total)
        content = bytearray()
        while len(content) <= room:
            piece = os.read(opened, _CHUNK)
            if not piece:
                self.files[path] = bytes(content)
                self._total += len(content)
                return None
            content += piece
        limit = f"larger than {MAX_FILE >> 20} MiB" if room == MAX_FILE else f"more than {MAX_TOTAL >> 20} MiB in all"
        return self._leave(path, limit)

    def _leave(self, path: str, reason: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < _NAMED:
            self.left_out.append((path, reason))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
