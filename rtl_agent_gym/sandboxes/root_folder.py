"""The simulation image as a folder: the root of sandboxes without a daemon.

`unpack` writes it once for each version of the image, from a Docker daemon or from a file that ``rtl-agent-gym image
save`` or ``docker save`` wrote. The variable RTL_GYM_ROOTS names the folder for all versions, for example on a disk
that several machines share. Beside each root lies a record with the digest of its content, which is computed from what
was written and is the same as in Docker.

A root belongs to the user who unpacked it, so set-user-id bits would let its other readers act as that user. They are
left out; the record has the modes, which count for the digest.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from pydantic import ValidationError

from ..errors import ImageError, SandboxError, UsageError, cannot_write
from . import image_program
from .client import OWNER_LABEL, owner_label
from .daemon import Progress, exclusive, silent, tail
from .image import CONTENT_LABEL, Content, checked_content, connected, find_image, image_tag
from .userns import bubblewrap

VARIABLE = "RTL_GYM_ROOTS"
"""The environment variable with the folder of all roots."""
RECORD = "image.json"
_DELETED, _EMPTIED = ".wh.", ".wh..wh..opq"
"""What the names of a layer's entries begin with that delete a file, or all earlier ones of a folder."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID


class Root(Content):
    """An unpacked image."""

    tag: str
    """The image's name, which identifies what it was built from."""
    environment: dict[str, str]
    """The image's environment variables."""
    modes: dict[str, int]
    """The modes of files whose set-user-id and set-group-id bits were left out, by path."""
    folder: Path = Path()
    """Where it is: the root of a sandbox."""

    @property
    def id(self) -> str:
        """What identifies it, as the id of a Docker image does."""
        return self.digest


def roots_folder() -> Path:
    """The folder of all roots."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / "roots"


def _place() -> Path:
    return roots_folder() / image_tag().rpartition(":")[2]


def find_root() -> Root:
    """The root of this version's image. Raises `ImageError` if it has not been unpacked."""
    place = _place()
    try:
        root = Root.model_validate_json((place / RECORD).read_bytes())
    except FileNotFoundError as error:
        raise ImageError(
            f"the simulation image {image_tag()} is not unpacked in {place}; unpack it with: rtl-agent-gym image "
            f"unpack, or name the folder of an unpacked one in {VARIABLE}"
        ) from error
    except (OSError, ValidationError) as error:
        raise ImageError(f"{place / RECORD} cannot be read: {error}; unpack the image again") from error
    return root.model_copy(update={"folder": place / "root"})


def unpack(source: Path | None = None, progress: Progress = silent, *, digest: str | None = None) -> Root:
    """Unpack the simulation image, unless it has been.

    Args:
        source: A file of ``image save`` or ``docker save``; None for the image of the Docker daemon.
        progress: Called with one line per step.
        digest: Of the content that it must have; None for what its build recorded.

    Raises:
        ImageError: There is no such image, or it was changed after its build.
        UsageError: The file cannot be read, or the folder cannot be written.
        DaemonError: No daemon answers.
    """
    place = _place()
    with exclusive("root", progress):
        try:
            found = find_root()
        except ImageError:
            pass
        else:
            return _checked(found, digest, str(place))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=place.parent))
        except OSError as error:
            raise cannot_write("the root folder", place, error) from error
        try:
            progress(f"unpacking {image_tag()} into {place}")
            tree = _Tree(scratch / "root")
            config = _from_docker(tree) if source is None else _from_file(source, tree)
            tree.finish()
            progress("computing the digest of its content")
            content = _read(tree.root, tree.modes)
            environment = dict(text.split("=", 1) for text in config.get("Env") or [])
            root = Root(**content, tag=image_tag(), environment=environment, modes=tree.modes)
            recorded = (config.get("Labels") or {}).get(CONTENT_LABEL)
            _checked(root, digest or recorded, str(source or "the daemon"))
            (scratch / RECORD).write_text(root.model_dump_json(exclude={"folder"}, indent=1), encoding="utf-8")
            scratch.chmod(0o755)
            os.rename(scratch, place)
        except OSError as error:
            raise cannot_write("the root folder", place, error) from error
        finally:
            remove_tree(scratch)
    return find_root()


