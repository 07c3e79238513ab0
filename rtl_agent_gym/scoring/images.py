"""The image that a service of a harness runs in: the simulation image, or one built from the row's Dockerfile.

A Dockerfile that only asks for what the simulation image has already is not built at all. Another is built once per
content: its tag is a digest of the harness's files and of the simulation image.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import tarfile
from collections import deque
from collections.abc import Mapping
from typing import Any

import docker.errors

from ..errors import ImageError
from ..problems.model import Problem
from ..sandboxes.daemon import connect
from ..sandboxes.docker import classified
from ..sandboxes.image import IMAGE_LABEL, find_image, pinned_versions
from .compose import SIM_IMAGES, Service

REPOSITORY = "rtl-agent-gym/harness"
_PIP = re.compile(r"(?:python3?\s+-m\s+)?pip3?\s+install\s+(.*)", re.DOTALL)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile as (KEYWORD, rest), comments and continuations resolved."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(words[0].upper(), words[1].strip() if len(words) > 1 else "") for words in found]


def needs_build(dockerfile: str) -> bool:
    """Whether a Dockerfile does more than the simulation image has done already."""
    has = {_package(name): version for name, version in pinned_versions().items()}
    for keyword, rest in instructions(dockerfile):
        if keyword == "FROM" and rest in SIM_IMAGES:
            continue
        match = _PIP.fullmatch(rest) if keyword == "RUN" else None
        if match is None or not all(_is_there(word, has) for word in match[1].split()):
            return True
    return False


def _package(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_there(word: str, has: Mapping[str, str]) -> bool:
    if word.startswith("-"):
        return word in ("--no-cache-dir", "-q", "--upgrade", "-U")
    name, _, version = word.partition("==")
    return _package(name) in has and version in ("", has[_package(name)])


class HarnessImages:
    """Finds or builds the images of services. One build at a time; what was built is found again by every process."""

    def __init__(self, base: str | None = None) -> None:
        self._base = base
        self._turn = asyncio.Lock()

    async def base(self) -> str:
        """The id of the simulation image. Raises `ImageError` where it is missing."""
        if self._base is None:
            self._base = await asyncio.to_thread(classified, find_image)
        return self._base

    async def image(self, problem: Problem, service: Service) -> str:
        """The id or name of a service's image, built when it is missing.

        Raises:
            ImageError: It cannot be built; the message ends with the build's last lines.
        """
        base = await self.base()
        if service.dockerfile is None or not needs_build(problem.harness[service.dockerfile]):
            return base
        async with self._turn:
            return await asyncio.to_thread(classified, lambda: _ensure(problem, str(service.dockerfile), base))


def _ensure(problem: Problem, dockerfile: str, base: str) -> str:
    text = _resolve(problem, dockerfile, base)
    files = {**{path: text.encode() for path, text in problem.harness.items()}, dockerfile: text.encode()}
    digest = hashlib.sha256(base.encode())
    for path, content in sorted(files.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    tag = f"{REPOSITORY}:{digest.hexdigest()[:16]}"
    client = connect()
    api = client.api
    try:
        try:
            return str(api.inspect_image(tag)["Id"])
        except docker.errors.ImageNotFound:
            _build(api, tag, files, dockerfile, problem.id)
        return str(api.inspect_image(tag)["Id"])
    finally:
        client.close()


def _resolve(problem: Problem, dockerfile: str, base: str) -> str:
    """The Dockerfile with the simulation image in the place of its templates."""
    text = problem.harness[dockerfile]
    stages = [rest.split()[0] for keyword, rest in instructions(text) if keyword == "FROM" and rest]
    if not stages or stages[-1] not in SIM_IMAGES:
        raise ImageError(
            f"{problem.id}: {dockerfile} builds on {stages[-1] if stages else 'nothing'}; its last stage must build on "
            f"{SIM_IMAGES[0]}, or nothing guards its tests"
        )
    for name in SIM_IMAGES:
        text = text.replace(name, base)
    return text


def _build(api: Any, tag: str, files: Mapping[str, bytes], dockerfile: str, problem_id: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    last: deque[str] = deque(maxlen=20)
    events = api.build(
        fileobj=archive,
        custom_context=True,
        dockerfile=dockerfile,
        tag=tag,
        rm=True,
        forcerm=True,
        decode=True,
        timeout=600,
        labels={IMAGE_LABEL: "harness"},
    )
    fault = ""
    for event in events:  # to its end, or the connection would stay open
        last.extend(str(event.get("stream", "")).splitlines())
        fault = fault or str(event.get("error", ""))
    if fault:
        said = "\n".join(f"    {line}" for line in last if line.strip())
        raise ImageError(f"{problem_id}: building the image of {dockerfile} failed: {fault}\n{said}")
