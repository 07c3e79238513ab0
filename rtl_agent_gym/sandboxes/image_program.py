"""Runs inside an image, with its Python alone: prints the digest of the image's content, then its Debian packages.

The content is every file below the root: its path, kind and mode, and what it holds or where it links to. Left out is
what differs between two builds of the same: times, owners, caches, logs, temporary files, and what a container runtime
or the building host puts there. Compiled Python counts by its code, without the time in its header and the sharing of
objects, which depends on the process that compiled it. A first argument names, in JSON, the modes of files that a root
folder stores with other ones, and a second one the folder to read instead of ``/``.
"""

import hashlib
import importlib.util
import json
import marshal
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping

OMITTED = {
    *("/.dockerenv", "/dev", "/proc", "/sys", "/run"),
    *("/tmp", "/var/tmp", "/var/cache", "/var/log", "/var/lib/apt/lists", "/root/.cache", "/etc/ld.so.cache"),
    *("/etc/hostname", "/etc/hosts", "/etc/machine-id", "/etc/mtab", "/etc/resolv.conf"),
    *("/etc/apt/sources.list", "/etc/apt/sources.list.d"),
}
"""Paths that do not count, with everything below them."""


def digest(root: str = "/", modes: Mapping[str, int] | None = None) -> str:
    """The digest of the files below a folder, as ``sha256:`` and 64 hexadecimal digits.

    Args:
        root: The folder.
        modes: The modes of files that have others there, by path.
    """
    total = hashlib.sha256()
    for path in sorted(_paths(root.rstrip("/"), ""), key=os.fsencode):
        total.update(_entry(root.rstrip("/") + path, path, (modes or {}).get(path)))
    return f"sha256:{total.hexdigest()}"


def _paths(root: str, below: str) -> Iterator[str]:
    """Every path below a folder that counts, relative to `root` and beginning with a slash."""
    with os.scandir(root + below or "/") as entries:
        for entry in entries:
            path = f"{below}/{entry.name}"
            if path in OMITTED:
                continue
            yield path
            if entry.is_dir(follow_symlinks=False):
                yield from _paths(root, path)


def _entry(place: str, path: str, mode_there: int | None) -> bytes:
    found = os.lstat(place)
    if stat.S_ISLNK(found.st_mode):
        kind, what = "link", os.readlink(place)  # the mode of a link has no meaning
    else:
        mode = f"{stat.S_IMODE(found.st_mode) if mode_there is None else mode_there:o}"
        if stat.S_ISREG(found.st_mode):
            kind, what = f"file {mode}", _content(place)
        else:
            kind, what = f"{stat.S_IFMT(found.st_mode):o} {mode}", ""
    return b"\0".join(os.fsencode(part) for part in (path, kind, what)) + b"\0\n"


def _content(place: str) -> str:
    with open(place, "rb") as file:
        if not place.endswith(".pyc"):
            return hashlib.file_digest(file, "sha256").hexdigest()
        data = file.read()
    if data[:4] == importlib.util.MAGIC_NUMBER:
        data = data[:4] + marshal.dumps(marshal.loads(data[16:]), 2)  # version 2 has no sharing of objects
    return hashlib.sha256(data).hexdigest()


def packages(root: str = "/") -> dict[str, str]:
    """The versions of the installed Debian packages by name."""
    with open(f"{root.rstrip('/')}/var/lib/dpkg/status", encoding="utf-8") as file:
        stanzas = file.read().split("\n\n")
    fields = (dict(re.findall(r"(?m)^(Package|Version|Status): (.*)$", stanza)) for stanza in stanzas)
    return {
        stanza["Package"]: stanza["Version"] for stanza in fields if stanza.get("Status", "").endswith(" installed")
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    modes, root = arguments[:1], arguments[1] if len(arguments) > 1 else "/"
    print(digest(root, json.loads(modes[0]) if modes else None))
    for name, version in packages(root).items():
        print(name, version)
    sys.stdout.flush()
