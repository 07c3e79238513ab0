"""What the tests have in the place of Apptainer: it accepts one command line, word by word, and then carries it out.

It does what Apptainer's documentation says of these options: user, mount, PID, IPC, UTS and network namespaces with one
user, who is the caller and gets a line in /etc/passwd; an overlay over the image that can be written to; a small /dev;
no capability with ``--no-privs``. Other files that are writable stand for what a configuration might mount.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = shlex.split(
    "exec --userns --containall --no-home --no-mount home,cwd,tmp,sys,hostfs,bind-paths --cleanenv --no-eval "
    "--no-privs --uts --net --network none --no-init --no-umask --writable-tmpfs --pwd /"
)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LIBC = ctypes.CDLL(None, use_errno=True)
_NAMESPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x8000000 | 0x4000000 | 0x40000000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWIPC, NEWUTS, NEWNET."""
_NOSUID_NODEV, _BIND, _PRIVATE, _DETACH = 2 | 4, 4096, 0x4000 | 0x40000, 2
_REMOUNT_READ_ONLY = 32 | 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9


def check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(kind: str, source: object, target: object, flags: int = 0, options: str = "") -> None:
    words = str(source).encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    check(_LIBC.mount(*words))


def refuse(why: str) -> None:
    sys.exit(f"FATAL: {why}")


def main(words: list[str]) -> None:
    """Be Apptainer."""
    if words == ["--version"]:
        print("apptainer version 1.4.0-stub")
        return
    given, rest = words[: len(OPTIONS)], words[len(OPTIONS) :]
    if given != OPTIONS:
        refuse(f"unexpected options: {given}")
    scratch = []
    while rest[0] == "--scratch":
        scratch.append(rest[1])
        rest = rest[2:]
    bound = rest[1] if rest[0] == "--bind" else ""
    image, program, *arguments = rest[2:] if bound else rest
    if bound not in ("", f"{image}:/mnt:ro"):
        refuse(f"unexpected folder: {bound}")
    expected = ["/usr/bin/env", "-i"] if bound else ["/usr/bin/python3", "-ISBc"]
    if not Path(image, "usr", "bin").is_dir() or [program, *arguments[:1]] != expected:
        refuse(f"unexpected program {program} in {image}")
    if found := [name for name in os.environ if name.startswith(("APPTAINER", "SINGULARITY")) or name == "SECRET"]:
        refuse(f"variables that change its options, or that it would pass on: {found}")
    if not bound and not stat.S_ISSOCK(os.fstat(0).st_mode):
        refuse("its standard input is not the control socket")
    ids = {"uid": os.getuid(), "gid": os.getgid()}
    if not ids["uid"]:
        refuse("root's containers would keep their capabilities")
    check(_LIBC.unshare(_NAMESPACES))
    Path("/proc/self/setgroups").write_text("deny")
    for kind, own in ids.items():
        Path(f"/proc/self/{kind}_map").write_text(f"{own} {own} 1")
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    check(_LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))
    change_root(Path(image), scratch, bound=bool(bound))
    check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    environment = {"APPTAINER_CONTAINER": image, "PATH": "/usr/bin:/bin"}
    os.execve(program, [program, *arguments], environment)  # which has no capability then


def change_root(image: Path, scratch: list[str], *, bound: bool) -> None:
    """Make the container's files, and let this process see nothing else.

    Args:
        image: The folder below them.
        scratch: Where there are empty folders in memory.
        bound: Whether the image is also at /mnt, as it is.
    """
    mount("", "none", "/", _PRIVATE)
    session = Path("/tmp")
    mount("tmpfs", "tmpfs", session, _NOSUID_NODEV)
    upper, work, root = session / "upper", session / "work", session / "root"
    for folder in (upper, work, root):
        folder.mkdir()
    options = f"lowerdir={image},upperdir={upper},workdir={work},userxattr"
    mount("overlay", "overlay", root, _NOSUID_NODEV, options)
    for place in ("dev", "proc", *(path.lstrip("/") for path in scratch)):
        (root / place).mkdir(parents=True, exist_ok=True)
    for place in (*(path.lstrip("/") for path in scratch), "dev", "var/tmp", "mnt"):
        mount("tmpfs", "tmpfs", root / place, _NOSUID_NODEV, "mode=755")
    (session / "passwd").write_text((image / "etc/passwd").read_text() + "user:x:1:1::/:/bin/sh\n")
    mount("", session / "passwd", root / "etc/passwd", _BIND)
    if bound:
        mount("", image, root / "mnt", _BIND)
        mount("", "none", root / "mnt", _BIND | _REMOUNT_READ_ONLY)
    for name in DEVICES:
        (root / "dev" / name).touch()
        mount("", f"/dev/{name}", root / "dev" / name, _BIND)
    for name in ("shm", "pts"):
        (root / "dev" / name).mkdir()
    mount("tmpfs", "tmpfs", root / "dev" / "shm", _NOSUID_NODEV)
    mount("devpts", "devpts", root / "dev" / "pts", 2 | 8, "newinstance,ptmxmode=0666,mode=620")
    (root / "dev" / "ptmx").symlink_to("pts/ptmx")
    (root / "dev" / "fd").symlink_to("/proc/self/fd")
    mount("proc", "proc", root / "proc", _NOSUID_NODEV | 8)
    os.chdir(root)
    check(_LIBC.syscall(ctypes.c_long(_PIVOT_ROOT), b".", b"."))
    check(_LIBC.umount2(b".", _DETACH))
    os.chdir("/")


@contextmanager
def apptainer_stub() -> Iterator[Path]:
    """Within the context, the program ``apptainer`` is this module; its folder."""
    import pytest

    folder = Path(tempfile.mkdtemp(prefix="apptainer-", dir="/tmp"))
    folder.chmod(0o755)  # other users run it, too
    program = folder / "apptainer"
    program.write_text(
        f"#!{sys.executable} -I\nimport sys\nsys.path[:0] = [{str(ROOT)!r}]\n"
        "from tests.sandboxes.apptainer_stub import main\nmain(sys.argv[1:])\n"
    )
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        patch.setenv("APPTAINER_BIND", "/")
        patch.setenv("SECRET", "x")
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
