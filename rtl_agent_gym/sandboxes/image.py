"""The simulation image: its name, its build, and a check of its tools.

The tag is a digest of the build context (`image_context/`): a change of any file there gives another tag and image.
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
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from ..errors import ImageError
from .base_image import ensure_base, image_id
from .daemon import connect, docker_errors
from .host import Progress, exclusive, silent, tail
from .image_digest import CONTENT_LABEL, checked_content, content_of, remember, run_once

REPOSITORY = "rtl-agent-gym/sim"
"""The image's name; its tag is a digest of the build context."""
HARNESS_REPOSITORY = "rtl-agent-gym/harness"
"""The name of images that are built on it."""
CONTEXT = Path(__file__).parent / "image_context"
"""The folder that the image is built from."""
IMAGE_LABEL = "io.rtl-agent-gym.image"
"""On every image that a build here leaves. Containers inherit it, so it does not name their owner."""

_LONGEST_SILENCE = 1800  # seconds; compiling Icarus on a slow machine prints nothing for minutes
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CA_BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def context_files() -> dict[str, bytes]:
    """The files of the build context by relative path, without empty folders and Python's caches."""
    paths = (path for path in CONTEXT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(CONTEXT).as_posix(): path.read_bytes() for path in sorted(paths)}


def image_tag() -> str:
    """The image's name for the build context as it is now, such as ``rtl-agent-gym/sim:3f9c0e21ab44``."""
    return _tag(REPOSITORY, context_files())


def _tag(repository: str, files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in files.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return f"{repository}:{digest.hexdigest()[:12]}"


def find_image(client: docker.DockerClient) -> str:
    """The id of the simulation image. Raises `ImageError` if it has not been built."""
    return str(_image(client).id)


def inspect() -> dict[str, Any]:
    """What there is of the simulation image.

    Returns:
        Its `tag`, the `digest` of its content with a `remark` on whether this is the recorded one, and the daemon's
        record: its `id`, `created` (ISO 8601) and `size` in bytes.

    Raises:
        ImageError: It has not been built, or was changed afterwards.
    """
    with connected() as client:
        image = _image(client)
        content = checked_content(client, image.id)
    record = {"id": image.id, "created": image.attrs["Created"], "size": image.attrs["Size"]}
    return {"tag": image_tag(), "digest": content.digest, "remark": content.remark, **record}


def _image(client: docker.DockerClient) -> Any:
    try:
        return client.images.get(tag := image_tag())
    except ImageNotFound as error:
        raise ImageError(
            f"the simulation image {tag} is not there; build it with: rtl-agent-gym image build"
        ) from error


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
            base, files = ensure_base(client, progress), context_files()
            tag = _tag(REPOSITORY, files)
            progress(f"building {tag} on {base}; about four minutes when no step is cached")
            arguments = {"BASE": base} | {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
            built = _build(client, tag, _context_tar(files), progress, buildargs=arguments, nocache=rebuild)
            content = content_of(client, built)
            progress(content.remark)
            recording = f"FROM {built}\nLABEL {CONTENT_LABEL}={content.digest}\n"
            recorded = _build(client, tag, _tar({"Dockerfile": recording.encode()}), silent)
            remember(recorded, content)  # a label is no content
            return recorded


def _build(client: docker.DockerClient, tag: str, context: io.BytesIO, progress: Progress, **options: Any) -> str:
    """Build an image from a tar archive and return its id."""
    last: deque[str] = deque(maxlen=200)
    failure = None
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
            for line in str(event.get("stream", "")).splitlines():
                last.append(line)
                if re.match(r"Step \d+/\d+ :", line):
                    progress(line if len(line) <= 110 else f"{line[:109]}…")
    except (DockerException, requests.RequestException) as error:
        raise ImageError(f"the build of {tag} broke off: {error}\n{tail(last)}") from error
    found = image_id(client, tag)
    if failure is not None or found is None:
        raise ImageError(f"building {tag} failed: {failure or 'it ended without an image'}\n{tail(last)}")
    return found


def build_from(client: docker.DockerClient, files: Mapping[str, bytes], dockerfile: str) -> str:
    """The id of an image of these files, built if there is none. Its tag is a digest of them.

    Raises:
        ImageError: It cannot be built; the message ends with the last lines of the build.
    """
    tag = _tag(HARNESS_REPOSITORY, {"": dockerfile.encode(), **dict(sorted(files.items()))})
    options = {"dockerfile": dockerfile, "labels": {IMAGE_LABEL: "harness"}}
    return image_id(client, tag) or _build(client, tag, _tar(files), silent, **options)


def _context_tar(files: Mapping[str, bytes]) -> io.BytesIO:
    """The build context and the host's certificates as a tar archive.

    The certificates belong to the machine that builds: only the build stage uses them, and the tag ignores them.
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


def verify() -> dict[str, str]:
    """Run every tool in a container and return the versions they report, by name.

    Raises:
        ImageError: The image is missing, or a tool in it is missing or has another version than the context names.
    """
    pins = pinned_versions()
    with connected() as client:
        output = run_once(client, find_image(client), ["/bin/sh", "-c", _version_script(pins)])
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


def prune() -> list[str]:
    """Remove earlier simulation images and what build stages have left; return what was removed, by name or id.

    The current image, the base, and images that a container uses stay.
    """
    removed = []
    with connected() as client:
        tags = [tag for image in client.api.images(name=REPOSITORY) for tag in image.get("RepoTags") or []]
        leftovers = client.api.images(quiet=True, filters={"dangling": True, "label": IMAGE_LABEL})
        for name in [*tags, *leftovers]:
            if name.removeprefix("localhost/") == image_tag():  # Podman names a registry
                continue
            try:
                client.images.remove(name)
                removed.append(name)
            except APIError as error:
                if error.status_code not in {404, 409}:  # gone already, or in use
                    raise ImageError(f"cannot remove {name}: {error.explanation or error}") from error
    return removed


@contextmanager
def connected() -> Iterator[docker.DockerClient]:
    """A client of the daemon; Docker's exceptions become this package's."""
    with docker_errors(), closing(connect()) as client:
        yield client
