"""The Debian below the simulation image: pulled from a registry, or bootstrapped if no registry can be reached."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

import docker
import requests
from docker.errors import DockerException, ImageNotFound

from ..errors import ImageError
from .host import Progress, apt_install, find_program, is_debian_like, is_root, run_program

PULLED_BASE = "debian:trixie-slim"
BOOTSTRAPPED_BASE = "rtl-agent-gym/base:trixie"

_RELEASE = "trixie"
_EXCLUDED = ("--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*")


def ensure_base(client: docker.DockerClient, progress: Progress) -> str:
    """The name of a Debian 13 image that the daemon has. Pulls or bootstraps one if necessary.

    Raises:
        ImageError: It can be neither pulled nor bootstrapped; the message says what to do.
    """
    for name in (PULLED_BASE, BOOTSTRAPPED_BASE):
        if image_id(client, name):
            return name
    progress(f"pulling {PULLED_BASE}")
    try:
        client.images.pull(PULLED_BASE)
    except (DockerException, requests.RequestException) as error:
        refusal = _first_line(getattr(error, "explanation", None) or error)
        progress(f"{PULLED_BASE} cannot be pulled ({refusal}); bootstrapping Debian {_RELEASE} instead")
        _bootstrap(client, progress)
        return BOOTSTRAPPED_BASE
    return PULLED_BASE


def image_id(client: docker.DockerClient, name: str) -> str | None:
    """The id of an image that the daemon has, or None."""
    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        return None


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0][:160]


def _bootstrap(client: docker.DockerClient, progress: Progress) -> None:
    if not is_root() or not (find_program("debootstrap") or is_debian_like()):
        raise ImageError(
            f"the image needs {PULLED_BASE}, which cannot be pulled here, and bootstrapping Debian requires root and "
            f"debootstrap. Copy it from a machine with a registry: docker save {PULLED_BASE} > base.tar there, "
            f"docker load < base.tar here."
        )
    if find_program("debootstrap") is None:
        apt_install(["debootstrap", "debian-archive-keyring"], error=ImageError, progress=progress)
    # Not /tmp, which is often mounted without device files or programs.
    scratch = "/var/tmp" if Path("/var/tmp").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="rtl-agent-gym-base-", dir=scratch))
    try:
        progress(f"running debootstrap in {folder}, about half a minute")
        run_program(_debootstrap_command(folder / "root"), error=ImageError)
        progress(f"importing it as {BOOTSTRAPPED_BASE}")
        archive = str(folder / "base.tar")
        run_program(["tar", "-C", str(folder / "root"), *_EXCLUDED, "-cf", archive, "."], error=ImageError)
        repository, _, tag = BOOTSTRAPPED_BASE.rpartition(":")
        reply = client.api.import_image_from_file(archive, repository=repository, tag=tag)
        if image_id(client, BOOTSTRAPPED_BASE) is None:
            raise ImageError(f"Docker cannot import the bootstrapped Debian: {_first_line(reply)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _debootstrap_command(root: Path) -> list[str]:
    command = [find_program("debootstrap") or "debootstrap", "--variant=minbase", "--include=ca-certificates"]
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if keyring.exists():  # on Ubuntu, debootstrap would use Ubuntu's keys
        command.append(f"--keyring={keyring}")
    command += [_RELEASE, str(root)]
    if platform.freedesktop_os_release().get("ID") == "debian":  # use the mirror of this machine's apt
        targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
        mirrors = run_program(targets, error=ImageError).split()
        command += [mirror for mirror in mirrors if mirror.startswith("http") and "security" not in mirror][:1]
    # debootstrap's mounts end with its mount namespace, even if it is killed.
    return [unshare, "--mount", *command] if (unshare := find_program("unshare")) else command
