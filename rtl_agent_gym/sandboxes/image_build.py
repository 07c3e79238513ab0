"""Builds the simulation image and images based on it, checks its tools, and removes old ones.

Its Debian base is pulled from a registry, or bootstrapped if no registry can be reached.
"""

from __future__ import annotations

import io
import os
import platform
import re
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException

from ..errors import ImageError
from ..files import exclusive
from ..visible import without_secrets
from .daemon import Progress, apt_install, find_program, is_debian_like, is_root, run_program, silent, tail
from .dockerfile import Stage, build_stages, file_mode, read_stages
from .image import (
    CONTENT_LABEL,
    REPOSITORY,
    connected,
    content_of,
    context_files,
    find_image,
    image_id,
    image_tag,
    remember,
    run_once,
    tag_of,
)

HARNESS_REPOSITORY = "rtl-agent-gym/harness"
"""The name of harnesses' own images."""
IMAGE_LABEL = "io.rtl-agent-gym.image"
"""The label of every image built here. Containers inherit it, so it does not name an owner."""

_LONGEST_SILENCE = 1800  # seconds; compiling Icarus on a slow machine prints nothing for minutes
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_INDEXES = {
    "PIP_INDEX_URL": "--index-url",
    "PIP_EXTRA_INDEX_URL": "--extra-index-url",
    "PIP_TRUSTED_HOST": "--trusted-host",
}
"""Variables of pip, with values separated by spaces, and the same options in a requirements file."""
_CA_BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
PULLED_BASE = "debian:trixie-slim"
BOOTSTRAPPED_BASE = "rtl-agent-gym/base:trixie"

RELEASE = "trixie"
"""The Debian release of the image."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""The keys that Debian's packages are checked with, from the package debian-archive-keyring."""
_GENERAL_MIRROR = "http://deb.debian.org/debian"
_EXCLUDED = ("--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*")


def ensure_image(progress: Progress = silent, *, rebuild: bool = False) -> str:
    """The id of the simulation image, which is built (minutes) if it is missing.

    Args:
        progress: Called with one line per step.
        rebuild: Build it in any case, and use no cached step.

    Raises:
        DaemonError: No daemon answers.
        ImageError: The build failed; the message ends with its last lines.
    """
    with connected() as client:
        if not rebuild and (found := image_id(client, image_tag())):
            return found
        with exclusive("image", progress):
            if not rebuild and (found := image_id(client, image_tag())):  # another process has built it
                return found
            base, tag = ensure_base(client, progress), image_tag()
            progress(f"building {tag} on {base}; about four minutes when no step is cached")
            built = _build_stages(client, tag, base, progress, rebuild)
            content = content_of(client, built)
            progress(content.remark)
            recording = f"FROM {built}\nLABEL {CONTENT_LABEL}={content.digest}\n"
            recorded = _build(client, tag, _tar({"Dockerfile": recording.encode()}), silent)
            remember(recorded, content)  # the label does not change the content
            return recorded


def _build_stages(client: docker.DockerClient, tag: str, base: str, progress: Progress, rebuild: bool) -> str:
    """Build the image's stages, in parallel where they do not depend on each other. Returns the last one's id."""
    files, stopped = build_context(), threading.Event()
    stages = read_stages(files["Dockerfile"].decode(), {"BASE": base})

    def build(stage: Stage, built: Mapping[str, str]) -> str:
        def report(line: str) -> None:
            if stopped.is_set():
                raise ImageError("another stage has failed")
            progress(f"{stage.name}: {line}")

        context = _tar({**files, "Dockerfile": stage.text(built).encode()})
        name = tag if stage is stages[-1] else None
        return _build(client, name, context, report, buildargs=proxies(), nocache=rebuild)

    return build_stages(stages, build, stopped.set)


