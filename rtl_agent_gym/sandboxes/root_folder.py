"""The simulation image as a folder: the root of sandboxes without a daemon, and of programs that inspect it.

`unpack` writes it once for each version of the image, from a Docker daemon or from a file that ``rtl-agent-gym image
save`` or ``docker save`` wrote. The variable RTL_GYM_ROOTS names the folder for all versions, for example on a disk
that several machines share. Beside each root is a record with the digest of its content, which is computed from the
written files and is the same as in Docker.

A root belongs to the user who unpacked it, so set-user-id bits would let other users act as that user. They are
removed; the record has the original modes, which are part of the digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

from pydantic import Field, ValidationError

from ..errors import ImageError, SandboxError, UsageError, writing
from ..files import cache_folder, exclusive, flush
from .daemon import Progress, find_program, silent, tail
from .image import (
    CONTENT_LABEL,
    Content,
    checked_content,
    connected,
    content_program,
    find_image,
    image_tag,
    new_file,
    require_own,
)
from .userns import as_builder, bubblewrap, open_full, why_not_ranged

VARIABLE = "RTL_GYM_ROOTS"
"""The environment variable with the folder of all roots."""
RECORD = "image.json"
SIF = "root.sif"
"""Apptainer's image file, which is used in place of the folder beside it."""
_DELETED, _EMPTIED = ".wh.", ".wh..wh..opq"
"""How the names of a layer's entries begin that delete a file, or all earlier files of a folder."""
_SCRATCH = (".unpacking-", ".building-")
"""How the names of incomplete folders begin."""
SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
UNCHANGED = "/mnt"
"""Where a program of `run_in` finds the root's original files; Apptainer adds lines to some of those at ``/``."""
ISOLATION = (
    "--userns",  # even if Apptainer is installed with set-user-id
    "--containall",  # PID and IPC namespaces; no files, devices and variables of the machine
    "--no-home",
    "--no-mount",
    "home,cwd,tmp,sys,hostfs,bind-paths",  # everything that the machine's configuration mounts
    "--cleanenv",
    "--no-eval",
    "--no-privs",
    "--uts",
    "--net",
    "--network",
    "none",
    "--no-init",  # the warden is process 1
    "--no-umask",
    "--writable-tmpfs",  # to create the folders in memory; the warden makes the root read-only
    "--pwd",
    "/",
)
"""Options of ``apptainer exec``. ``--security`` is for root only; the warden has its own filter."""
_KEPT = ("HOME", "PATH", "TMPDIR", "USER")
"""The variables that Apptainer itself gets. Others, such as APPTAINER_BIND, could override the options."""


class Root(Content):
    """An unpacked image."""

    tag: str
    """The image's name, which identifies what it was built from."""
    environment: dict[str, str]
    modes: dict[str, int]
    """The original modes of files whose set-user-id and set-group-id bits were removed, by path."""
    extent: tuple[int, int] | None = None
    """Its `extent_of` when it was complete; None in records of earlier versions."""
    folder: Path = Field(default=Path(), exclude=True)
    """Its path, the root of sandboxes. Not part of the record."""


def roots_folder() -> Path:
    """The folder of all roots."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    return cache_folder("roots")


def root_place() -> Path:
    """The folder of this version's root and its record."""
    return roots_folder() / image_tag().rpartition(":")[2]


def find_root() -> Root:
    """The root of this version's image, as from `find_built`. Raises `ImageError` if it is not unpacked or built."""
    place = root_place()
    if (root := find_built(place)) is None:
        lacks = "damaged" if (place / RECORD).exists() else "not"
        raise ImageError(
            f"the simulation image {image_tag()} is {lacks} in {place}; build it with: rtl-agent-gym image build "
            "--sandbox namespaces, unpack one with: rtl-agent-gym image unpack, or set the folder with the image in "
            f"{VARIABLE}"
        )
    return root


