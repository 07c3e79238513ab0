"""The simulation image: its name, its build, its tools.

The tag is a digest of the build context (`image_context/`), so an image is never out of date: whoever changes a file
there gets another tag, and with it another image.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException
from docker.utils.socket import frames_iter

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.sandboxes.base_image import ensure_base, image_id
from rtl_agent_gym.sandboxes.daemon import connect, docker_errors
from rtl_agent_gym.sandboxes.host import Progress, exclusive, silent, tail

REPOSITORY = "rtl-agent-gym/sim"
"""What the image is called; its tag is a digest of the build context."""
HARNESS_REPOSITORY = "rtl-agent-gym/harness"
"""What images are called that are built on it."""
CONTEXT = Path(__file__).parent / "image_context"
"""The folder that the image is built from."""
IMAGE_LABEL = "io.rtl-agent-gym.image"
"""On every image that a build here leaves; containers inherit it, so it says nothing about their owner."""

_HOW_TO_BUILD = "build it with: rtl-agent-gym image build"
_LONGEST_SILENCE = 1800  # seconds; compiling Icarus on a slow machine prints nothing for minutes
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CA_BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True)
class SimImage:
    """The image that this version of the package asks for."""

    id: str
    tag: str
    size: int
    """Bytes on disk."""
    created: str
    """When it was built, in ISO 8601."""


def context_files() -> dict[str, bytes]:
    """The files of the build context by their path in it. Empty folders and Python's caches are no part of it."""
    paths = (path for path in CONTEXT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(CONTEXT).as_posix(): path.read_bytes() for path in sorted(paths)}


def image_tag(files: dict[str, bytes] | None = None) -> str:
    """The image's name for a build context, by default as it is now, such as ``rtl-agent-gym/sim:3f9c0e21ab44``."""
    digest = hashlib.sha256()
    for path, content in (context_files() if files is None else files).items():
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def find_image(api: docker.APIClient | None = None) -> str:
    """The id of the simulation image.

    Args:
        api: A client of the daemon; None to connect for this call.

    Raises:
        ImageError: It has not been built.
    """
    return inspect(api).id


def inspect(api: docker.APIClient | None = None) -> SimImage:
    """What the daemon knows of the simulation image. Raises `ImageError` when it has not been built."""
    tag = image_tag()
    with _client(api) as daemon:
        try:
            known = daemon.inspect_image(tag)
        except docker.errors.ImageNotFound as error:
            raise ImageError(f"the simulation image {tag} is not there; {_HOW_TO_BUILD}") from error
    return SimImage(str(known["Id"]), tag, int(known["Size"]), str(known["Created"]))


def ensure_image(progress: Progress = silent) -> str:
    """The id of the simulation image, which is built first when it is missing (minutes).

    Raises:
        DaemonError: No daemon answers.
        ImageError: The build failed; the message ends with its last lines.
    """
    with _client(None) as api:
        found = image_id(api, image_tag())
        if found is not None:
            return found
        with exclusive("image", progress):
            return image_id(api, image_tag()) or build(api, progress)


