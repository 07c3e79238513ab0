"""Writes the problems that commands make."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError, cannot_write
from ..problems.model import expand_home
from ..problems.registry import split_source
from .options import writable_folder
from .show import refuse_source


def check_out(out: Path, source: str) -> None:
    """Find out before any work whether a file of problems can be written.

    Raises:
        UsageError: It cannot, or it is one of the source's own files, which would be lost.
    """
    path = expand_home(split_source(source).inner)
    if path.exists():
        refuse_source(out, path.iterdir() if path.is_dir() else [path], "files that the problems are read from")
    if out.is_dir():
        raise UsageError(f"--out {out}: it is a folder; give the path of a file")
    if not out.exists():
        writable_folder(out.parent, "--out")
    elif not os.access(out, os.W_OK):
        raise UsageError(f"--out {out}: cannot be written to")


def write_rows(out: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON Lines file. Raises `UsageError` if it cannot be written."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise cannot_write("--out", out, error) from error