def find_built(place: Path) -> Root | None:
    """The root in a folder; None if there is none or it is damaged, for example by a loss of power.

    It is damaged if its record is, or if files are missing or cut off, as after an interrupted copy or when a machine
    deletes files that nobody has read for weeks. Otherwise right designs would fail and their verdicts be cached.
    A process counts the files of a root once.

    `prune` does not remove it while this process runs. Raises `ImageError` if it cannot be read.
    """
    try:
        found = Root.model_validate_json(held(place / RECORD)).model_copy(update={"folder": place / "root"})
        if found.extent is not None and (place, found.digest) not in _complete and not (place / SIF).is_file():
            if extent_of(found.folder) != found.extent:
                return None
            _complete.add((place, found.digest))
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    except OSError as error:
        raise ImageError(f"{error.filename or place} cannot be read: {error.strerror}") from error
    return found


def extent_of(root: Path) -> tuple[int, int]:
    """The number of files and folders of a root, and the bytes of its files, as any user of the machine sees them."""
    count = size = 0
    folders = [str(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                count += 1
                found = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    size += found.st_size
                elif found.st_mode & 0o005 == 0o005:  # others are empty for users who cannot read them
                    folders.append(entry.path)
    return count, size


def require_unchanged(root: Root) -> None:
    """Raise `ImageError` if a root has been removed or replaced since it was found."""
    place = root.folder.parent
    with contextlib.suppress(OSError, ValidationError):
        if Root.model_validate_json((place / RECORD).read_bytes()).digest == root.digest:
            return
    raise ImageError(
        f"the image in {place} was replaced or removed while this process used it; start the process again"
    )


_complete: set[tuple[Path, str]] = set()
"""The roots whose files this process has counted, by folder and digest."""
_records: dict[Path, int] = {}
"""Locked descriptors of the records of roots that this process uses; `prune` keeps locked roots."""


def held(record: Path) -> bytes:
    """Read a record, and hold a shared lock on it until this process ends."""
    content, known = record.read_bytes(), _records.get(record)
    if known is not None and not os.path.samestat(os.fstat(known), record.stat()):  # it was built again
        os.close(_records.pop(record))
        known = None
    if known is None:
        _records[record] = known = os.open(record, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(known, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return content


def unpack(source: Path | None = None, progress: Progress = silent, *, digest: str | None = None) -> Root:
    """Unpack the simulation image, unless that has been done.

    Args:
        source: A file from ``image save``, ``docker save`` or ``image export``; None for the Docker daemon's image, or
            the root that has been unpacked.
        digest: The required digest of its content; None for what its build recorded. As for `image.load_image`, it
            does not protect from a malicious image.

    Raises:
        ImageError: There is no such image, or it was changed after its build.
        UsageError: The file cannot be read, or the folder cannot be written or has other content than the file.
        DaemonError: No daemon answers.
    """
    place, unpacked = root_place(), False
    if find_built(place) is None:
        with locked(progress):
            if find_built(place) is None:  # no other process has just unpacked it
                with in_scratch(".unpacking-", place) as scratch:
                    progress(f"unpacking {image_tag()} into {place}")
                    tree = _Tree(scratch / "root")
                    environment, recorded = _from_docker(tree) if source is None else _from_file(source, tree)
                    tree.finish()
                    wanted = digest or recorded
                    record(scratch, environment, tree.modes, wanted, str(source or "the daemon"), progress)
                unpacked = True
    root = find_root()
    if source is not None and not unpacked:
        progress(f"comparing {source} with {place}, which has been unpacked before")
        _, recorded = _from_file(source, None)
        if root.digest != (found := digest if digest not in (None, root.digest) else recorded or digest):
            raise UsageError(
                f"{source} is not unpacked: {place} has the image already, with the content {root.digest}, not "
                f"{found or 'known to be the same'}; to replace it, remove that folder (chmod -R u+w, then rm -rf) "
                f"while no process uses it, or name another folder in {VARIABLE}"
            )
    return _checked(root, digest, str(place))


def record(
    scratch: Path,
    environment: dict[str, str],
    modes: dict[str, int],
    digest: str | None,
    source: str,
    progress: Progress,
) -> Root:
    """Write the record of a complete root, which is the folder `root` of `scratch`; see `Root` for the other values.

    Raises `ImageError`, which names the `source`, if its content does not have the `digest`, unless that is None.
    """
    progress("computing the digest of its content")
    content = _read(scratch / "root", modes)
    extent = extent_of(scratch / "root")
    root = Root(**content.model_dump(), tag=image_tag(), environment=environment, modes=modes, extent=extent)
    _checked(root, digest, source)
    (scratch / RECORD).write_text(root.model_dump_json(indent=1), encoding="utf-8")
    return root


def _checked(root: Root, digest: str | None, source: str) -> Root:
    if digest not in (None, root.digest):
        raise ImageError(f"the image from {source} is refused: its content is {root.digest}, not {digest}")
    return root


@contextlib.contextmanager
def locked(progress: Progress, folder: Path | None = None) -> Iterator[list[str]]:
    """Let one process at a time write into a folder of roots. Removes leftovers of killed ones, and yields their paths.

    The default of `folder` is `roots_folder()`. Raises `UsageError` if it cannot be written.
    """
    folder = folder or roots_folder()
    with writing("the root folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive("root", progress, folder / ".lock") as shared:  # otherwise another machine may write there
            left = [path for prefix in _SCRATCH for path in folder.glob(f"{prefix}*")] if shared else []
            yield [str(path) for path in left if remove_unused(path)]


def remove_unused(folder: Path) -> bool:
    """Remove a root, complete or not, unless a process uses it; return whether it is gone."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / RECORD).open("r+b"))  # on NFS, an exclusive lock needs write access
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:  # incomplete
            pass
        except OSError:  # it is another user's or in use, or the file system has no locks
            return False
        if not folder.name.startswith(_SCRATCH):  # so that the rest is a leftover if this is killed
            folder = folder.rename(folder.with_name(f"{_SCRATCH[0]}{folder.name}"))
        remove_tree(folder)
    return not folder.exists()


@contextlib.contextmanager
def in_scratch(prefix: str, place: Path) -> Iterator[Path]:
    """A new folder that becomes `place` at the end of the context, or is removed if there is an error.

    It replaces an existing `place`, which stays as a leftover while a process uses it.
    """
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
    earlier = scratch.with_name(f"{scratch.name}-old")
    try:
        yield scratch
        scratch.chmod(0o755)
        flush(scratch)  # otherwise a loss of power could leave empty files below the new name
        if place.exists():
            place.rename(earlier)
        os.rename(scratch, place)
    finally:
        remove_tree(scratch)
    if earlier.exists():
        held(place / RECORD)  # which releases this process's lock on the earlier one
        remove_unused(earlier)


def prune() -> list[str]:
    """Remove the roots of other versions that no process uses, and leftovers. Returns what was removed."""
    if not roots_folder().is_dir():
        return []
    with locked(silent) as removed:
        for path in sorted(roots_folder().glob(f"*/{RECORD}")):
            with contextlib.suppress(OSError, ValidationError):
                if Root.model_validate_json(path.read_bytes()).tag != image_tag() and remove_unused(path.parent):
                    removed.append(str(path.parent))
    return removed


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if it has write-protected folders or files of a build's other users."""
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and not why_not_ranged():
        with contextlib.closing(open_full()) as users:
            words = [*as_builder(users, network=False), "--bind", "/", "/", "--", "rm", "-rf", "--", str(folder)]
            subprocess.run(words, pass_fds=(users.descriptor,), capture_output=True, check=False)


class _Tree:
    """Writes files below a folder, layer by layer, as this user's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modes: dict[str, int] = {}
        self._folders: dict[str, int] = {}
        """Modes of folders, set at the end, since some do not let their owner write."""
        root.mkdir()

    def add(self, archive: tarfile.TarFile) -> None:
        """Write the entries of a layer, which may delete earlier ones."""
        for entry in archive:
            path = self._inside(entry.name)
            if path is None:
                continue
            if path.name == _EMPTIED:
                for child in path.parent.iterdir():
                    _delete(child)
            elif path.name.startswith(_DELETED):
                _delete(path.with_name(path.name.removeprefix(_DELETED)))
            else:
                self._write(archive, entry, path)

    def _inside(self, name: str) -> Path | None:
        parts = PurePosixPath(name.lstrip("/")).parts
        if ".." in parts:
            raise ImageError(f"the image has a file outside of its root: {name}")
        path = self.root.joinpath(*parts)
        for parent in path.relative_to(self.root).parents:
            if (self.root / parent).is_symlink():
                raise ImageError(f"the image has a file below a link: {name}")
        return path if parts else None

    def _write(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
        if not (entry.isdir() and path.is_dir() and not path.is_symlink()):
            _delete(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        inside = f"/{path.relative_to(self.root).as_posix()}"
        self.modes.pop(inside, None)
        if entry.isdir():
            path.mkdir(exist_ok=True)
            self._folders[inside] = entry.mode
            return
        if entry.issym():
            path.symlink_to(entry.linkname)
            return
        if entry.islnk():
            target = self._inside(entry.linkname)
            if target is None or target.is_symlink():
                raise ImageError(f"the image has a hard link to {entry.linkname}")
            os.link(target, path)
            inherited = self.modes.get(f"/{target.relative_to(self.root).as_posix()}")
            if inherited is not None:
                self.modes[inside] = inherited
            return
        if not entry.isfile():
            return  # a device, which only root could make; a sandbox has its own
        content = cast(IO[bytes], archive.extractfile(entry))
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        self._set_mode(path, inside, entry.mode)

    def _set_mode(self, path: Path, inside: str, mode: int) -> None:
        if mode & SPECIAL_BITS:
            self.modes[inside] = mode
        path.chmod(mode & ~SPECIAL_BITS)

    def finish(self) -> None:
        """Set the folders' modes. In a sandbox with one user, the root's files belong to that user."""
        self.root.chmod(0o755)
        for inside in sorted(self._folders, reverse=True):
            path = self.root / inside.lstrip("/")
            if path.is_dir() and not path.is_symlink():
                self._set_mode(path, inside, self._folders[inside])


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _from_docker(tree: _Tree) -> tuple[dict[str, str], str | None]:
    """Write the files of the daemon's image; returns what `_from_file` does."""
    archive = tree.root.with_name("image.tar")
    with connected() as client:
        checked_content(client, find_image(client))
        with new_file(archive) as new, new.open("wb") as file:
            file.writelines(client.api.get_image(image_tag()))
    found = _from_file(archive, tree)
    archive.unlink()
    return found


def _from_file(source: Path, tree: _Tree | None) -> tuple[dict[str, str], str | None]:
    """Write the files of an image that ``docker save`` or ``image export`` wrote.

    Returns its environment, and the digest of the content that its build recorded. Without a tree, it writes nothing.
    """
    scratch = None if tree is None else tree.root.parent
    try:
        with source.open("rb") as file, tempfile.TemporaryFile(dir=scratch) as unpacked:
            kind = file.read(4)
            file.seek(0)
            if kind == b"hsqs":
                return _from_squashfs(source, tree)
            if packed := tree is not None and kind.startswith(b"\x1f\x8b"):
                shutil.copyfileobj(gzip.GzipFile(fileobj=file), unpacked, 1 << 20)
                unpacked.seek(0)
            with tarfile.open(fileobj=unpacked if packed else file, mode="r:*") as archive:
                manifest = json.load(cast(IO[bytes], archive.extractfile("manifest.json")))
                names = {tag: one for one in manifest for tag in one.get("RepoTags") or []}
                image = names[require_own(names, source)]
                if tree is not None:
                    for layer in image["Layers"]:
                        with tarfile.open(fileobj=archive.extractfile(layer), mode="r:*") as one:
                            tree.add(one)
                config = dict(json.load(cast(IO[bytes], archive.extractfile(image["Config"])))["config"])
                environment = dict(text.split("=", 1) for text in config.get("Env") or [])
                return environment, (config.get("Labels") or {}).get(CONTENT_LABEL)
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        reason = str(error).partition(":\n")[0]  # tarfile's error has a line for each kind of compression
        raise UsageError(f"{source} is not a file of `rtl-agent-gym image save`: {reason}") from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UsageError(f"cannot read the image in {source}: {error}") from error


def _from_squashfs(source: Path, tree: _Tree | None) -> tuple[dict[str, str], str | None]:
    """Unpack a root that `root_image.export_root` wrote. Returns and reads what `_from_file` does."""
    if (program := find_program("unsquashfs")) is None:
        raise SandboxError(f"unpacking {source} needs unsquashfs; install the package squashfs-tools (Debian, Ubuntu)")
    name = root_place().name
    with tempfile.TemporaryDirectory(dir=None if tree is None else tree.root.parent) as folder:
        there = Path(folder, "squashfs")
        wanted = f"{name}/{RECORD}" if tree is None else name
        words = [program, "-no-progress", "-quiet", "-dest", str(there), str(source), wanted]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        try:
            known = Root.model_validate_json((there / name / RECORD).read_bytes())
            folders = () if tree is None else (there / name, there / name / "root")
            if not all(stat.S_ISDIR(path.lstat().st_mode) for path in folders):  # a link would lead out of the image
                raise ImageError(f"{source} contains no root of {image_tag()}: a link is in its place")
        except (OSError, ValidationError) as error:
            said = tail((done.stdout + done.stderr).splitlines())
            raise ImageError(f"{source} contains no root of {image_tag()}:\n{said}") from error
        if tree is not None:
            tree.root.rmdir()
            (there / name / "root").rename(tree.root)
            tree.modes |= known.modes
    return known.environment, known.digest


def require_recorded(root: Root) -> None:
    """Raise `ImageError` if the content of a root does not have its digest. Reads all files, which takes seconds."""
    if (found := _read(root.folder, root.modes).digest) != root.digest:
        raise ImageError(
            f"the image in {root.folder.parent} is damaged: its content is {found}, not {root.digest}; build it again "
            "with: rtl-agent-gym image build --sandbox namespaces --no-cache, or unpack it into another folder"
        )


def _read(root: Path, modes: dict[str, int]) -> Content:
    """The content of a root, read by its own Python."""
    found = run_in(root, ["/usr/bin/python3", "-ISBc", content_program(), json.dumps(modes), UNCHANGED])
    if found.returncode or (content := Content.printed(found.stdout)) is None:
        raise SandboxError(f"the content of the root folder cannot be read:\n{tail(found.stderr.splitlines())}")
    return content


def apptainer() -> str:
    """The path of Apptainer's program. Raises `SandboxError` if it is not installed, or must not be used."""
    if (found := shutil.which("apptainer")) is None:
        raise SandboxError("the program apptainer is not installed")
    if os.geteuid() == 0:
        raise SandboxError(
            "with Apptainer, root's processes would not be limited in number; run as another user, or use namespaces"
        )
    return found


def apptainer_exec(image: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """The first words of a command in Apptainer, and Apptainer's own environment. Raises as `apptainer` does."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return [apptainer(), "exec", *ISOLATION, *options, str(image)], environment


def run_in(
    root: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of a root, which is read-only, with only these variables.

    Raises `SandboxError` if neither Bubblewrap nor Apptainer is installed.
    """
    own, variables = dict[str, str](), (environment or {}).items()
    if shutil.which("bwrap") is None and shutil.which("apptainer") is not None:
        words, own = apptainer_exec(root, "--scratch", "/tmp", "--bind", f"{root}:{UNCHANGED}:ro")
        words += ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables)]
    else:
        words = [bubblewrap(), "--unshare-all", "--die-with-parent", "--new-session"]
        words += ["--ro-bind", str(root), "/", "--ro-bind", str(root), UNCHANGED]
        words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
        words += [word for name, value in variables for word in ("--setenv", name, value)] + ["--"]
    return subprocess.run([*words, *command], env=own, capture_output=True, text=True, stdin=subprocess.DEVNULL)
