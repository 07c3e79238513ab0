"""The hidden tests' compose file and Dockerfiles: services, templates and images."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from dotenv.parser import parse_stream

from ..errors import ProblemError, near_matches

COMPOSE_FILE = "docker-compose.yml"

EDA_IMAGE, LICENCE_NETWORK = "__VERIF_EDA_IMAGE__", "__LICENSE_NETWORK__"
"""The templates for a commercial simulator's image and for the network of its licence server."""

TEMPLATES = ("__OSS_SIM_IMAGE__", "__OSS_PNR_IMAGE__", EDA_IMAGE, LICENCE_NETWORK)
"""The words that the benchmark replaces in compose files and Dockerfiles before running them."""

SIM_IMAGES = ("__OSS_SIM_IMAGE__", "__OSS_PNR_IMAGE__", "hdlc/sim:osvb")
"""Image names that the package's own simulation image replaces. Older rows use the last name instead of a template."""

LARGEST = 1 << 20
"""Upper bound on the characters of a compose file with aliases expanded, and of the variables of env files."""

_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?:(?P<sign>:?[-?+])(?P<word>[^{}]*))?\})"
)
_TEMPLATE = re.compile(r"__[A-Z][A-Z0-9_]*?__(?![A-Za-z0-9_])")


def parse_services(text: str) -> dict[str, dict[str, Any]]:
    """The services of a compose file by name, in the file's order.

    Raises `ProblemError` if the text is not YAML, repeats a key, or a service cannot run.
    """
    document = _load(text)
    if not isinstance(document, dict):
        raise ProblemError(f"expected a mapping with services, got {_kind(document)}")
    services = document.get("services")
    if not isinstance(services, dict) or not services:
        got = "none" if services in (None, {}) else _kind(services)
        raise ProblemError(f"expected at least one service below services:, got {got}")
    for name, service in services.items():
        if not isinstance(name, str):
            raise ProblemError(f"the name of service {name!r} is {_kind(name)}; expected text (put it in quotes)")
        if not isinstance(service, dict):
            raise ProblemError(f"service {name!r} is {_kind(service)}; expected a mapping with image or build")
        if not service.get("image") and not service.get("build"):
            raise ProblemError(f"service {name!r} names neither image nor build")
        if not isinstance(environment := service.get("environment") or {}, (dict, list)):
            expected = "expected a mapping or a list of NAME=value"
            raise ProblemError(f"the environment of service {name!r} is {_kind(environment)}; {expected}")
        if not isinstance(volumes := service.get("volumes"), list | None):
            raise ProblemError(f"the value of volumes of service {name!r} is {_kind(volumes)}; expected a list")
    return services


def env_files(service: Mapping[str, Any]) -> list[str]:
    """The ``env_file`` entries of a service (text, a list, or mappings with ``path``), relative to the compose file."""
    value = service.get("env_file")
    entries = value if isinstance(value, list) else [value]
    paths = [entry.get("path") if isinstance(entry, dict) else entry for entry in entries]
    return [posixpath.normpath(str(path)) for path in paths if path]


def env_file_faults(service: Mapping[str, Any], harness: Mapping[str, str]) -> Iterator[str]:
    """Faults of the ``env_file`` entries of a service, each as the rest of a sentence about the service."""
    for path in env_files(service):
        if path not in harness:
            yield f"names the env_file {path}, which the harness lacks"
        elif "\0" in harness[path]:
            yield f"names the env_file {path}, which contains a NUL character"


def service_environment(service: Mapping[str, Any], harness: Mapping[str, str]) -> dict[str, str]:
    """The variables of a service as compose sets them: those of its existing env files, overridden by its own.

    Raises `ProblemError` as `read_env_file` does.
    """
    env: dict[str, str] = {}
    for path in env_files(service):
        env = read_env_file(harness.get(path, ""), env)
    value = service.get("environment") or {}
    if isinstance(value, list):
        value = dict(entry.partition("=")[::2] for entry in map(str, value) if "=" in entry)
    own = {str(name): setting for name, setting in value.items() if setting is not None}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in own.items()}
    return env | {name: interpolate(text, {}) for name, text in texts.items()}