def _checked(root: Root, digest: str | None, source: str) -> Root:
    if digest not in (None, root.digest):
        raise ImageError(f"the image from {source} is refused: its content is {root.digest}, not {digest}")
    return root


def remove_tree(folder: Path) -> None:
    """Remove a folder, also folders in it that their owner may not change."""
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


class _Tree:
    """Files that are written below a folder, layer by layer, as their owner's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modes: dict[str, int] = {}
        self._folders: dict[str, int] = {}
        """Modes to be set at the end, since a folder may be one that its owner may not write to."""
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
        if mode & _SPECIAL_BITS:
            self.modes[inside] = mode
        path.chmod(mode & ~_SPECIAL_BITS)

    def finish(self) -> None:
        """Give the folders their modes. Sandboxes of one user see the root's files as that user's own."""
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


def _from_docker(tree: _Tree) -> dict[str, Any]:
    """Write the files of the daemon's image; return its configuration."""
    with connected() as client:
        api: Any = client.api
        image = find_image(client)
        checked_content(client, image)
        # Never started: a container is what the daemon can write out without its layers.
        container = api.create_container(image, command=["true"], labels={OWNER_LABEL: owner_label()})["Id"]
        try:
            with closing(api.export(container)) as pieces, _reader(pieces) as archive:
                tree.add(archive)
        except tarfile.TarError as error:
            raise ImageError(f"the daemon's archive of the image cannot be read: {error}") from error
        finally:
            api.remove_container(container, force=True)
        for name in ("/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab"):
            _delete(tree.root / name.lstrip("/"))  # what the daemon adds to a container
        return dict(api.inspect_image(image)["Config"])


@contextlib.contextmanager
def _reader(pieces: Iterable[bytes]) -> Iterator[tarfile.TarFile]:
    """A tar archive that arrives in pieces."""
    with tarfile.open(fileobj=cast(IO[bytes], _Pieces(pieces)), mode="r|") as archive:
        yield archive


class _Pieces:
    """The `read` of a file over pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), bytearray()

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        while len(self._rest) < size and (piece := next(self._pieces, None)) is not None:
            self._rest += piece
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return data


def _from_file(source: Path, tree: _Tree) -> dict[str, Any]:
    """Write the files of an image that ``docker save`` wrote; return its configuration."""
    try:
        with tempfile.TemporaryFile(dir=tree.root.parent) as unpacked:
            with source.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                shutil.copyfileobj(gzip.GzipFile(fileobj=file) if packed else file, cast(IO[bytes], unpacked), 1 << 20)
            unpacked.seek(0)
            with tarfile.open(fileobj=unpacked, mode="r:") as archive:
                manifest = json.load(cast(IO[bytes], archive.extractfile("manifest.json")))
                names = {tag.removeprefix("localhost/"): one for one in manifest for tag in one.get("RepoTags") or []}
                if image_tag() not in names:
                    found = ", ".join(names) or "an image without a name"
                    raise ImageError(f"{source} holds {found}; this version needs {image_tag()}")
                image = names[image_tag()]
                for layer in image["Layers"]:
                    with tarfile.open(fileobj=archive.extractfile(layer), mode="r:*") as one:
                        tree.add(one)
                return dict(json.load(cast(IO[bytes], archive.extractfile(image["Config"])))["config"])
    except (EOFError, zlib.error, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{source} is not a file of `rtl-agent-gym image save`: {error}") from error
    except FileNotFoundError as error:
        raise UsageError(f"cannot read the image in {source}: {error}") from error


def _read(root: Path, modes: dict[str, int]) -> dict[str, Any]:
    """The digest of a root's content and its packages, read by its own Python, as `Content` has them."""
    program = Path(image_program.__file__).read_text(encoding="utf-8")
    command = [
        bubblewrap(),
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--ro-bind",
        str(root),
    ]
    command += ["/", "--dev", "/dev", "--proc", "/proc", "--", "/usr/bin/python3", "-ISBc", program, json.dumps(modes)]
    found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    digest, *lines = found.stdout.splitlines() or [""]
    if found.returncode or not digest.startswith("sha256:"):
        raise SandboxError(f"the content of the root folder cannot be read:\n{tail(found.stderr.splitlines())}")
    return {"digest": digest, "packages": dict(line.split(" ", 1) for line in lines)}
