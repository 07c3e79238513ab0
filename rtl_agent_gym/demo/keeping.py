"""Keeps what takes long to make in a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def keep_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """`folder`, after `fill` has filled it if it did not exist. Atomic: it is complete or does not exist."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
        try:
            fill(scratch)
            # The first process wins: a rename cannot replace an existing folder.
            with contextlib.suppress(OSError):
                os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder
