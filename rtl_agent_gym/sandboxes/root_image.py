"""The simulation image without Docker: built as a root folder, checked, and written to files for other machines.

`build_image` runs the steps of the image's own Dockerfile in namespaces, so that its content has the digest that a
build with Docker has. The first steps run in a Debian made by mmdebstrap. A build needs a range of user ids, since
packages have files of several users; the finished root belongs to its builder alone.

`save_root` writes a file for ``docker load`` and `unpack`: one archive, in OCI's layout with Docker's own index.
`export_root` copies a root into a folder that RTL_GYM_ROOTS can name, or packs that folder into a squashfs.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import hashlib
import json
import os
import platform
import stat
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SandboxError, UsageError
from .daemon import Progress, find_program, run_program, silent
from .dockerfile import Stage, build_stages, read_stages
from .image import CONTENT_LABEL, context_files, image_tag, new_file
from .image_build import (
    IMAGE_LABEL,
    KEYRING,
    RELEASE,
    add_file,
    build_context,
    checked_versions,
    debian_mirror,
    proxies,
    shortened,
    version_script,
)
from .results import WORK_DIR
from .root_build import RootSteps, StepRunner
from .root_folder import (
    SPECIAL_BITS,
    Root,
    find_built,
    find_root,
    in_scratch,
    locked,
    record,
    remove_tree,
    require_recorded,
    root_place,
    run_in,
)
from .userns import bubblewrap, open_full, why_not_ranged

SQUASHFS = (".sqsh", ".squashfs", ".sfs")
"""Suffixes of squashfs files."""
_BASE = "debian-base"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_image(progress: Progress = silent, *, rebuild: bool = False) -> Root:
    """Build the root of the simulation image (minutes) if it is missing, or in any case with `rebuild`; return it.

    Raises `SandboxError` if a program is missing, or this user has no range of user ids; `ImageError`, which ends with
    its last lines, if a step failed.
    """
    place = root_place()
    if not rebuild and (known := find_built(place)) is not None:
        return known
    try:
        bubblewrap()
    except SandboxError as error:
        raise SandboxError(f"{error}, or take an image from elsewhere: rtl-agent-gym image unpack FILE") from error
    if why := why_not_ranged():
        raise SandboxError(f"building an image needs a range of user ids, since its files have several owners: {why}")
    if find_program("mmdebstrap") is None:
        raise SandboxError("a build without Docker needs mmdebstrap; install the package mmdebstrap (Debian, Ubuntu)")
    if not KEYRING.exists():
        raise SandboxError(f"a build needs {KEYRING}; install the package debian-archive-keyring (Debian, Ubuntu)")
    with locked(progress):
        if rebuild or find_built(place) is None:  # no other process has just built it
            with in_scratch(".building-", place) as scratch:
                progress(f"building {image_tag()} in {place.parent}")
                _build(scratch, progress)
    return find_root()


def _build(scratch: Path, progress: Progress) -> None:
    files, stages = build_context(), read_stages(context_files()["Dockerfile"].decode(), {"BASE": _BASE})
    with contextlib.closing(open_full()) as users:
        runner = StepRunner(users)
        _make_base(runner, scratch / _BASE, progress)
        done: dict[str, RootSteps] = {}

        def build(stage: Stage, built: Mapping[str, Path]) -> Path:
            begun, root = time.monotonic(), scratch / stage.name
            if stage.base == "scratch":
                root.mkdir(mode=0o755)
            else:
                base = built.get(stage.base, scratch / stage.base)
                runner.on_host(scratch, ["cp", "--archive", "--reflink=auto", str(base), str(root)])
            environment = {**proxies(), "PATH": _PATH}
            if (before := done.get(stage.base)) is not None:
                environment |= before.environment
            steps = RootSteps(root, environment, runner, built, before.folder if before is not None else "/")
            for number, step in enumerate(stage.steps, 1):
                progress(shortened(f"{stage.name}: step {number}/{len(stage.steps)}: {step}"))
                steps.take(step, files)
            done[stage.name] = steps
            progress(f"{stage.name}: built in {time.monotonic() - begun:.0f} s")
            return root

        last = build_stages(stages, build, runner.stop)
        last.rename(scratch / "root")
        for path in scratch.iterdir():
            if path.name != "root":
                remove_tree(path)
    environment = {name: value for name, value in done[stages[-1].name].environment.items() if name not in proxies()}
    found = record(scratch, environment, take_special_bits(scratch / "root"), None, "the build", progress)
    progress(found.remark)


def _make_base(runner: StepRunner, root: Path, progress: Progress) -> None:
    begun = time.monotonic()
    progress(f"making a Debian {RELEASE} with mmdebstrap")
    # Device files cannot be created here; packages' scripts write to these files instead.
    devices = 'mkdir -p "$1/dev" && cd "$1/dev" && touch null zero random urandom && chmod 666 *'
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--include=ca-certificates"]
    command += ["--dpkgopt=force-unsafe-io", f"--setup-hook={devices}"]
    command += [RELEASE, str(root), f"deb [signed-by={KEYRING}] {debian_mirror()} {RELEASE} main"]
    runner.on_host(root.parent, command)
    progress(f"base: built in {time.monotonic() - begun:.0f} s")


def take_special_bits(root: Path) -> dict[str, int]:
    """Remove set-user-id and set-group-id bits, which would apply to the root's owner; return the modes by path."""
    modes = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            mode = os.lstat(path := os.path.join(folder, name)).st_mode
            if mode & SPECIAL_BITS and not stat.S_ISLNK(mode):
                modes[path.removeprefix(str(root))] = stat.S_IMODE(mode)
                os.chmod(path, stat.S_IMODE(mode) & ~SPECIAL_BITS)
    return modes


def verify() -> dict[str, str]:
    """Run every tool in the root and return the versions they report, by name.

    Raises `ImageError` as for an image, or, if its owner or root calls this, if a file was changed after the build.
    """
    root = find_root()
    # Beside Apptainer's file, there need not be a folder. Others than its owner cannot read /etc/ssl/private in it.
    if root.folder.is_dir() and os.geteuid() in (0, os.stat(root.folder).st_uid):
        require_recorded(root)
    done = run_in(root.folder, ["/bin/sh", "-c", version_script()], root.environment)
    return checked_versions(done.stdout + done.stderr)


def save_root(path: Path) -> str:
    """Write the root to a file that ``image load`` and ``image unpack`` read. Returns the digest of its content.

    Raises `ImageError` if there is no root, `UsageError` if the file cannot be written.
    """
    root = find_root()
    with new_file(path) as packed:
        layer = packed.with_name("layer.tar")
        with tarfile.open(layer, "w") as archive:
            archive.add(root.folder, ".", filter=lambda entry: _as_root(entry, root.modes))
        with gzip.open(packed, "wb", compresslevel=1) as file, tarfile.open(fileobj=file, mode="w") as archive:
            _add_image(archive, layer, root)
    return root.digest


def _as_root(entry: tarfile.TarInfo, modes: Mapping[str, int]) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = modes.get(f"/{entry.name.removeprefix('./')}", entry.mode)
    return entry


def _add_image(archive: tarfile.TarFile, layer: Path, root: Root) -> None:
    """Add an image of one layer in OCI's layout, with the index that ``docker load`` reads."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = {
        "architecture": machine,
        "os": "linux",
        "created": datetime.datetime.fromtimestamp(0, datetime.UTC).isoformat(),
        "config": {
            "Env": [f"{name}={value}" for name, value in root.environment.items()],
            "WorkingDir": WORK_DIR,
            "Labels": {IMAGE_LABEL: "sim", CONTENT_LABEL: root.digest},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "rtl-agent-gym image build"}],
    }
    kinds = "application/vnd.oci.image"
    configuration = _add_blob(archive, json.dumps(config).encode(), f"{kinds}.config.v1+json")
    size = layer.stat().st_size
    layers = [{"mediaType": f"{kinds}.layer.v1.tar", "digest": f"sha256:{digest}", "size": size}]
    manifest = {"schemaVersion": 2, "config": configuration, "layers": layers}
    described = _add_blob(archive, json.dumps(manifest).encode(), f"{kinds}.manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [described | {"annotations": {"io.containerd.image.name": root.tag}}]}
    names = {"Config": f"blobs/sha256/{configuration['digest'].removeprefix('sha256:')}"}
    docker = [{**names, "RepoTags": [root.tag], "Layers": [f"blobs/sha256/{digest}"]}]
    archive.add(layer, f"blobs/sha256/{digest}", filter=lambda entry: _as_root(entry, {}))
    for name, content in {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": index,
        "manifest.json": docker,
    }.items():
        add_file(archive, name, json.dumps(content).encode())


def _add_blob(archive: tarfile.TarFile, data: bytes, kind: str) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    add_file(archive, f"blobs/sha256/{digest}", data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def export_root(target: Path) -> Root:
    """Copy the root for other machines. Returns what was copied.

    Args:
        target: A folder for RTL_GYM_ROOTS, in which other versions may be; or a new file whose name ends with .sqsh,
            .squashfs or .sfs, which holds such a folder.

    Raises:
        ImageError: There is no root.
        SandboxError: mksquashfs is missing or fails.
        UsageError: The target cannot be written, or already has this version.
    """
    root = find_root()
    if target.suffix in SQUASHFS:
        _squash(root.folder.parent, target)
        return root
    place = target / root.folder.parent.name
    with locked(silent, target):
        if place.exists():
            raise UsageError(f"{place} exists already")
        with in_scratch(".unpacking-", place) as scratch:
            copy = ["cp", "--archive", "--reflink=auto", f"{root.folder.parent}/.", str(scratch)]
            done = subprocess.run(copy, capture_output=True, text=True)
            if done.returncode:
                raise UsageError(f"{target} cannot be written: {done.stderr.strip()}")
    return root.model_copy(update={"folder": place / "root"})


def _squash(folder: Path, target: Path) -> None:
    if (program := find_program("mksquashfs")) is None:
        raise SandboxError("writing a squashfs needs mksquashfs; install the package squashfs-tools (Debian, Ubuntu)")
    with new_file(target) as packed:
        words = [program, str(folder), str(packed), "-noappend", "-no-progress", "-quiet", "-all-root"]
        words += ["-keep-as-directory", "-comp", "zstd"]  # so that RTL_GYM_ROOTS can name its mount point
        run_program(words, error=SandboxError)
