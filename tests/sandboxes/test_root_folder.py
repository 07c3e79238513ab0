"""The simulation image as a folder."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from rtl_agent_gym.errors import ImageError, SandboxError, UsageError
from rtl_agent_gym.files import flush
from rtl_agent_gym.sandboxes import image, root_folder
from rtl_agent_gym.sandboxes.daemon import docker_errors
from rtl_agent_gym.sandboxes.root_build import build_root
from rtl_agent_gym.sandboxes.root_folder import RECORD, SIF, Root, find_built, find_root, remove_tree, unpack

Entry = tuple[str, bytes | str | None, int]
"""Path; content, the target of a link, or None for a folder; mode."""


class Hard(str):
    """The target of a hard link."""


def layer(*entries: Entry) -> bytes:
    """A tar archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content, mode in entries:
            entry = tarfile.TarInfo(path)
            entry.mode = mode
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                entry.type = tarfile.LNKTYPE if isinstance(content, Hard) else tarfile.SYMTYPE
                entry.linkname = content
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content if isinstance(content, bytes) else b""))
    return archive.getvalue()


def saved(path: Path, *layers: bytes, tag: str | None = None) -> Path:
    """A file as ``docker save`` writes it."""
    config = {"config": {"Env": ["PATH=/bin", "A=b=c"], "Labels": None}}
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [tag or image.image_tag()], "Layers": names}]
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    files |= dict(zip(names, layers, strict=True))
    path.write_bytes(layer(*((name, data, 0o644) for name, data in files.items())))
    return path


