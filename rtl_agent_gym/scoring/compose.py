"""The services of a harness's compose file: their commands, environments, folders and images.

It follows `docker compose` for the features that harnesses use. Anything that this package cannot do in the same way
raises a `ProblemError` that names the service and the key.

A service runs in the simulation image, or in an image built from the row's Dockerfile. A Dockerfile that only installs
what the simulation image has is not built. Others are built once per content, which includes the simulation image's id.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ImageError, ProblemError
from ..problems.compose import (
    COMPOSE_FILE,
    SIM_IMAGES,
    base_images,
    commercial_need,
    dockerfile,
    env_file_faults,
    instructions,
    interpolate,
    named_images,
    parse_services,
    service_environment,
)
from ..problems.model import Problem
from ..problems.paths import AGENT_FOLDERS
from ..sandboxes import SandboxProvider
from ..sandboxes.image_build import pinned_versions
from .options import HarnessOptions

RUN_DIR = "/code/rundir"
CHECKOUT_RUN_DIR = "/rundir"
"""Working folders of tests, the second for heavy rows, as in the official runner; ``working_dir`` is ignored."""

_KNOWN_KEYS = {
    "image", "build", "volumes", "env_file", "environment", "command", "working_dir", "entrypoint",
    "user", "networks", "container_name", "depends_on", "stdin_open", "tty", "platform", "profiles", "restart",
}  # fmt: skip
_MOUNTED = tuple(f"{folder}/" for folder in (*AGENT_FOLDERS, "rundir"))
"""Where the official runner mounts harness files other than those of ``src``."""
_PIP = re.compile(r"(?:python3?\s+-m\s+)?pip3?\s+install\s+(.*)", re.DOTALL)


@dataclass(frozen=True)
class Service:
    """One service of a harness."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = RUN_DIR
    dockerfile: str | None = None
    """The harness's Dockerfile from which the image is built, relative to the harness; None for an existing image."""
    image: str | None = None
    """The caller's image for a commercial simulator; None for the package's simulation image."""


def read_services(problem: Problem, options: HarnessOptions | None = None) -> list[Service]:
    """The services of a problem's harness, in running order.

    Raises:
        ProblemError: The harness cannot be run here; the message names the service and the key.
    """
    if problem.unscorable:
        raise ProblemError(f"it cannot be scored: {problem.unscorable}", problem_id=problem.id)
    field = f"harness.{COMPOSE_FILE}"
    if COMPOSE_FILE not in problem.harness:
        message = "the problem has no hidden tests, so nothing can be scored"
        raise ProblemError(message, problem_id=problem.id, field=field)
    options = options or HarnessOptions()
    need = commercial_need(problem.harness)
    if need is not None and not any(name in text for name, _ in options.images for text in problem.harness.values()):
        advice = "give yours, if you have one (--harness-image VERIF_EDA_IMAGE=IMAGE)"
        raise ProblemError(f"it cannot be scored: {need}; {advice}", problem_id=problem.id)
    try:
        services = parse_services(problem.harness[COMPOSE_FILE])
        found = [_service(name, service, problem, options) for name, service in services.items()]
    except ProblemError as error:
        raise ProblemError(error.message, problem_id=problem.id, field=field) from error
    lost = next((path for path in problem.harness if path.startswith(_MOUNTED)), None)
    if lost is not None and not problem.checkout and all(service.dockerfile is None for service in found):
        message = "a hidden file that is not in src/ does not reach the tests here"
        raise ProblemError(message, problem_id=problem.id, field=f"harness.{lost}")
    return found