def _build(
    client: docker.DockerClient, tag: str | None, context: io.BytesIO, progress: Progress, **options: Any
) -> str:
    last, what = deque[str](maxlen=200), tag or "a stage of the image"
    failure, built = None, ""
    try:
        events = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            rm=True,
            forcerm=True,
            timeout=_LONGEST_SILENCE,
            decode=True,
            **options,
        )
        for event in events:  # to the end, also after an error, so that the connection can be closed
            failure = event.get("error", failure)
            built = event.get("aux", {}).get("ID", built)
            for line in str(event.get("stream", "")).splitlines():
                last.append(line)
                if re.match(r"Step \d+/\d+ :", line):
                    progress(shortened(line))
    except (DockerException, requests.RequestException) as error:
        why = getattr(error, "explanation", None) or without_secrets(str(error))  # the address has the proxies
        raise ImageError(f"the build of {what} was interrupted: {why}\n{tail(last)}") from error
    found = image_id(client, tag) if tag else built
    if failure is not None or not found:
        raise ImageError(f"building {what} failed: {failure or 'it ended without an image'}\n{tail(last)}")
    return found


def shortened(line: str) -> str:
    """A line of progress, cut to 110 characters."""
    return line if len(line) <= 110 else f"{line[:109]}…"


def build_from(client: docker.DockerClient, files: Mapping[str, bytes], dockerfile: str) -> str:
    """Build an image from these files unless it exists; return its id. Its tag is a digest of the files.

    Raises:
        ImageError: It cannot be built; the message ends with the last lines of the build.
    """
    tag = tag_of(HARNESS_REPOSITORY, {"": dockerfile.encode(), **dict(sorted(files.items()))})
    options = {"dockerfile": dockerfile, "labels": {IMAGE_LABEL: "harness"}}
    return image_id(client, tag) or _build(client, tag, _tar(files), silent, **options)


def build_context() -> dict[str, bytes]:
    """The files of the build context, with the host's certificates and pip's package indexes.

    These belong to the machine that builds: only an early stage uses them, and the tag ignores them. The indexes are
    options in the file with the hashes of all packages, so that no layer's history or variable has an index's password.
    """
    bundle = next((Path(os.environ[name]) for name in _CA_BUNDLES if os.environ.get(name)), None)
    certificates = bundle.read_bytes() if bundle is not None and bundle.is_file() else b""
    files = context_files()
    given = [(option, value) for name, option in _INDEXES.items() for value in os.environ.get(name, "").split()]
    indexes = "".join(f"{option} {value}\n" for option, value in given)
    return {**files, "requirements.lock": indexes.encode() + files["requirements.lock"], "host-ca.crt": certificates}


def proxies() -> dict[str, str]:
    """The environment variables for the proxies that a build uses."""
    return {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}


def _tar(files: Mapping[str, bytes]) -> io.BytesIO:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in files.items():
            add_file(tar, path, content)
    archive.seek(0)
    return archive


def add_file(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    """Add a file to an archive, with `file_mode`'s mode."""
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), file_mode(content)
    archive.addfile(entry, io.BytesIO(content))


def pinned_versions() -> dict[str, str]:
    """The versions that can change verdicts, by tool or Python package, as the build context pins them."""
    files = context_files()
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", files["requirements.txt"].decode()))
    icarus = re.search(r"(?m)^ARG ICARUS_VERSION=(\S+)", files["Dockerfile"].decode())
    return {"iverilog": icarus[1] if icarus else "?", **pins}


def verify() -> dict[str, str]:
    """Run every tool in a container and return the versions they report, by name.

    Raises:
        ImageError: The image is missing, or a tool in it is missing or has another version than the pinned one.
    """
    with connected() as client:
        return checked_versions(run_once(client, find_image(client), ["/bin/sh", "-c", version_script()]))


def checked_versions(output: str) -> dict[str, str]:
    """The versions in the output of `version_script`. Raises `ImageError` as `verify` does."""
    pins = pinned_versions()
    versions = dict(line.split("\t", 1) for line in output.splitlines() if "\t" in line)
    wrong = [
        f"{tool} {versions.get(tool, 'missing')} (expected {pin})"
        for tool, pin in pins.items()
        if versions.get(tool) != pin
    ]
    wrong += [f"{tool} missing" for tool in ("vvp", "verilator", "yosys") if not versions.get(tool)]
    if wrong:
        raise ImageError(
            f"the image {image_tag()} is broken: {', '.join(wrong)}. "
            f"Build it again: rtl-agent-gym image build --no-cache\n{tail(output.splitlines())}"
        )
    return versions


