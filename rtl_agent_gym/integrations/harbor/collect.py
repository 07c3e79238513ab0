"""Copies what an agent leaves to a folder that only root can write to, and records there that this was completed.

Harbor collects artifacts by best effort: a dead container looks like a container whose agent deleted everything. The
record tells the two apart. This text is the command of a collect hook in ``task.toml``, so it imports nothing of ours.

The agent's processes are ended first. Then regular files are copied under the limits of a submission: those of the
argument's paths, which are the problem's own, and then the smallest first. If anything fails that an agent cannot
cause, there is no record.
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
"""Entries of folders that are looked at."""
MAX_PATH = 1000
"""Bytes. The kernel opens no path of more than 4096, and on the host the folder of the trial comes before it."""
_LEFT_OUT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
"""Control characters, bytes that are not UTF-8, and the backslash. The files are counted here and by the verifier's
Python, which may be of another version, and `str.isprintable` depends on the version."""
_UNREADABLE = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR}
"""Why a link, a socket, a device or a file without permissions cannot be opened, or what has vanished."""
_ROUNDS, _PAUSE = 100, 0.05


def end_processes(user: int) -> None:
    """Kill every process of a user, and what they start meanwhile."""
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
    """Whether a process is a user's and not a zombie, as which it also shows if only its first thread has ended."""
    # A process chooses the bytes of its name.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="latin-1") as stream:
        facts = dict(line.split(":", 1) for line in stream if ":" in line)
        ended = facts["State"].split()[0] in "ZX" and int(facts.get("Threads", 1)) <= 1
        return str(user) in facts["Uid"].split() and not ended
    return False


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _is_collected(path: str) -> bool:
    return _LEFT_OUT.search(path) is None and len(os.fsencode(path)) <= MAX_PATH


class Walk:
    """The regular files below an open folder; it follows no link and opens no device, pipe or socket."""

    def __init__(self) -> None:
        self.seen = 0
        self.found: dict[str, int] = {}
        """Sizes by path."""

    def find(self, root: int, path: str) -> None:
        """Find a file by its path, however many others its folders hold."""
        if path.split("/")[0] in FOLDERS and path.count("/") <= MAX_DEPTH and _is_collected(path):
            opened = self._open(root, path)
            if opened is not None:
                self.found[path] = os.fstat(opened).st_size
                os.close(opened)

    def visit(self, parent: int, name: str, path: str, depth: int) -> None:
        """Find what `name` is in the open folder `parent`: a file, or a folder with all that it holds."""
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
        """Paths and contents of what was found.

        After the paths `first`, the smallest come first, so that large files do not keep small ones out.
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
        """Open a file without following a link anywhere in its path; None if it is not there any more."""
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
    """Paths and contents of the regular files in the graded folders of a folder, within the limits of a submission.

    Args:
        folder: The folder.
        first: Paths that come before all others, so that no number of other files keeps them out.

    Raises:
        OSError: The folder is not there, or the machine failed.
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
    for path, content in read_untrusted(SOURCE, first):  # an agent may remove what it holds, not the folder
        place = f"{TARGET}/code/{path}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as stream:
            size += stream.write(content)
        files += 1
    with open(f"{TARGET}/{RECORD}", "w") as stream:
        json.dump({"files": files, "bytes": size}, stream)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