def _service(name: str, service: Mapping[str, Any], problem: Problem, options: HarnessOptions) -> Service:
    harness = problem.harness
    unknown = sorted(set(service) - _KNOWN_KEYS, key=str)  # YAML reads a key such as `on` as a boolean
    if unknown:
        raise ProblemError(f"service {name!r}: the key {unknown[0]!r} is not supported here")
    argv = [*_words(service.get("entrypoint"), name, "entrypoint"), *_words(service.get("command"), name, "command")]
    if not argv:
        raise ProblemError(f"service {name!r}: expected a command")
    _check_volumes(name, service.get("volumes"))
    built_from, image = dockerfile(service), interpolate(str(service.get("image") or ""), {})
    needed = [image] if built_from is None else named_images(harness.get(built_from) or "")
    own = next((found for name in reversed(needed) if (found := options.image(name))), None)
    if built_from is None and image not in SIM_IMAGES and own is None:
        got = f"got {image!r}, in which nothing guards the tests"
        raise ProblemError(f"service {name!r}: expected the simulation image ({SIM_IMAGES[0]}), {got}")
    if built_from is not None and built_from not in harness:
        raise ProblemError(f"service {name!r}: build needs the harness file {built_from!r}, which is not there")
    if fault := next(env_file_faults(service, harness), None):
        raise ProblemError(f"service {name!r} {fault}")
    env = service_environment(service, harness)
    return Service(
        name=name,
        argv=tuple(argv),
        env=env if own is None else env | dict(options.env),
        cwd=CHECKOUT_RUN_DIR if problem.checkout else RUN_DIR,
        dockerfile=built_from,
        image=own,
    )


def _words(value: Any, name: str, key: str) -> list[str]:
    """A command as compose reads it: a list unchanged, a text split into words without a shell."""
    if value is None:
        return []
    if isinstance(value, list):
        return [interpolate(str(word), {}) for word in value]
    if not isinstance(value, str):
        raise ProblemError(f"service {name!r}: {key} must be text or a list")
    try:
        return shlex.split(interpolate(value, {}))
    except ValueError as error:
        raise ProblemError(f"service {name!r}: {key} cannot be split into words ({error})") from error


def _check_volumes(name: str, volumes: Any) -> None:
    """Check that a service mounts only ``src``, at /src, and folders of the work folder, at /code.

    Those with /code in the short form are ignored, as in the official runner, which mounts the work folder itself.
    """
    for volume in volumes or []:
        if isinstance(volume, dict):
            source, target = str(volume.get("source") or ""), str(volume.get("target") or "")
        elif "/code" in str(volume):
            continue
        else:
            source, _, rest = str(volume).partition(":")
            target = rest.partition(":")[0]
        inside = posixpath.normpath(target)
        folder = posixpath.normpath(source)
        hidden = folder == "src" and inside in ("/src", "/code/src")
        if not hidden and inside != f"/code/{folder}" and (folder, inside) != ("rundir", CHECKOUT_RUN_DIR):
            raise ProblemError(f"service {name!r}: the volume {source}:{target} is not supported; expected ./src:/src")


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
    """Finds or builds the images of services. `base` is the id of the simulation image; None for the provider's."""

    def __init__(self, base: str | None = None, options: HarnessOptions | None = None) -> None:
        self._base, self._options = base, options or HarnessOptions()
        self._digest = ""

    async def digest(self, provider: SandboxProvider) -> str:
        """The digest of the content of the provider's simulation image. Raises `ImageError`."""
        if not self._digest:
            self._digest = await provider.image_digest()
        return self._digest

    async def image(self, problem: Problem, service: Service, provider: SandboxProvider) -> str:
        """The id or name of a service's image, built when it is missing.

        Raises:
            ImageError: It cannot be built, and the message ends with the build's last lines; or there is no simulation
                image.
        """
        if self._base is None:
            self._base = await provider.image()
        base = self._base
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
    """The Dockerfile with template names replaced by the simulation image or by the caller's own images."""
    text = problem.harness[dockerfile]
    stages = base_images(text)
    last = stages[-1] if stages else ""
    if last not in SIM_IMAGES and options.image(last) is None:
        must = f"its last stage must build on {SIM_IMAGES[0]}, or nothing guards its tests"
        raise ImageError(f"{problem.id}: {dockerfile} builds on {last or 'nothing'}; {must}")
    for name in SIM_IMAGES:
        text = text.replace(name, base)
    return options.resolve(text)
