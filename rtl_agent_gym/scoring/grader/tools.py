"""Runs the simulator's real programs, for a guard."""

from __future__ import annotations

import os
import signal


class OwnFolder:
    """A new private folder, removed at the end."""

    def __enter__(self) -> str:
        count = 0
        while True:
            self.path = f"/tmp/rtl-gym-{os.getpid()}-{count}"
            try:
                os.mkdir(self.path, 0o700)
                return self.path
            except FileExistsError:
                count += 1

    def __exit__(self, *_: object) -> None:
        for name in os.listdir(self.path):
            os.unlink(f"{self.path}/{name}")
        os.rmdir(self.path)


def run(command: list[str], outputs: dict[int, str]) -> int:
    """Run a program with some descriptors redirected to files; its exit status, negative for a signal."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = [(os.POSIX_SPAWN_OPEN, number, path, flags, 0o600) for number, path in outputs.items()]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores these; other programs expect the default
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=opened, setsigdef=ignored)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def read_lines(path: str) -> list[str]:
    """The lines of the compiler's list. Only a newline ends one, since paths may contain Unicode's other line ends."""
    try:
        with open(path, "rb") as stream:
            return [os.fsdecode(line) for line in stream.read().split(b"\n") if line]
    except FileNotFoundError:
        return []
