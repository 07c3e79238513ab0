"""The user namespaces of sandboxes without a daemon, which bubblewrap joins.

A helper process creates a namespace; an open descriptor keeps it after that process has ended. There are three kinds:

- `open_ranged` maps a range of user ids, so that each sandbox has its own users. It needs root, or a range in
  /etc/subuid and /etc/subgid and the programs newuidmap and newgidmap. All sandboxes of a provider share one, in
  which no further ones can be created.
- `open_full` maps all usual ids, 0 to 65535, for builds of images. It needs the same.
- `open_single` maps one id to the caller's own, which every kernel with unprivileged user namespaces allows. Each
  sandbox has one user, and its own namespace below this one, in which no further ones can be created.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import SandboxError
from .client import MAPPED_UIDS, UIDS

SUBORDINATE = {"uid": Path("/etc/subuid"), "gid": Path("/etc/subgid")}
"""The files with the ranges of ids that each user may map."""
_READY = "ready"
_HELPER = f"echo started && read go && {{}} echo {_READY} && read end"
"""Runs in the new namespace with all capabilities there."""
_NO_MORE = "echo 0 > /proc/sys/user/max_user_namespaces &&"
"""Allow no user namespaces below the new one."""


def bubblewrap() -> str:
    """The path of bubblewrap's program. Raises `SandboxError` if it is not installed."""
    if (found := shutil.which("bwrap")) is None:
        raise SandboxError("sandboxes without Docker need bubblewrap; install the package bubblewrap (Debian, Ubuntu)")
    return found


@dataclass
class UserNamespace:
    """A user namespace. Owns its descriptor; the namespace ends when that is closed and no process is in it."""

    descriptor: int
    uids: Sequence[int]
    """The ids of agents; each keeper has the next id. A single id if there can be no keeper."""

    @property
    def ranged(self) -> bool:
        """Whether it has root and several users."""
        return len(self.uids) > 1

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def why_not_ranged() -> str:
    """Why this process cannot map a range of user ids; empty if it can."""
    if os.geteuid() == 0:
        return ""
    for kind, path in SUBORDINATE.items():
        if shutil.which(f"new{kind}map") is None:
            return f"the program new{kind}map is missing; install the package uidmap"
        if _subordinate(path) is None:
            name = _user()
            return f"{path} has no range of 65536 ids for {name}; root adds one with: usermod --add-sub{kind}s " + (
                f"100000-165535 {name}"
            )
    return ""


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _subordinate(path: Path) -> int | None:
    """The first id of this user's first range that is large enough."""
    try:
        lines = [line.strip().split(":") for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    owners = (_user(), str(os.geteuid()))
    starts = (int(words[1]) for words in lines if len(words) == 3 and words[0] in owners and int(words[2]) >= 1 << 16)
    return next(starts, None)


def open_ranged() -> UserNamespace:
    """A namespace with root and a range of users. Raises `SandboxError` if this process may not have one."""
    return _open_mapped(f"0 0 1\n{UIDS.start} {UIDS.start} {UIDS.stop - UIDS.start}\n", UIDS)


def open_full() -> UserNamespace:
    """A namespace with root and the ids that packages use. Raises `SandboxError` if this process may not have one."""
    return _open_mapped(f"0 0 {1 << 16}\n", MAPPED_UIDS)


def _open_mapped(ids: str, uids: Sequence[int]) -> UserNamespace:
    """A namespace with these ids, mapped to themselves; for a user other than root, with all ids of its range."""
    if why := why_not_ranged():
        raise SandboxError(f"this user cannot map a range of user ids: {why}")
    if os.geteuid() == 0:

        def allow(pid: int) -> None:
            for kind in SUBORDINATE:
                Path(f"/proc/{pid}/{kind}_map").write_text(ids, encoding="ascii")

        return UserNamespace(_open([], allow), uids)

    def map_range(pid: int) -> None:
        for (kind, path), own in zip(SUBORDINATE.items(), (os.geteuid(), os.getegid()), strict=True):
            words = map(str, (pid, 0, own, 1, 1, _subordinate(path), (1 << 16) - 1))
            subprocess.run([f"new{kind}map", *words], check=True, capture_output=True, text=True)

    return UserNamespace(_open([], map_range), MAPPED_UIDS)


def open_single(uid: int) -> UserNamespace:
    """A namespace in which this process's user has the id `uid`. Raises `SandboxError` if the kernel refuses."""
    return UserNamespace(_open([f"--map-user={uid}", f"--map-group={uid}"], lambda pid: None, ""), (uid,))


_BUILDER = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "SETFCAP", "SETGID", "SETPCAP", "SETUID")
"""With SYS_CHROOT, the capabilities of a build's steps: those that they have with Docker and that packages need."""


def as_builder(users: UserNamespace, *, network: bool) -> list[str]:
    """The first words of a bubblewrap command that runs as root of a namespace from `open_full`.

    The caller adds the mounts, ``--`` and the program, and lets bubblewrap inherit `users.descriptor`. With `network`,
    the program uses this machine's network.
    """
    words = [bubblewrap(), "--userns", str(users.descriptor), "--die-with-parent", "--new-session"]
    words += [f"--unshare-{name}" for name in ("pid", "ipc", "uts", "cgroup", *(() if network else ("net",)))]
    words += ["--cap-drop", "ALL"]
    for name in (*_BUILDER, "SYS_CHROOT"):
        words += ["--cap-add", f"CAP_{name}"]
    return words


def _open(options: list[str], map_ids: Callable[[int], None], first: str = _NO_MORE) -> int:
    command = ["unshare", "--user", "--keep-caps", *options, "--", "/bin/sh", "-c", _HELPER.format(first)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        assert helper.stderr is not None
        try:
            if helper.stdout.readline().strip() != b"started":
                raise SandboxError(_refused(helper.stderr.read().decode(errors="replace")))
            map_ids(helper.pid)
            helper.stdin.write(b"go\n")
            if helper.stdout.readline().strip() != _READY.encode():
                raise SandboxError(_refused(helper.stderr.read().decode(errors="replace")))
            return os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except subprocess.CalledProcessError as error:
            raise SandboxError(f"{error.cmd[0]} failed: {error.stderr.strip()}") from error
        except OSError as error:
            raise SandboxError(_refused(str(error))) from error
        finally:
            helper.kill()


def _refused(why: str) -> str:
    if "Read-only file system" in why:  # `_NO_MORE` could not be written; no setting of the kernel would help
        return (
            "/proc/sys is read-only here, as in many containers, so user namespaces of sandboxes cannot be limited; "
            "make it writable, as with docker run --security-opt systempaths=unconfined"
        )
    return (
        f"this user cannot create user namespaces on this machine: {why.strip() or 'no reason given'}. To allow them, "
        "set with sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, and on Ubuntu "
        "kernel.apparmor_restrict_unprivileged_userns=0"
    )
