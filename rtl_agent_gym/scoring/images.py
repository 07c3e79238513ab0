"""The image of a service: the simulation image, or one built from the row's Dockerfile.

A Dockerfile that only installs what the simulation image has is not built. Others are built once per content, which
includes the simulation image's id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ImageError
from ..problems.compose import SIM_IMAGES, base_images, instructions
from ..problems.model import Problem
from ..sandboxes import SandboxProvider
from ..sandboxes.image_build import pinned_versions
from .compose import Service
from .options import HarnessOptions

_PIP = re.compile(r"(?:python3?\s+-m\s+)?pip3?\s+install\s+(.*)", re.DOTALL)


def needs_build(dockerfile: str) -> bool:
    """Whether a Dockerfile adds anything to the simulation image."""
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
    """Finds or builds the images of services.

    Args:
        base: The id of the simulation image; None for the provider's.
        options: The caller's own images.
    """

    def __init__(self, base: str | None = None, options: HarnessOptions | None = None) -> None:
        self._base, self._options = base, options or HarnessOptions()
        self._digest = ""

    async def digest(self, provider: SandboxProvider) -> str:
        """The digest of the content of the provider's simulation image. Raises `ImageError`."""
        if not self._digest:
            self._digest = await provider.image_digest()
        return self._digest

    async def base(self, provider: SandboxProvider) -> str:
        """The id of the simulation image. Raises `ImageError` if it is missing."""
        if self._base is None:
            self._base = await provider.image()
        return self._base

    async def image(self, problem: Problem, service: Service, provider: SandboxProvider) -> str:
        """The id or name of a service's image, built when it is missing.

        Raises:
            ImageError: It cannot be built; the message ends with the build's last lines.
        """
        base = await self.base(provider)
        if service.dockerfile is None:
            return service.image or base
        if service.image is None and not needs_build(problem.harness[service.dockerfile]):
            return base
        text = _resolve(problem, service.dockerfile, base, self._options)
        files = {path: content.encode() for path, content in {**problem.harness, service.dockerfile: text}.items()}
        try:
            return await provider.build_image(files, dockerfile=service.dockerfile)
        except ImageError as error:
            raise ImageError(f"{problem.id}: building the image of {service.dockerfile} failed: {error}") from error


def _resolve(problem: Problem, dockerfile: str, base: str, options: HarnessOptions) -> str:
    """The Dockerfile with the templates replaced by the simulation image, or by the caller's own images."""
    text = problem.harness[dockerfile]
    stages = base_images(text)
    last = stages[-1] if stages else ""
    if last not in SIM_IMAGES and options.image(last) is None:
        raise ImageError(
            f"{problem.id}: {dockerfile} builds on {last or 'nothing'}; its last stage must build on "
            f"{SIM_IMAGES[0]}, or nothing guards its tests"
        )
    for name in SIM_IMAGES:
        text = text.replace(name, base)
    return options.resolve(text)