def version_script() -> str:
    """A shell script that prints a line ``name<TAB>version`` for every tool; vvp's after it has run a simulation."""
    design = 'module t; initial $display("alive"); endmodule'
    packages = [name for name in pinned_versions() if name != "iverilog"]
    return f"""
        report() {{ printf '%s\\t%s\\n' "$1" "$(printf '%s' "$2" | grep -oE '[0-9]+([.][0-9]+)+' | head -n 1)"; }}
        report iverilog "$(iverilog -V)"
        echo '{design}' > /tmp/t.v
        iverilog -o /tmp/t /tmp/t.v && vvp -n /tmp/t | grep -q alive && report vvp "$(vvp -V 2>&1)"
        report verilator "$(verilator --version)"
        report yosys "$(yosys -V)"
        python -c "if True:
            from importlib.metadata import version
            import cocotb, cocotb_tools.runner, pytest
            for name in {packages!r}:
                print(name, version(name), sep=chr(9))"
        """


def prune(progress: Progress = silent) -> list[str]:
    """Remove earlier simulation images and leftover build stages; return the names or ids of what was removed.

    Keeps the current image, the base, and images that a container uses. Waits for a build, which uses finished stages.
    """
    removed = []
    with exclusive("image", progress), connected() as client:
        tags = [tag for image in client.api.images(name=REPOSITORY) for tag in image.get("RepoTags") or []]
        leftovers = client.api.images(quiet=True, filters={"dangling": True, "label": IMAGE_LABEL})
        for name in [*tags, *leftovers]:
            if name.removeprefix("localhost/") == image_tag():  # Podman's prefix
                continue
            try:
                client.images.remove(name)
                removed.append(name)
            except APIError as error:
                if error.status_code not in {404, 409}:  # gone already, or in use
                    raise ImageError(f"cannot remove {name}: {error.explanation or error}") from error
    return removed


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
        progress(f"{PULLED_BASE} cannot be pulled ({refusal}); bootstrapping Debian {RELEASE} instead")
        _bootstrap(client, progress)
        return BOOTSTRAPPED_BASE
    return PULLED_BASE


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
    temporary = tempfile.TemporaryDirectory(prefix="rtl-agent-gym-base-", dir=scratch, ignore_cleanup_errors=True)
    with temporary as folder:
        progress(f"running debootstrap in {folder}, about half a minute")
        run_program(_debootstrap_command(f"{folder}/root"), error=ImageError)
        progress(f"importing it as {BOOTSTRAPPED_BASE}")
        archive = f"{folder}/base.tar"
        run_program(["tar", "-C", f"{folder}/root", *_EXCLUDED, "-cf", archive, "."], error=ImageError)
        repository, _, tag = BOOTSTRAPPED_BASE.rpartition(":")
        reply = client.api.import_image_from_file(archive, repository=repository, tag=tag)
        if image_id(client, BOOTSTRAPPED_BASE) is None:
            raise ImageError(f"Docker cannot import the bootstrapped Debian: {_first_line(reply)}")


def debian_mirror() -> str:
    """The address of the Debian mirror that this machine's apt uses, otherwise of the general one."""
    mirrors: list[str] = []
    if platform.freedesktop_os_release().get("ID") == "debian":
        targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
        # By the fetched indexes' origin and label, which exclude other publishers and Debian's security archive.
        mirrors = run_program([*targets, "Origin: Debian", "Label: Debian"], error=ImageError).split()
    return next((mirror for mirror in mirrors if mirror.startswith("http")), _GENERAL_MIRROR)


def _debootstrap_command(root: str) -> list[str]:
    command = [find_program("debootstrap") or "debootstrap", "--variant=minbase", "--include=ca-certificates"]
    if KEYRING.exists():  # on Ubuntu, debootstrap would use Ubuntu's keys
        command.append(f"--keyring={KEYRING}")
    command += [RELEASE, root, debian_mirror()]
    # debootstrap's mounts end with its mount namespace, even if it is killed.
    return [unshare, "--mount", *command] if (unshare := find_program("unshare")) else command