def test_a_relative_folder_is_one_of_this_folder(roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(root_folder.VARIABLE, "roots")
    made = unpack(saved(tmp_path / "image.tar", layer(("a", b"1", 0o644))))
    assert made.folder == roots / image.image_tag().rpartition(":")[2] / "root"


def tree(root: Path) -> dict[str, str]:
    """What is below a folder: kinds, modes, contents."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        what = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text()
        found[path.relative_to(root).as_posix()] = f"{stat.filemode(mode)[:10]} {what}"
    return found


def test_layers_replace_and_delete(roots: Path, tmp_path: Path) -> None:
    first = layer(
        ("etc", None, 0o755), ("etc/a", b"1", 0o644), ("etc/b", b"1", 0o644), ("old", None, 0o755),
        ("old/x", b"1", 0o644), ("bin", "usr/bin", 0o777), ("kind", None, 0o755), ("closed", None, 0o555),
        ("closed/x", b"1", 0o400), ("su", b"root's", 0o4755),
    )  # fmt: skip
    second = layer(
        ("etc/.wh.a", b"", 0o644), ("etc/b", b"2", 0o600), ("old/.wh..wh..opq", b"", 0o644), ("old/y", b"2", 0o644),
        ("kind", b"now a file", 0o644),
    )  # fmt: skip
    made = unpack(saved(tmp_path / "image.tar", first, second))
    assert tree(made.folder) == {
        "bin": "lrwxrwxrwx usr/bin",
        "closed": "dr-xr-xr-x ",
        "closed/x": "-r-------- 1",
        "etc": "drwxr-xr-x ",
        "etc/b": "-rw------- 2",
        "kind": "-rw-r--r-- now a file",
        "old": "drwxr-xr-x ",
        "old/y": "-rw-r--r-- 2",
        "su": "-rwxr-xr-x root's",  # nobody who runs it becomes the owner of this folder
    }
    assert made.modes == {"/su": 0o4755}
    assert made.environment == {"PATH": "/bin", "A": "b=c"}
    assert find_root() == made
    assert unpack() == made  # it is there
    assert unpack(tmp_path / "image.tar", digest="sha256:1") == made
    for file, digest, message in (
        ("image.tar", None, "has the image already, with the content sha256:1, not known to be the same; to replace"),
        ("nowhere", None, "cannot read the image"),
        ("nowhere", "sha256:1", "cannot read the image"),
    ):
        with pytest.raises(UsageError, match=message):
            unpack(tmp_path / file, digest=digest)
    with pytest.raises(ImageError, match="is refused"):
        unpack(digest="sha256:2")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("../x", b"", 0o644)], "outside of its root"),
        ([("etc", "/etc", 0o777), ("etc/x", b"", 0o644)], "below a link"),
        ([("x", Hard("../secret"), 0o644)], "outside of its root"),
        ([("folder", "/nowhere", 0o777), ("x", Hard("folder/secret"), 0o644)], "below a link"),
        ([("link", "/nowhere", 0o777), ("x", Hard("link"), 0o644)], "has a hard link to link"),
    ],
)
def test_nothing_is_written_elsewhere(roots: Path, tmp_path: Path, entries: list[Entry], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        unpack(saved(tmp_path / "image.tar", layer(*entries)))
    assert os.listdir(roots) == [".lock"]


@pytest.mark.parametrize(
    "script",
    [
        'ln -s "{outside}" "$4/$6"',
        'mkdir "$4/$6"; cp "{outside}/image.json" "$4/$6"; ln -s "{outside}/root" "$4/$6/root"',
    ],
    ids=["version", "root"],
)
def test_a_squashfs_whose_root_is_a_link_changes_nothing_elsewhere(
    script: str, roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, program = tmp_path / "outside", tmp_path / "unsquashfs"
    (outside / "root").mkdir(parents=True, mode=0o700)
    known = Root(digest="sha256:1", packages={}, tag=image.image_tag(), environment={}, modes={})
    (outside / RECORD).write_text(known.model_dump_json())
    program.write_text(f'#!/bin/sh\nmkdir "$4"; {script.format(outside=outside)}\n')
    program.chmod(0o755)
    monkeypatch.setattr(root_folder, "find_program", lambda _: str(program))
    (tmp_path / "image.sqsh").write_bytes(b"hsqs")
    with pytest.raises(ImageError, match="contains no root"):
        unpack(tmp_path / "image.sqsh")
    assert stat.filemode((outside / "root").stat().st_mode) == "drwx------"
    assert os.listdir(roots) == [".lock"]


def test_another_image_is_refused(roots: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="contains other:1; this version needs"):
        unpack(saved(tmp_path / "image.tar", layer(), tag="other:1"))
    (tmp_path / "text").write_text("no image")
    with pytest.raises(UsageError, match=r"is not a file of [^\n]*\Z"):  # one line
        unpack(tmp_path / "text")
    with pytest.raises(UsageError, match="cannot read the image"):
        unpack(tmp_path / "nowhere")
    assert os.listdir(roots) == [".lock"]
    with pytest.raises(ImageError, match="image unpack"):
        find_root()


@pytest.mark.parametrize("where", ["download", "layers"])
def test_a_full_disk_is_no_missing_daemon(
    where: str, roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> list[bytes]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def connected() -> Iterator[SimpleNamespace]:
        with docker_errors():
            yield SimpleNamespace(api=SimpleNamespace(get_image=full if where == "download" else lambda _: [content]))

    content = saved(tmp_path / "image.tar", layer(("a", b"1", 0o644))).read_bytes()
    monkeypatch.setattr(root_folder, "connected", connected)
    monkeypatch.setattr(root_folder, "find_image", lambda _: "sha256:2")
    monkeypatch.setattr(root_folder, "checked_content", lambda *_: None)
    if where == "layers":
        monkeypatch.setattr(root_folder._Tree, "add", full)
    with pytest.raises(SandboxError, match=r"^the (image|root folder): .* cannot be written: No space left on device"):
        unpack()


@pytest.fixture
def base(roots: Path, tmp_path: Path) -> Root:
    """A small root, with a link to a folder outside of it."""
    (tmp_path / "outside").mkdir()
    return unpack(saved(tmp_path / "image.tar", layer(("code", None, 0o755), ("x", f"{tmp_path}/outside", 0o777))))


def built(base: Root, steps: str, **files: bytes) -> Root:
    """A harness's root."""
    return build_root(base, {**files, "Dockerfile": f"FROM {base.digest}\n{steps}".encode()}, "Dockerfile")


def test_what_is_in_a_folder_that_cannot_be_written_is_used(base: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(folder: Path) -> bool:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    made = built(base, "")
    monkeypatch.setattr("rtl_agent_gym.files._has_locks", read_only)
    assert built(base, "") == made
    with pytest.raises(ImageError, match="cannot be written: Read-only file system"):
        built(base, "ENV A=1")


def test_what_is_damaged_is_replaced(base: Root, roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, seen = [base.folder.parent, built(base, "").folder.parent], list[bool]()

    def flushed(folder: Path) -> None:
        seen.append(any(path.name.endswith("-old") for path in roots.iterdir()))
        flush(folder)

    monkeypatch.setattr("rtl_agent_gym.sandboxes.root_folder.flush", flushed)
    for place in places:
        (place / RECORD).write_bytes(b"")  # as a loss of power may leave it
    with pytest.raises(ImageError, match=r"is damaged in .*rtl-agent-gym image unpack"):
        find_root()
    assert unpack(tmp_path / "image.tar") == base
    assert built(base, "").folder.parent == places[1]
    assert {path.name for path in roots.iterdir()} == {*(place.name for place in places), ".lock"}
    assert seen == [False, False], "the new files are not on the disk before they have their name"


@pytest.mark.parametrize("harness", [False, True])
@pytest.mark.parametrize("damage", [Path.unlink, Path.write_bytes])
def test_a_root_whose_files_are_missing_or_cut_off_is_damaged(
    damage: Callable[..., object], harness: bool, roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an interrupted copy: otherwise right designs would fail, and their verdicts be cached."""
    tool: Entry = ("bin/tool", b"#!", 0o755)
    file = saved(tmp_path / "image.tar", layer(("bin", None, 0o755), tool, ("own", None, 0o700), ("own/a", b"", 0o600)))
    base = unpack(file)
    root = built(base, "COPY tool /code/", tool=b"#!") if harness else base
    place = root.folder / ("code/tool" if harness else "bin/tool")
    (root.folder / "own/a").write_bytes(b"other users, who cannot see this, count the same")
    monkeypatch.setattr(root_folder, "_complete", set())  # as in another process
    assert find_built(root.folder.parent) == root
    damage(place, *([b""] if damage is Path.write_bytes else []))
    assert find_built(root.folder.parent) == root, "a process counts them once"
    monkeypatch.setattr(root_folder, "_complete", set())
    if harness:
        assert built(base, "COPY tool /code/", tool=b"#!").folder == root.folder
    else:
        with pytest.raises(ImageError, match=r"is damaged in .*rtl-agent-gym image unpack"):
            find_root()
        unpack(file)
    assert place.read_bytes() == b"#!"
    os.truncate(place, 1)
    monkeypatch.setattr(root_folder, "_complete", set())
    (root.folder.parent / SIF).touch()  # Apptainer uses this file instead
    assert find_built(root.folder.parent) == root


def test_without_bubblewrap_nothing_is_copied_for_a_step(
    base: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # in which there is no program `cp` either
    with pytest.raises(ImageError, match="install the package bubblewrap"):
        built(base, "RUN true")


def test_files_are_copied_as_docker_does(base: Root, tmp_path: Path) -> None:
    made = built(base, "COPY f /code\nCOPY f /new/g", f=b"text")
    assert (made.folder / "code/f").read_text() == (made.folder / "new/g").read_text() == "text"
    with pytest.raises(ImageError, match="/x/new/f is behind a link"):
        built(base, "COPY f /x/new/f", f=b"text")
    assert not os.listdir(tmp_path / "outside")


@pytest.mark.daemon
def test_the_digest_is_that_of_dockers_image(root_folder: Path) -> None:
    found = find_root()
    assert found.digest == image.inspect()["digest"]
    assert found.folder == root_folder
    assert found.environment["PATH"].startswith("/venv/bin:")
    assert len(found.packages) > 50


STEPS = """\
# A comment.
FROM {base}
RUN pwd > /opt/first
ENV ONE=1 TWO="two words"
ENV PATH="/opt/mine:$PATH" BASE=/opt
WORKDIR ${{BASE}}/made
RUN mkdir -p /opt/made/below && \\
    echo "$ONE $TWO" > below/a && cp below/a /usr/bin/changed
COPY src/word more/ ./
COPY . /all
COPY src/word /tmp/word
RUN cp /tmp/word /opt/kept && echo left > /tmp/left
RUN cp /tmp/left /opt/left
"""
FILES = {"src/word": b"word", "more/x/y": b"y"}


@pytest.mark.docker
@pytest.mark.slow  # copies the root; that a file is added to it is also in test_contract.py
async def test_the_steps_of_a_harness(root_folder: Path, tmp_path: Path) -> None:
    base = find_root()
    files = {**FILES, "Dockerfile": STEPS.format(base=base.digest).encode()}
    made = build_root(base, files, "Dockerfile")
    try:
        assert build_root(base, files, "Dockerfile") == made
        assert made.digest != base.digest
        assert made.environment["TWO"] == "two words"
        assert made.environment["PATH"] == f"/opt/mine:{base.environment['PATH']}"
        for path, content in {
            "opt/first": "/code\n",
            "opt/made/below/a": "1 two words\n", "usr/bin/changed": "1 two words\n", "opt/made/word": "word",
            "opt/kept": "word", "opt/left": "left\n",
            "all/src/word": "word", "all/more/x/y": "y",
        }.items():  # fmt: skip
            assert (made.folder / path).read_text() == content
            assert not (base.folder / path).exists()
    finally:
        remove_tree(made.folder.parent)


@pytest.mark.docker
@pytest.mark.slow  # each copies the root
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("RUN exit 3", "exit status 3"),
        ("RUN /venv/bin/python -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'", "without a network"),
        ("RUN cat {outside}", "No such file"),
        ("RUN ln -s {outside} /x\nCOPY src/word /x/word", "behind a link"),
        ("RUN ln -s {outside}/secret /x\nCOPY src/word /x", "behind a link"),
        ("COPY ../secret /x", "not found"),
        ("ADD https://example.com/x /x", "named files and folders"),
        ("FROM debian", "one stage on the simulation image"),
        ("USER nobody", "cannot use USER"),
    ],
)
async def test_a_step_that_cannot_be_made_is_an_error(
    root_folder: Path, tmp_path: Path, steps: str, message: str
) -> None:
    base = find_root()
    (tmp_path / "secret").write_text("secret")
    text = f"FROM {base.digest}\n" + steps.replace("{outside}", str(tmp_path))
    before = set(os.listdir(root_folder.parents[1]))
    with pytest.raises(ImageError, match=message):
        build_root(base, {**FILES, "Dockerfile": text.encode()}, "Dockerfile")
    assert set(os.listdir(root_folder.parents[1])) == before
    assert os.listdir(tmp_path) == ["secret"]
    assert (tmp_path / "secret").read_text() == "secret"
