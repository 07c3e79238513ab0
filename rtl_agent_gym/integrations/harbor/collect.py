"""Copies what an agent leaves to a folder that only root can write to, and records there that this was completed.

Harbor collects artifacts by best effort: a dead container looks like a container whose agent deleted everything. The
record tells the two apart. This text is the command of a collect hook in ``task.toml``, so it imports nothing of ours.

The agent's processes are ended first. Then regular files are copied, the smallest first, under the limits of a
submission. If anything fails that an agent cannot cause, there is no record.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator

SOURCE, TARGET, RECORD = "/code", "/collected", "complete.json"
AGENT = 1000
"""The agent's user id."""
FOLDERS = ("rtl", "verif", "docs")
MAX_FILE, MAX_TOTAL, MAX_COUNT, MAX_DEPTH = 16 << 20, 64 << 20, 5000, 64
MAX_PATH = 1000
"""Bytes. The kernel opens no path of more than 4096, and on the host the folder of the trial comes before it."""
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


class Walk:
    """The regular files below an open folder; it follows no link and opens no device, pipe or socket."""

    def __init__(self) -> None:
        self.seen = 0
        self.found: list[tuple[int, str]] = []
        """Sizes and paths."""

    def visit(self, parent: int, name: str, path: str, depth: int) -> None:
        """Find what `name` is in the open folder `parent`: a file, or a folder with all that it holds."""
        if not path.isprintable() or "\\" in path or len(os.fsencode(path)) > MAX_PATH:
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
                self.found.append((facts.st_size, path))
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
                if self.seen > 2 * MAX_COUNT:
                    return []
                names.append(entry.name)
        return sorted(names)

    def contents(self, root: int) -> Iterator[tuple[str, bytes]]:
        """Paths and contents of what was found; the smallest first, so that large files do not keep small ones out."""
        files = total = 0
        for size, path in sorted(self.found):
            if files >= MAX_COUNT or size > min(MAX_FILE, MAX_TOTAL - total):
                return
            opened = self._open(root, path)
            if opened is None:
                continue
            with open(opened, "rb") as source:
                content = source.read(size)
            files, total = files + 1, total + len(content)
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


def read_untrusted(folder: str) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the regular files in the graded folders of a folder, within the limits of a submission.

    Raises:
        OSError: The folder is not there, or the machine failed.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        walk = Walk()
        for name in FOLDERS:
            walk.visit(root, name, name, 1)
        yield from walk.contents(root)
    finally:
        os.close(root)


def main() -> None:
    """Collect once; a second run replaces the first collection."""
    os.umask(0o022)
    end_processes(AGENT)
    shutil.rmtree(TARGET, ignore_errors=True)
    os.makedirs(f"{TARGET}/code")
    files = size = 0
    for path, content in read_untrusted(SOURCE):  # an agent may remove what it holds, not the folder
        place = f"{TARGET}/code/{path}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as stream:
            size += stream.write(content)
        files += 1
    with open(f"{TARGET}/{RECORD}", "w") as stream:
        json.dump({"files": files, "bytes": size}, stream)


if __name__ == "__main__":
    main()