def read_env_file(text: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of an ``env_file`` and of the files read before (`known`), parsed like compose: spaces around
    ``=``, comments, quotes, and ``$NAME`` for earlier variables. This process's own environment is not used.

    Raises `ProblemError` if the values have more than `LARGEST` characters.
    """
    values = dict(known or {})
    size = sum(map(len, values.values()))
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or binding.key is None or binding.value is None:
            continue
        quoted = binding.original.string.partition("=")[2].strip().startswith("'")
        values[binding.key] = binding.value if quoted else interpolate(binding.value, values)
        size += len(values[binding.key])
        if size > LARGEST:
            raise ProblemError(_TOO_LONG)
    return values


_TOO_LONG = f"the variables of an env_file have more than {LARGEST:,} characters; expected fewer uses of earlier ones"


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Compose's substitution: ``$$`` is a dollar sign, and an unset variable is empty. Raises as `read_env_file`."""
    size = 0

    def put(match: re.Match[str]) -> str:
        nonlocal size
        if match["escaped"]:
            return "$"
        name, sign, word = match["name"] or match["braced"], match["sign"] or "", match["word"] or ""
        value = values.get(name, "")
        given = bool(value) if sign.startswith(":") else name in values
        if sign.endswith("+"):
            return word if given else ""
        size += len(value)
        if size > LARGEST:
            raise ProblemError(_TOO_LONG)
        return word if not given and sign.endswith("-") else value

    return _VARIABLE.sub(put, text)


def dockerfile(service: Mapping[str, Any]) -> str | None:
    """The Dockerfile of a service, relative to the compose file; None if the service names an image."""
    build = service.get("build")
    if not build:
        return None
    options = build if isinstance(build, dict) else {"context": build if isinstance(build, str) else None}
    folder, file = str(options.get("context") or "."), str(options.get("dockerfile") or "Dockerfile")
    return posixpath.normpath(posixpath.join(folder, file))


def is_templated(name: str) -> bool:
    """Whether the benchmark replaces templates in the harness file `name`."""
    base = name.rsplit("/", 1)[-1]
    return base == COMPOSE_FILE or base.startswith("Dockerfile")


def check_templates(text: str) -> None:
    """Raise `ProblemError` for a template that the benchmark does not know."""
    unknown = sorted(set(_TEMPLATE.findall(text)) - set(TEMPLATES))
    if unknown:
        raise ProblemError(f"unknown template {unknown[0]}; {near_matches(unknown[0], TEMPLATES)}")


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, as compose does; PyYAML would keep only the last. Also refuses NUL characters, which
    commands and variables cannot contain, and nested aliases that would expand to more than `LARGEST` characters.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._size, self._sizes = 0, dict[yaml.Node, int]()

    def compose_node(self, parent: Any, index: Any) -> Any:
        alias, before = self.check_event(yaml.AliasEvent), self._size
        node: Any = super().compose_node(parent, index)
        if alias:
            self._size += self._sizes.get(node, LARGEST + 1)  # an alias inside its own node never ends
        else:
            self._size += 1 + len(node.value)
            self._sizes[node] = self._size - before
        if self._size > LARGEST:
            problem = f"with its aliases replaced, the file has more than {LARGEST:,} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and "\0" in value:
            raise yaml.constructor.ConstructorError(None, None, "a value contains a NUL character", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is repeated", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _load(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ProblemError(f"not YAML: {place}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProblemError(f"not YAML: {str(error).splitlines()[0]}") from error
    except (KeyError, IndexError, AttributeError, TypeError) as error:  # from PyYAML, for a wrong value after a tag
        raise ProblemError(f"not YAML: a value does not suit its tag ({error})") from error


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile as (KEYWORD, rest), without comments and with joined continuation lines."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(words[0].upper(), words[1].strip() if len(words) > 1 else "") for words in found]


def base_images(dockerfile: str) -> list[str]:
    """The image of each ``FROM`` of a Dockerfile, without options and stage names."""
    words = [rest.split() for keyword, rest in instructions(dockerfile) if keyword == "FROM"]
    return [next((word for word in line if not word.startswith("--")), "") for line in words]


def named_images(dockerfile: str) -> list[str]:
    """The images and stages from which a Dockerfile copies or mounts, then those that it builds on."""
    words = " ".join(rest for keyword, rest in instructions(dockerfile) if keyword in ("COPY", "ADD", "RUN"))
    return [*re.findall(r"(?:--|,)from=([^\s,]+)", words), *base_images(dockerfile)]


def commercial_need(harness: Mapping[str, str]) -> str | None:
    """What a harness needs beyond open tools, or None."""
    if COMPOSE_FILE not in harness:
        return None
    words = {word for name, text in harness.items() if is_templated(name) for word in _TEMPLATE.findall(text)}
    if EDA_IMAGE in words:
        return f"its harness needs a commercial simulator (the image {EDA_IMAGE})"
    if LICENCE_NETWORK in words:
        return f"its harness needs the licence server of a commercial simulator (the network {LICENCE_NETWORK})"
    document = _load(harness[COMPOSE_FILE])
    networks = document.get("networks") if isinstance(document, dict) else None
    entries: dict[Any, Any] = networks if isinstance(networks, dict) else {}
    for name, entry in entries.items():
        if isinstance(entry, dict) and entry.get("external"):
            network = entry.get("name") or name
            return f"its harness needs the external network {network}, such as a commercial simulator's licence server"
    return None
