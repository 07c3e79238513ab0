"""Files that this package keeps: the user's cache, files and folders that are complete or not there, and locks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from .errors import UsageError


def cache_folder(name: str = "") -> Path:
    """``$XDG_CACHE_HOME/rtl-agent-gym/NAME``, or that in ``~/.cache``; it may not exist yet.

    Raises `UsageError` if there is no home folder, and no `XDG_CACHE_HOME`.
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


def flush(folder: Path) -> None:
    """Write the file system of a folder to its disk. `os.sync` would wait for all file systems of the machine."""
    sync = getattr(ctypes.CDLL(None), "syncfs", lambda opened: os.sync())  # macOS has no syncfs
    opened = os.open(folder, os.O_RDONLY)
    try:
        sync(opened)
    finally:
        os.close(opened)


def keep_folder(
    folder: Path, fill: Callable[[Path], None], progress: Callable[[str], None] = lambda line: None
) -> Path:
    """`folder`, after `fill` has filled it if it did not exist.

    It is complete or does not exist, whatever is killed or loses power meanwhile. The next call removes what a killed
    one has left.

    Args:
        fill: Fills an empty folder, which is then renamed.
        progress: Called with a line if another process fills it.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".new-{folder.name}-"
    with exclusive(folder.name, progress, folder.with_name(f".{folder.name}.lock")) as shared:
        if shared:
            for left in folder.parent.glob(f"{prefix}*"):
                shutil.rmtree(left, ignore_errors=True)
        if not folder.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
            try:
                fill(scratch)
                flush(scratch)  # else a loss of power could leave empty files below the new name
                try:
                    scratch.rename(folder)
                except OSError:
                    if not folder.is_dir():  # without locks, another machine may have been faster
                        raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def open_lock(path: Path) -> IO[str]:
    """Open a file to lock it, made if it is missing. To lock another user's, reading it is enough, except on NFS."""
    try:
        return path.open("a+")  # NFS has no shared locks of what cannot be read
    except PermissionError:
        if not os.access(path, os.R_OK):
            raise
        return path.open()


def _has_locks(path: Path) -> bool:
    """Whether a lock of this file counts for all machines that share its folder."""
    try:
        with open_lock(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):
            return False
        raise
    return True


@contextlib.contextmanager
def exclusive(work: str, progress: Callable[[str], None], path: Path | None = None) -> Iterator[bool]:
    """Let one process do `work` (a word) at a time; the others wait. Yields whether the lock's file is `path`.

    The lock ends with the process, and children do not inherit it.

    Args:
        progress: Called with a line if another process does it.
        path: The lock's file. It is one of this user on this machine if this is None, or on a disk without locks.
    """
    own = Path(tempfile.gettempdir()) / f"rtl-agent-gym-{work}-{os.geteuid()}.lock"
    found = path if path is not None and _has_locks(path) else own
    with open_lock(found) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares the {work}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield found == path