def build(api: docker.APIClient, progress: Progress = silent, *, use_cache: bool = True) -> str:
    """Build the image and return its id, also where it is there already. `ensure_image` says what it raises."""
    files = context_files()
    tag = image_tag(files)
    base = ensure_base(api, progress)
    progress(f"building {tag} on {base}; about four minutes when no step is cached")
    proxies = {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
    return _run_build(
        api, tag, _context_tar(files), progress, buildargs={"BASE": base} | proxies, nocache=not use_cache
    )


def _run_build(api: docker.APIClient, tag: str, context: io.BytesIO, progress: Progress, **options: Any) -> str:
    """Build an image from a tar archive and return its id."""
    last: deque[str] = deque(maxlen=200)
    failure = None
    try:
        events = api.build(
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
            _follow(str(event.get("stream", "")), last, progress)
    except (DockerException, requests.RequestException) as error:
        raise ImageError(f"the build of {tag} broke off: {error}\n{tail(last)}") from error
    found = image_id(api, tag)
    if failure is not None or found is None:
        raise ImageError(f"building {tag} failed: {failure or 'it ended without an image'}\n{tail(last)}")
    return found


def build_from(api: docker.APIClient, files: Mapping[str, bytes], dockerfile: str) -> str:
    """The id of an image of these files, built where there is none. Its tag is a digest of them.

    Raises:
        ImageError: It cannot be built; the message ends with the last lines of the build.
    """
    digest = hashlib.sha256(dockerfile.encode())
    for path, content in sorted(files.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    tag = f"{HARNESS_REPOSITORY}:{digest.hexdigest()[:16]}"
    return image_id(api, tag) or _run_build(
        api, tag, _tar(files), silent, dockerfile=dockerfile, labels={IMAGE_LABEL: "harness"}
    )


def _follow(text: str, last: deque[str], progress: Progress) -> None:
    for line in text.splitlines():
        if not line.strip():
            continue
        last.append(line)
        if re.match(r"Step \d+/\d+ :", line):
            progress(line if len(line) <= 110 else f"{line[:109]}…")


def _context_tar(files: dict[str, bytes]) -> io.BytesIO:
    """The build context with the host's certificates beside it, as a tar archive.

    The certificates belong to the machine that builds: only the build stage uses them, and they are no part of the tag.
    """
    bundle = next((Path(os.environ[name]) for name in _CA_BUNDLES if os.environ.get(name)), None)
    certificates = bundle.read_bytes() if bundle is not None and bundle.is_file() else b""
    return _tar({**files, "host-ca.crt": certificates})


def _tar(files: Mapping[str, bytes]) -> io.BytesIO:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            # Not the mode on disk: it changes with the umask, and a wheel does not keep it.
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    return archive


def pinned_versions() -> dict[str, str]:
    """The versions that decide verdicts, by tool or Python package, as the build context names them."""
    files = context_files()
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", files["requirements.txt"].decode()))
    icarus = re.search(r"(?m)^ARG ICARUS_VERSION=(\S+)", files["Dockerfile"].decode())
    return {"iverilog": icarus[1] if icarus else "?", **pins}


def verify(api: docker.APIClient | None = None) -> dict[str, str]:
    """Run every tool in a container and return the versions they report, by name.

    Raises:
        ImageError: The image is missing, or a tool in it is missing or has another version than the context names.
    """
    pins = pinned_versions()
    with _client(api) as daemon:
        output = _run_once(daemon, inspect(daemon).id, _version_script(pins))
    versions = dict(line.split("\t", 1) for line in output.splitlines() if "\t" in line)
    wrong = [
        f"{tool} {versions.get(tool, 'missing')} (wants {pin})"
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


def _version_script(pins: dict[str, str]) -> str:
    """A shell script that prints a line ``name<TAB>version`` for every tool; vvp's after it has run a simulation."""
    design = 'module t; initial $display("alive"); endmodule'
    packages = [name for name in pins if name != "iverilog"]
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


def _run_once(api: docker.APIClient, image: str, script: str) -> str:
    """Run a shell script in a container of its own, which Docker removes when the script ends."""
    limits = api.create_host_config(
        auto_remove=True,
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "size=64m"},
        cap_drop=["ALL"],
        mem_limit="1g",
        pids_limit=256,
    )
    try:
        container = api.create_container(image, ["/bin/sh", "-c", script], user="1000", host_config=limits)["Id"]
        # Before the start, as the container and its log are gone the moment it ends.
        stream = api.attach_socket(container, params={"stdout": 1, "stderr": 1, "stream": 1})
        # Closing the stream alone leaves its connection open until it is collected.
        with closing(stream), closing(stream._response):
            api.start(container)
            return b"".join(data for _, data in frames_iter(stream, tty=False)).decode(errors="replace")
    except APIError as error:
        raise ImageError(f"cannot run a container of {image}: {error.explanation or error}") from error


def prune(api: docker.APIClient | None = None) -> list[str]:
    """Remove earlier simulation images and the build stages' leftovers; return what was removed, by name or id.

    The current image, the base, and images that a container uses stay.
    """
    removed = []
    current = image_tag()
    with _client(api) as daemon:
        tags = [tag for image in daemon.images(name=REPOSITORY) for tag in image.get("RepoTags") or []]
        leftovers = daemon.images(quiet=True, filters={"dangling": True, "label": IMAGE_LABEL})
        for name in [tag for tag in tags if tag != current] + leftovers:
            try:
                daemon.remove_image(name)
            except APIError as error:
                if error.status_code not in {404, 409}:  # gone already, or in use
                    raise ImageError(f"cannot remove {name}: {error.explanation or error}") from error
            else:
                removed.append(name)
    return removed


@contextmanager
def _client(api: docker.APIClient | None) -> Iterator[docker.APIClient]:
    """The caller's client as it is, or one of our own for the length of the block; Docker's failures translated."""
    with docker_errors():
        if api is not None:
            yield api
        else:
            with closing(connect()) as client:
                yield client.api
