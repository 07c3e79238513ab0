"""A cache of gradings on disk, keyed by the content of what was graded.

A file is written under a temporary name and then renamed, so a reader never sees part of it, even after a crash. Two
processes that grade the same files write the same content. An unreadable file counts as missing, as does one whose
content does not match its checksum: most bytes that a disk damages would otherwise be another valid grading.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ..files import cache_folder, replace_file
from ..problems.paths import expand_home
from .grading import Grading


@functools.cache
def rules_digest() -> str:
    """A digest of the code that grades: this folder with the grader, and the code that determines how it runs."""
    total, package = hashlib.sha256(), Path(__file__).parents[1]
    names = ("client.py", "namespaces.py", "seccomp.py", "seccomp.txt", "zygote.py")
    others = [package / "problems" / name for name in ("compose.py", "paths.py")]
    others += [package / "sandboxes" / name for name in names]  # what a sandbox is and may do, with each provider
    for path in [*sorted(Path(__file__).parent.rglob("*.py")), *sorted(package.glob("sandboxes/warden/*.py")), *others]:
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def default_cache_dir() -> Path:
    """The default folder of gradings: ``$XDG_CACHE_HOME/rtl-agent-gym/scores``."""
    return cache_folder("scores")


def _checksum(key: str, text: bytes) -> bytes:
    return hashlib.sha256(key.encode() + text).hexdigest().encode()


LARGEST = 1 << 30
"""Default size limit of a cache in bytes; enough for about 250,000 gradings."""
PUTS = 1000
"""Gradings between two checks of a cache's size."""


class ScoreCache:
    """Gradings in a folder that only its owner can read or write. The least recently used ones are evicted.

    Args:
        folder: Created if missing; None for `default_cache_dir`.
        largest: Size limit on disk, in bytes.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, largest: int = LARGEST) -> None:
        self.folder = default_cache_dir() if folder is None else expand_home(folder)
        self._largest, self._puts = largest, 0

    @staticmethod
    def key(parts: Mapping[str, object]) -> str:
        """The key of a grading, from digests of everything that determines its result."""
        text = json.dumps({"rules": rules_digest(), **parts}, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Grading | None:
        """The grading with this key, or None."""
        path = self._path(key)
        try:
            checksum, _, text = path.read_bytes().partition(b"\n")
            if checksum != _checksum(key, text):
                return None
            grading = Grading.model_validate_json(text)
            with contextlib.suppress(OSError):  # a read-only folder can still be read
                os.utime(path)
            return grading
        except (OSError, ValidationError):
            return None

    def put(self, key: str, grading: Grading) -> None:
        """Store a grading. Errors of a full or read-only disk are ignored; the grading is then repeated when needed."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            text = grading.model_dump_json().encode()
            replace_file(path, _checksum(key, text) + b"\n" + text, mode=0o600)
        self._puts += 1
        if self._puts % PUTS == 1:
            with contextlib.suppress(RuntimeError):  # there are too many threads
                threading.Thread(target=self.evict, name="rtl-gym-cache", daemon=True).start()

    def evict(self) -> int:
        """Delete the least recently used gradings if the cache is too large. Returns the number of deleted ones."""
        found = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime, 512 * state.st_blocks, path))
        total, deleted = sum(size for _, size, _ in found), 0
        if total <= self._largest:
            return 0
        for _, size, path in sorted(found):
            if total <= 0.9 * self._largest:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                deleted += 1
            total -= size
        return deleted

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class HeldCache(ScoreCache):
    """A cache whose new gradings reach the disk only once they are confirmed.

    Until then only this process finds them, as its verdicts await the same confirmation. Arguments as of `ScoreCache`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, largest: int = LARGEST) -> None:
        super().__init__(folder, largest=largest)
        self._new: dict[str, Grading] = {}
        self._sealed: dict[str, Grading] = {}

    def get(self, key: str) -> Grading | None:
        return self._new.get(key) or self._sealed.get(key) or super().get(key)

    def put(self, key: str, grading: Grading) -> None:
        self._new[key] = grading

    def seal(self) -> None:
        """Select the gradings held now for the next `keep`; later ones wait for the next `seal`."""
        self._sealed |= self._new
        self._new = {}

    def keep(self) -> None:
        """Write the sealed gradings to disk."""
        sealed, self._sealed = self._sealed, {}
        for key, grading in sealed.items():
            super().put(key, grading)

    def drop(self) -> None:
        """Forget all gradings that are not on disk yet, sealed or not."""
        self._new, self._sealed = {}, {}
