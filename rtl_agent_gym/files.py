"""Files that this package keeps: the user's cache, and files that are replaced whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from .errors import UsageError


def cache_folder(name: str = "") -> Path:
    """``$XDG_CACHE_HOME/rtl-agent-gym/NAME``, or that in ``~/.cache``; it may not exist yet.

    Raises:
        UsageError: There is no home folder, and no `XDG_CACHE_HOME`.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / name
    except RuntimeError as error:
        raise UsageError("there is no home folder for the cache; set XDG_CACHE_HOME") from error


def replace_file(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Write a file whose readers find either the old content or the new one, whole.

    Args:
        path: Its folder exists.
        content: Text is written as UTF-8.
        durable: Whether the content is on the disk before the file is replaced, in case the power fails.
        mode: Permissions, of which the process's umask takes some.

    Raises:
        OSError: It cannot be written. The old content stays, and nothing is left beside it.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
