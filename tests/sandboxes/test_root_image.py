"""The simulation image without Docker: its build, its files for other machines, and what is left of killed runs."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ImageError, SandboxError, UsageError
from rtl_agent_gym.files import exclusive, open_lock
from rtl_agent_gym.sandboxes import image, image_build, root_folder, root_image, userns
from rtl_agent_gym.sandboxes.daemon import silent
from rtl_agent_gym.sandboxes.dockerfile import Instruction
from rtl_agent_gym.sandboxes.namespaces import NamespaceHost
from rtl_agent_gym.sandboxes.protocol import SandboxSpec
from rtl_agent_gym.sandboxes.root_build import RootSteps, StepRunner, build_root
from rtl_agent_gym.sandboxes.root_folder import RECORD, Root, find_built, find_root, prune, remove_tree, unpack
from rtl_agent_gym.sandboxes.userns import UserNamespace, why_not_ranged
from tests.sandboxes.test_root_folder import layer, saved, tree

squashfs = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="mksquashfs is not installed")


@pytest.fixture
def root(roots: Path, tmp_path: Path) -> Root:
    """A small root, as if it were the image's."""
    files = layer(
        ("etc", None, 0o755), ("etc/a", b"1", 0o600), ("bin", "usr/bin", 0o777), ("su", b"root's", 0o4755),
        ("closed", None, 0o555), ("closed/x", b"1", 0o400),
    )  # fmt: skip
    return unpack(saved(tmp_path / "image.tar", files))


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Be another machine, which has no root."""
    monkeypatch.setenv(root_folder.VARIABLE, str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("name", ["saved.tar.gz", pytest.param("saved.sqsh", marks=squashfs)])
def test_a_saved_root_is_unpacked_elsewhere(
    name: str, root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = tmp_path / name, root_image.save_root if name == "saved.tar.gz" else root_image.export_root
    assert write(file) in (root.digest, root)
    elsewhere(monkeypatch, tmp_path)
    there = unpack(file)
    assert there == unpack(file)  # the second time, only its digest is read
    assert there.folder != root.folder
    assert tree(there.folder) == tree(root.folder)
    assert (there.modes, there.environment) == (root.modes, root.environment) == ({"/su": 0o4755}, root.environment)
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / "nowhere" / name)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "image.tar", "roots", name}


def test_a_link_stays_one_and_so_does_a_pipe(root: Root, tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "saved.tar.gz")
    root_image.save_root(link)
    assert link.is_symlink()
    assert tarfile.is_tarfile(tmp_path / "saved.tar.gz")
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="pipe is not a regular file; choose another path"):
        root_image.save_root(pipe)
    assert pipe.is_fifo()


def test_another_content_does_not_replace_a_root_silently(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "saved.tar.gz"
    root_image.save_root(file)
    path = root.folder.parent / root_folder.RECORD
    path.write_text(path.read_text().replace("sha256:1", "sha256:2"))
    with pytest.raises(
        UsageError, match=r"saved\.tar\.gz is not unpacked: .*content sha256:2, not sha256:1; to replace"
    ):
        unpack(file)
    for digest in ("sha256:1", "sha256:3"):
        with pytest.raises(UsageError, match=f"content sha256:2, not {digest}"):
            unpack(file, digest=digest)
    assert find_root().digest == "sha256:2"


def test_a_root_with_other_content_than_its_digest_is_not_verified(root: Root) -> None:
    path = root.folder.parent / RECORD
    path.write_text(path.read_text().replace("sha256:1", "sha256:2"))
    with pytest.raises(ImageError, match="is damaged: its content is sha256:1, not sha256:2"):
        root_image.verify()


def test_the_archive_is_dockers_and_ocis(root: Root, tmp_path: Path) -> None:
    root_image.save_root(tmp_path / "saved.tar.gz")
    with tarfile.open(tmp_path / "saved.tar.gz") as archive:
        found = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
        layers = [name for name in found if name.startswith("blobs/")]
        assert all(hashlib.sha256(found[name]).hexdigest() == name.rpartition("/")[2] for name in layers)
        [docker], oci = json.loads(found["manifest.json"]), json.loads(found["index.json"])
        manifest = json.loads(found[f"blobs/sha256/{oci['manifests'][0]['digest'].removeprefix('sha256:')}"])
    assert docker["RepoTags"] == [image.image_tag()]
    assert docker["Config"].endswith(manifest["config"]["digest"].removeprefix("sha256:"))
    config = json.loads(found[docker["Config"]])
    assert config["config"]["Labels"][image.CONTENT_LABEL] == root.digest
    [packed] = docker["Layers"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{packed.rpartition('/')[2]}"]
    (tmp_path / "layer.tar").write_bytes(found[packed])
    with tarfile.open(tmp_path / "layer.tar") as archive:
        modes = {entry.name: (entry.mode, entry.uid, entry.gid) for entry in archive}
    assert modes["./su"] == (0o4755, 0, 0)


def test_an_exported_folder_is_one_of_roots(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root_image.export_root(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists already"):
        root_image.export_root(tmp_path / "elsewhere")
    elsewhere(monkeypatch, tmp_path)
    assert tree(find_root().folder) == tree(root.folder)


def test_an_export_holds_the_lock_of_its_target(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another process that takes the lock would remove it as a leftover."""
    taken, run = list[bool](), subprocess.run

    def copy(*given: Any, **options: Any) -> Any:
        with (tmp_path / "elsewhere/.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                taken.append(True)
        return run(*given, **options)

    monkeypatch.setattr(subprocess, "run", copy)
    root_image.export_root(tmp_path / "elsewhere")
    assert taken


def test_a_lock_of_another_user_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / ".lock", Path.open
    path.touch()

    def only_to_read(self: Path, mode: str = "r") -> Any:
        if mode != "r":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, mode)

    monkeypatch.setattr(Path, "open", only_to_read)
    with exclusive("root", silent, path), open_lock(path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


@squashfs
def test_a_squashfs_of_another_version_is_refused(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root_image.export_root(tmp_path / "image.sqsh")
    elsewhere(monkeypatch, tmp_path)
    monkeypatch.setattr(root_folder, "image_tag", lambda: "rtl-agent-gym/sim:other")
    with pytest.raises(ImageError, match="contains no root of rtl-agent-gym/sim:other"):
        unpack(tmp_path / "image.sqsh")


def test_what_killed_runs_left_is_removed_by_the_next(root: Root, tmp_path: Path, roots: Path) -> None:
    for name in (".unpacking-1", ".building-2"):
        (roots / name / "root/closed").mkdir(parents=True)
        (roots / name / "root/closed").chmod(0o500)
    remove_tree(root.folder.parent)
    unpack(tmp_path / "image.tar")
    assert {path.name for path in roots.iterdir()} == {root.folder.parent.name, ".lock"}


def test_prune_removes_other_versions_that_nothing_uses(root: Root, roots: Path) -> None:
    for name in ("old", "used", "harness-old"):
        other_version(root, roots / name)
    (roots / "notes").mkdir()
    assert find_built(roots / "used") is not None
    assert prune() == [str(roots / name) for name in ("harness-old", "old")]
    assert {path.name for path in roots.iterdir()} == {root.folder.parent.name, "used", "notes", ".lock"}


def test_prune_leaves_what_another_machine_may_be_unpacking(
    root: Root, roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (roots / ".building-1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("rtl_agent_gym.files._has_locks", lambda path: False)
        assert prune() == []
    assert prune() == [str(roots / ".building-1")]


def other_version(root: Root, place: Path) -> None:
    """Make a root of another version."""
    (place / "root").mkdir(parents=True)
    made = root.model_copy(update={"tag": "rtl-agent-gym/sim:old", "extent": (0, 0)})
    (place / RECORD).write_text(made.model_dump_json(exclude={"folder"}))


def test_locks_are_taken_as_nfs_grants_them(root: Root, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared ones of what is open for reading, exclusive ones of what is open for writing."""
    flock = fcntl.flock

    def of_nfs(file: Any, kind: int) -> None:
        refused = os.O_WRONLY if kind & fcntl.LOCK_SH else os.O_RDONLY
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == refused:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, kind)

    other_version(root, roots / "old")
    monkeypatch.setattr(fcntl, "flock", of_nfs)
    assert prune() == [str(roots / "old")]


def test_a_prune_that_is_killed_leaves_a_leftover(root: Root, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(folder: Path) -> None:
        (folder / RECORD).unlink()
        raise KeyboardInterrupt

    other_version(root, roots / "old")
    with monkeypatch.context() as patch:
        patch.setattr(root_folder, "remove_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune()
    assert not (roots / "old").exists()
    prune()
    assert {path.name for path in roots.iterdir()} == {root.folder.parent.name, ".lock"}


def test_a_root_that_is_built_again_stays_while_it_is_used(
    root: Root, roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(scratch: Path, progress: object) -> None:
        (scratch / "root").mkdir()
        (scratch / RECORD).write_text(root.model_dump_json())

    monkeypatch.setattr(root_image, "why_not_ranged", lambda: "")
    monkeypatch.setattr(root_image, "find_program", lambda name: name)
    monkeypatch.setattr(root_image, "KEYRING", roots)
    monkeypatch.setattr(root_image, "_build", build)
    known = {root.folder.parent.name, ".lock"}
    with (root.folder.parent / RECORD).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        root_image.build_image(rebuild=True)
        [used] = {path.name for path in roots.iterdir()} - known
        root_image.build_image(rebuild=True)
        assert {path.name for path in roots.iterdir()} == known | {used}
    prune()
    assert {path.name for path in roots.iterdir()} == known


def test_a_root_that_another_process_has_replaced_is_not_used_as_the_earlier_one(root: Root) -> None:
    host = NamespaceHost()
    host.root = root
    path = root.folder.parent / RECORD
    path.write_text(path.read_text().replace("sha256:1", "sha256:2"))
    with pytest.raises(ImageError, match="was replaced"):
        host.zygote(SandboxSpec(), groups=False)
    with pytest.raises(ImageError, match="was replaced"):
        build_root(root, {"Dockerfile": f"FROM {root.digest}".encode()}, "Dockerfile")


def test_a_step_has_the_umask_of_a_build_whatever_the_callers() -> None:
    before = os.umask(0o077)
    try:
        StepRunner()._finish(["/bin/sh", "-c", "test $(umask) = 0022"], "umask")
    finally:
        os.umask(before)


def test_what_a_build_lacks_is_said(roots: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if why_not_ranged():
        with pytest.raises(SandboxError, match="needs a range of user ids"):
            root_image.build_image()
        return
    monkeypatch.setattr(root_image, "_build", lambda *_: pytest.fail("it began"))
    monkeypatch.setattr(root_image, "find_program", lambda name: name)
    monkeypatch.setattr(root_image, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(SandboxError, match="install the package debian-archive-keyring"):
        root_image.build_image()
    monkeypatch.setattr(root_image, "find_program", lambda name: None)
    with pytest.raises(SandboxError, match="install the package mmdebstrap"):
        root_image.build_image()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"install the package bubblewrap .*rtl-agent-gym image unpack FILE"):
        root_image.build_image()


@pytest.mark.parametrize("system", ["ubuntu", "debian"])
def test_the_base_is_checked_with_debians_keys_on_every_system(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runner(StepRunner):
        def on_host(self, folder: Path, command: list[str]) -> None:
            commands.append(command)

    commands: list[list[str]] = []
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": system})
    monkeypatch.setattr(image_build, "run_program", lambda *_, **__: "")
    root_image._make_base(Runner(), tmp_path / "base", lambda line: None)
    assert commands[0][-2:] == [
        str(tmp_path / "base"),
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main",
    ]


def test_a_proxys_password_is_in_no_command_and_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Runner(StepRunner):
        def _finish(self, words: list[str], what: str, *shared: int) -> None:
            said.append(f"{words} {what}")
            read.extend(os.pread(descriptor, 1000, 0) for descriptor in shared)

    said, read = list[str](), list[bytes]()
    monkeypatch.setenv("https_proxy", "http://alice:secret@proxy")
    monkeypatch.setattr(userns, "bubblewrap", lambda: "bwrap")
    monkeypatch.setattr(root_image, "debian_mirror", lambda: "http://deb.example")
    runner = Runner(UserNamespace(0, range(2)))
    root_image._make_base(runner, tmp_path / "base", silent)
    runner.run(tmp_path, "true", {"https_proxy": os.environ["https_proxy"], "EMPTY": ""}, "/")
    assert len(said) == 2
    assert "secret" not in "".join(said)
    [options] = read
    assert options.endswith(b"--setenv\0https_proxy\0http://alice:secret@proxy\0--setenv\0EMPTY\0\0")
    with pytest.raises(ImageError, match="NUL"):  # it would be further options
        RootSteps(tmp_path, {"A": "x\0--bind\0/\0/"}, runner).take(Instruction("RUN", "true"), {})


@pytest.mark.docker
def test_every_tool_of_the_root_runs(root_folder: Path) -> None:
    assert root_image.verify()["cocotb"] == "2.0.1"


@pytest.mark.daemon
@pytest.mark.slow  # a whole build takes minutes
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(why_not_ranged()) or not shutil.which("mmdebstrap"), reason="without what a build needs")
def test_a_build_without_docker_has_the_digest_of_dockers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(root_folder.VARIABLE, str(tmp_path))
    said: list[str] = []
    built = root_image.build_image(said.append)
    assert built.digest == image.inspect()["digest"]
    assert {path.name for path in tmp_path.iterdir()} == {built.folder.parent.name, ".lock"}
    assert {path.stat().st_uid for path in built.folder.iterdir()} == {os.geteuid()}
    assert any(line.startswith("icarus: built in") for line in said)
    assert root_image.build_image() == built
