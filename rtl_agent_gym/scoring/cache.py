"""Gradings on disk, by the content of what was graded.

A file is written whole under another name and then renamed, so a reader sees all of it or nothing, whoever crashes; two
processes that grade the same write the same. A file that cannot be read counts as not there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from .grading import Grading


@functools.cache
def rules_digest() -> str:
    """A digest of the programs that grade: this folder's, the grader's among them. Others may grade otherwise."""
    total = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def default_cache_dir() -> Path:
    """Where gradings are kept unless told otherwise: ``$XDG_CACHE_HOME/rtl-agent-gym/scores``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / "scores"


class ScoreCache:
    """Gradings in a folder, which only its owner can read or write.

    Args:
        folder: Made when it is missing; None for `default_cache_dir`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_cache_dir()

    @staticmethod
    def key(parts: Mapping[str, object]) -> str:
        """The name of a grading by everything that decides it. Digests of contents, never paths or names of them."""
        text = json.dumps({"rules": rules_digest(), **parts}, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Grading | None:
        """The grading of that name, or None."""
        try:
            return Grading.model_validate_json(self._path(key).read_bytes())
        except (OSError, ValidationError):
            return None

    def put(self, key: str, grading: Grading) -> None:
        """Keep a grading. A full or read-only disk is no fault of the grading, and costs only the next one's time."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(grading.model_dump_json())
                os.replace(name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
