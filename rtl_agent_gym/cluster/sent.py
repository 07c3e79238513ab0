"""What goes to many sandboxes is sent to each node once, through Ray's object store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

SMALL = 4_096
"""Bytes of files that travel within a call, which costs less than a look into the object store."""


class SentOnce:
    """What this process has put into Ray's object store, by digest. Each node fetches it once.

    Args:
        most: How much stays there; the rest is put there again when it is needed.
        most_bytes: The same, by its size.
    """

    def __init__(self, most: int = 1_000, most_bytes: int = 512 << 20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._references: dict[str, tuple[Any, int]] = {}
        """With their sizes; those that were used last are at the end."""

    def reference(self, digest: str, value: Any, size: int = 0) -> Any:
        """A reference to a value with this digest, which Ray replaces by the value in a call's arguments."""
        import ray

        found = self._references.pop(digest, None) or (ray.put(value), size)
        self._references[digest] = found
        while len(self._references) > self._most or self._too_large():
            del self._references[next(iter(self._references))]
        return found[0]

    def files(self, files: Mapping[str, str | bytes]) -> Any:
        """The files, or a reference to them if they are not small."""
        size = sum(len(content) for content in files.values())
        if size < SMALL:
            return dict(files)
        return self.reference(_digest(files), dict(files), size)

    def _too_large(self) -> bool:
        return len(self._references) > 1 and sum(size for _, size in self._references.values()) > self._most_bytes


def _digest(files: Mapping[str, str | bytes]) -> str:
    """Text and bytes differ, as what is read from them may."""
    found = hashlib.sha256()
    for path, content in sorted(files.items()):
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        found.update(f"{path!r} {type(content).__name__} {len(data)}\n".encode() + data)
    return f"files {found.hexdigest()}"
