"""Files on disk: the user's cache, atomic creation and replacement of files and folders, and locks."""

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
    """``rtl-agent-gym/NAME`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; it may not exist yet.

    Raises `UsageError` if there is neither a home folder nor `XDG_CACHE_HOME`.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / name
    except RuntimeError as error:
        raise UsageError("there is no home folder for the cache; set XDG_CACHE_HOME") from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an `OSError` of the block that has none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def replace_file(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Replace a file atomically: readers see either the complete old content or the complete new content.

    Args:
        path: The file, in an existing folder.
        content: Text is written as UTF-8.
        durable: Whether to flush the content to disk before the file is replaced, in case of a power failure.
        mode: Permissions, to which the process's umask is applied.

    Raises:
        OSError: The file cannot be written. The old content stays, and the temporary file is removed.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with naming(path):
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
    """Flush a folder's file system to disk. `os.sync` would wait for all file systems of the machine."""
    sync = getattr(ctypes.CDLL(None), "syncfs", lambda opened: os.sync())  # macOS has no syncfs
    opened = os.open(folder, os.O_RDONLY)
    try:
        sync(opened)
    finally:
        os.close(opened)


def keep_folder(
    folder: Path, fill: Callable[[Path], None], progress: Callable[[str], None] = lambda line: None
) -> Path:
    """Create `folder` with `fill` unless it exists, and return it.

    It is complete or does not exist, even if a process is killed or the power fails. The next call removes leftovers
    of a killed call.

    Args:
        fill: Fills an empty temporary folder, which is then renamed.
        progress: Called with a message if another process is filling the folder.
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
                flush(scratch)  # otherwise a power failure could leave empty files below the new name
                try:
                    scratch.rename(folder)
                except OSError:
                    if not folder.is_dir():  # without locks, another machine may have been faster
                        raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def open_lock(path: Path) -> IO[str]:
    """Open a lock file, created if missing. For another user's file, read permission suffices, except on NFS."""
    try:
        return path.open("a+")  # on NFS, a shared lock needs a file that is open for reading
    except PermissionError:
        if not os.access(path, os.R_OK):
            raise
        return path.open()


def _has_locks(path: Path) -> bool:
    """Whether locks of this file are supported; they then apply to all machines that share its folder."""
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
    """Let one process at a time do `work` (a noun); the others wait. Yields whether the lock file is `path`.

    The lock ends with the process, and children do not inherit it.

    Args:
        progress: Called with a message if another process holds the lock.
        path: The lock file. If None, or if its file system has no locks, a temporary file of this user and machine.
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
