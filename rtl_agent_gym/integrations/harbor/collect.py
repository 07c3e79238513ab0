"""Copies an agent's files to a folder that only root can write to, and records there that the copy is complete.

Harbor collects artifacts by best effort: a dead container looks like one whose agent deleted everything. The record
tells the two apart. This file is a collect hook's command in ``task.toml``, so it imports no module of this package.

The agent's processes are ended first. Then regular files are copied within the limits of a submission: first the paths
in the argument, which are the problem's own, then the others, smallest first. After a failure that no agent can cause,
there is no record.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

SOURCE, TARGET, RECORD = "/code", "/collected", "complete.json"
AGENT = 1000
"""The agent's user id."""
FOLDERS = ("rtl", "verif", "docs")
MAX_FILE, MAX_TOTAL, MAX_COUNT, MAX_FOLDERS, MAX_DEPTH = 16 << 20, 64 << 20, 5000, 5000, 64
MAX_ENTRIES = 100_000
"""Maximum number of directory entries that are read."""
MAX_PATH = 1000
"""Bytes. The kernel opens no path of more than 4096, and on the host the path begins with the trial's folder."""
_LEFT_OUT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
"""Control characters, bytes that are not UTF-8, and the backslash; not `str.isprintable`, which depends on the version
of Python: the verifier, which may have another version, must count the same files."""
_UNREADABLE = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR}
"""Errors when opening a link, a socket, a device, a file without permissions, or a file that has vanished."""
_ROUNDS, _PAUSE = 100, 0.05


def end_processes(user: int) -> None:
    """Kill every process of a user, including those that they start meanwhile."""
    for _ in range(_ROUNDS):
        _kill_at_once(user)
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs(pid, user)]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(_PAUSE)
    raise OSError(f"processes of user {user} cannot be ended: {left}")


def _kill_at_once(user: int) -> None:
    """Kill every process of a user in one system call, during which none of them starts another.

    This needs a new process and the right to change its user; without them it does nothing.
    """
    try:
        child = os.fork()
    except OSError:
        return
    if child:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):  # by the user's processes
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return
    try:
        os.setresuid(user, user, user)
        os.kill(-1, signal.SIGKILL)
    finally:
        os._exit(0)


def _runs(pid: int, user: int) -> bool:
    """Whether a process is a user's and still runs. Its state is also Z if only its first thread has ended."""
    # latin-1, since a process can choose any bytes as its name
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="latin-1") as stream:
        facts = dict(line.split(":", 1) for line in stream if ":" in line)
        ended = facts["State"].split()[0] in "ZX" and int(facts.get("Threads", 1)) <= 1
        return str(user) in facts["Uid"].split() and not ended
    return False


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _is_collected(path: str) -> bool:
    return _LEFT_OUT.search(path) is None and len(os.fsencode(path)) <= MAX_PATH


class Walk:
    """Finds the regular files below an open folder. It follows no link, and reads from no device, pipe or socket."""

    def __init__(self) -> None:
        self.seen = 0
        self.found: dict[str, int] = {}
        """Sizes by path."""

    def find(self, root: int, path: str) -> None:
        """Find a file by its path, however many other files its folders contain."""
        if path.split("/")[0] in FOLDERS and path.count("/") <= MAX_DEPTH and _is_collected(path):
            opened = self._open(root, path)
            if opened is not None:
                self.found[path] = os.fstat(opened).st_size
                os.close(opened)

    def visit(self, parent: int, name: str, path: str, depth: int) -> None:
        """Find the entry `name` of the open folder `parent`: a file, or a folder with all its contents."""
        if not _is_collected(path):
            return
        try:
            opened = os.open(name, _FLAGS, dir_fd=parent)
        except OSError as error:
            if error.errno in _UNREADABLE:
                return
            raise
        try:
            facts = os.fstat(opened)
            if stat.S_ISREG(facts.st_mode):
                self.found[path] = facts.st_size
            elif stat.S_ISDIR(facts.st_mode) and depth <= MAX_DEPTH:
                for entry in self._names(opened):
                    self.visit(opened, entry, f"{path}/{entry}", depth + 1)
        finally:
            os.close(opened)

    def _names(self, folder: int) -> list[str]:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self.seen += 1
                if self.seen > MAX_ENTRIES:
                    return []
                names.append(entry.name)
        return sorted(names)

    def contents(self, root: int, first: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
        """Paths and contents of the files that were found.

        The paths in `first` come first, then the smallest files, so that large files do not keep small ones out.
        """
        ranks = {path: rank for rank, path in enumerate(first)}
        folders: set[str] = set()
        files = total = 0
        for _, size, path in sorted((ranks.get(path, len(ranks)), size, path) for path, size in self.found.items()):
            if files >= MAX_COUNT:
                return
            new = set(accumulate(path.split("/")[:-1], "{}/{}".format)) - folders
            if size > min(MAX_FILE, MAX_TOTAL - total) or len(folders) + len(new) > MAX_FOLDERS:
                continue
            opened = self._open(root, path)
            if opened is None:
                continue
            with open(opened, "rb") as source:
                content = source.read(size)
            files, total = files + 1, total + len(content)
            folders |= new
            yield path, content

    def _open(self, root: int, path: str) -> int | None:
        """Open a file without following a link anywhere in its path; None if it is no longer there."""
        opened = os.dup(root)
        for name in path.split("/"):
            folder = opened
            try:
                opened = os.open(name, _FLAGS, dir_fd=folder)
            except OSError as error:
                if error.errno in _UNREADABLE:
                    return None
                raise
            finally:
                os.close(folder)
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        os.close(opened)
        return None


def read_untrusted(folder: str, first: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the regular files in the graded folders below `folder`, within a submission's limits.

    Args:
        folder: The work folder, or a copy of it.
        first: Paths that come before all others, so that other files, however many, do not keep them out.

    Raises:
        OSError: The folder does not exist, or the machine failed.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        walk = Walk()
        for path in first:
            walk.find(root, path)
        for name in FOLDERS:
            walk.visit(root, name, name, 1)
        yield from walk.contents(root, first)
    finally:
        os.close(root)


def main(first: Sequence[str] = ()) -> None:
    """Collect once; a second run replaces the first collection. See `read_untrusted` for `first`."""
    os.umask(0o022)
    end_processes(AGENT)
    shutil.rmtree(TARGET, ignore_errors=True)
    os.makedirs(f"{TARGET}/code")
    files = size = 0
    for path, content in read_untrusted(SOURCE, first):  # an agent can delete its contents, but not /code
        place = f"{TARGET}/code/{path}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as stream:
            size += stream.write(content)
        files += 1
    with open(f"{TARGET}/{RECORD}", "w") as stream:
        json.dump({"files": files, "bytes": size}, stream)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
