"""The Debian that the simulation image stands on: pulled where a registry answers, bootstrapped where none does."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import docker
import requests
from docker.errors import DockerException, ImageNotFound

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.host import (
    Progress,
    apt_install,
    find_program,
    is_debian_like,
    is_root,
    run_program,
    silent,
)

PULLED_BASE = "debian:trixie-slim"
BOOTSTRAPPED_BASE = "rtl-agent-gym/base:trixie"

_RELEASE = "trixie"
_REGISTRY_PATIENCE = 20.0  # seconds between two signs of life; a registry that is in reach shows one every second


def ensure_base(api: docker.APIClient, progress: Progress = silent) -> str:
    """The name of a Debian 13 image that the daemon has; pulled or made when it has none.

    Raises:
        ImageError: It can neither be pulled nor bootstrapped; the message says what to do.
    """
    for name in (PULLED_BASE, BOOTSTRAPPED_BASE):
        if image_id(api, name):
            return name
    progress(f"pulling {PULLED_BASE}")
    refusal = _pull()
    if refusal is None:
        return PULLED_BASE
    progress(f"no registry gives {PULLED_BASE} ({refusal}); bootstrapping Debian {_RELEASE} instead")
    _bootstrap(api, progress)
    return BOOTSTRAPPED_BASE


def image_id(api: docker.APIClient, name: str) -> str | None:
    """The id of an image that the daemon has, or None."""
    try:
        return str(api.inspect_image(name)["Id"])
    except ImageNotFound:
        return None


def _pull() -> str | None:
    """Pull the base; None when it is there, else why not, in one line."""
    client = connect(timeout=_REGISTRY_PATIENCE)
    repository, _, tag = PULLED_BASE.rpartition(":")
    try:
        for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                return _first_line(str(event["error"]))
    except (DockerException, requests.RequestException) as error:
        return _first_line(str(getattr(error, "explanation", None) or error))
    finally:
        client.close()
    return None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:160]


def _bootstrap(api: docker.APIClient, progress: Progress) -> None:
    if not is_root() or not (find_program("debootstrap") or is_debian_like()):
        raise ImageError(
            f"the image needs {PULLED_BASE}, which cannot be pulled here, and bootstrapping Debian takes root and "
            f"debootstrap. Bring it over from a machine with a registry: docker save {PULLED_BASE} > base.tar there, "
            f"docker load < base.tar here."
        )
    if find_program("debootstrap") is None:
        apt_install(["debootstrap", "debian-archive-keyring"], error=ImageError, progress=progress)
    # Not /tmp, which is often mounted so that no device files or programs can live there.
    scratch = "/var/tmp" if Path("/var/tmp").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="rtl-agent-gym-base-", dir=scratch))
    try:
        progress(f"running debootstrap in {folder}, about half a minute")
        run_program(_debootstrap_command(folder / "root"), error=ImageError)
        progress(f"importing it as {BOOTSTRAPPED_BASE}")
        _import(api, folder / "root")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _debootstrap_command(root: Path) -> list[str]:
    command = [find_program("debootstrap") or "debootstrap", "--variant=minbase", "--include=ca-certificates"]
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if keyring.exists():  # on Ubuntu, debootstrap would look for Ubuntu's keys
        command.append(f"--keyring={keyring}")
    command += [_RELEASE, str(root), *_mirror()]
    if unshare := find_program("unshare"):
        # What debootstrap mounts below the folder goes with its mount namespace, however it ends.
        command = [unshare, "--mount", *command]
    return command


def _mirror() -> list[str]:
    """The mirror that this machine's apt uses, where it is a Debian; elsewhere debootstrap's own default."""
    if platform.freedesktop_os_release().get("ID") != "debian":
        return []
    listing = run_program(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], error=ImageError
    )
    mirrors = [line for line in listing.split() if line.startswith("http") and "security" not in line]
    return mirrors[:1]


def _import(api: docker.APIClient, root: Path) -> None:
    without = ["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*"]
    repository, _, tag = BOOTSTRAPPED_BASE.rpartition(":")
    with subprocess.Popen(["tar", "-C", str(root), *without, "-c", "."], stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        try:
            reply = api.import_image_from_stream(tar.stdout, repository=repository, tag=tag)
        except (DockerException, requests.RequestException) as error:
            raise ImageError(f"Docker did not take the bootstrapped Debian: {error}") from error
        finally:
            tar.stdout.close()
    if tar.returncode != 0 or '"error"' in str(reply):
        raise ImageError(f"importing the bootstrapped Debian failed (tar: {tar.returncode}): {_first_line(str(reply))}")
