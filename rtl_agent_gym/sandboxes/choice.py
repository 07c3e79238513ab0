"""The kind of sandboxes that this process uses, chosen by an option (`set_kind`) or the variable RTL_GYM_SANDBOX.

``docker`` and ``podman`` are containers; ``namespaces`` and ``apptainer`` need no daemon. ``auto`` is the first that
works of Docker, if a daemon answers, namespaces, and Apptainer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SkipValidation

from ..errors import DaemonError, SandboxError, UsageError
from ..options import SANDBOXES, WITHOUT_DAEMON
from .budgeted import BudgetedSandboxes
from .container import DockerSandboxes
from .daemon import daemon_host, find_daemon
from .namespaces import ApptainerSandboxes, NamespaceSandboxes, check_apptainer, check_namespaces
from .protocol import SandboxSpec
from .root_folder import apptainer
from .userns import bubblewrap

VARIABLE = "RTL_GYM_SANDBOX"
"""The environment variable with the kind."""
PODMAN_SOCKETS = ("{XDG_RUNTIME_DIR}/podman/podman.sock", "/run/podman/podman.sock")
"""Podman's sockets, without and with root."""

_chosen: str | None = None
_found: str | None = None
"""The kind that ``auto`` has chosen, for the rest of the process."""
_lock = threading.Lock()


def set_kind(option: str) -> None:
    """Choose the kind of all sandboxes that this process starts from now on, unless the option is ``auto``."""
    global _chosen
    _chosen = option if option != "auto" else _chosen


def kind(option: str = "auto") -> str:
    """The kind to use: the option, unless it is ``auto``; otherwise `set_kind`'s, otherwise the variable's.

    Raises `UsageError` if the variable has an unknown value.
    """
    word = (option if option != "auto" else None) or _chosen or os.environ.get(VARIABLE) or "auto"
    if word not in SANDBOXES:
        raise UsageError(f"{VARIABLE}: {word!r} is not one of {', '.join(SANDBOXES)}")
    return word


def read_spec(sandbox: object) -> SandboxSpec:
    """The given spec, or the default spec for a given kind of sandboxes. Raises `UsageError` for anything else."""
    spec = SandboxSpec(kind=sandbox) if isinstance(sandbox, str) else sandbox
    if not isinstance(spec, SandboxSpec) or spec.kind not in SANDBOXES:
        raise UsageError(f"sandbox must be a SandboxSpec or one of {', '.join(SANDBOXES)}, got {sandbox!r}")
    return spec


AnySpec = Annotated[SandboxSpec, SkipValidation, BeforeValidator(read_spec)]
"""A field with a spec or a kind of sandboxes."""


def make_provider(option: str = "auto") -> BudgetedSandboxes[Any]:
    """A provider of the chosen kind. May wait for the daemon's answer, once per process.

    Args:
        option: The kind; ``auto`` for the result of `kind`.

    Raises:
        UsageError: As from `kind`.
        SandboxError: With ``auto``, no kind works here; the message says why. With ``podman``, Podman does not
            answer.
    """
    found = resolved_kind(option)
    if found == "namespaces":
        return NamespaceSandboxes()
    return ApptainerSandboxes() if found == "apptainer" else DockerSandboxes(host=host_of(found))


def resolved_kind(option: str = "auto") -> str:
    """``docker``, ``podman``, ``namespaces`` or ``apptainer``. With ``auto``, raises as `make_provider` does."""
    global _found
    if (word := kind(option)) != "auto":
        return word
    with _lock:
        _found = _found or _first_that_works(CHECKS)
        return _found


def made_by() -> str:
    """The address of the daemon that runs this process's sandboxes, or their kind. Raises as `make_provider` does."""
    found = resolved_kind()
    if found in WITHOUT_DAEMON:
        return found
    return host_of(found) or daemon_host()


CHECKS: Mapping[str, Callable[[], object]] = {
    "docker": find_daemon,
    "namespaces": check_namespaces,
    "apptainer": check_apptainer,
}
"""The checks of ``auto``, in this order: each describes what it found for its kind of sandboxes, and raises
`SandboxError` if they cannot be started."""


def _first_that_works(checks: Mapping[str, Callable[[], object]]) -> str:
    lacks = {}
    for word, works in checks.items():
        try:
            works()
        except SandboxError as error:
            lacks[word] = error
        else:
            return word
    raise DaemonError(
        "no sandbox can be made here. " + ". ".join(f"{word.capitalize()}: {why}" for word, why in lacks.items())
    )


def image_kind(option: str = "auto") -> str:
    """Whose image a command concerns, ``docker`` or ``namespaces``; here, ``auto`` does not require an image.

    Raises:
        UsageError: As from `kind`.
        SandboxError: With ``auto``, no daemon answers, and bubblewrap and Apptainer are missing. With ``podman``,
            Podman does not answer.
    """
    word = kind(option)
    if word == "auto":
        word = _first_that_works({"docker": find_daemon, "namespaces": bubblewrap, "apptainer": apptainer})
    return "namespaces" if use_daemon(word) in WITHOUT_DAEMON else "docker"


def use_daemon(word: str) -> str:
    """For the kind ``podman``, direct all later connections to a daemon to Podman. Returns the kind.

    Only for commands that use one daemon: a process may have sandboxes of several kinds. Raises as `podman_host` does.
    """
    if word == "podman":
        os.environ["DOCKER_HOST"] = podman_host()
    return word


def host_of(option: str) -> str | None:
    """The address of the daemon that runs sandboxes of this kind; None for Docker's. Raises as `podman_host` does."""
    return podman_host() if kind(option) == "podman" else None


def podman_host() -> str:
    """Podman's address: ``$DOCKER_HOST``, or its own socket. Raises `DaemonError` if it does not answer there."""
    host = os.environ.get("DOCKER_HOST")
    if not host:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "/run")
        places = [place.replace("{XDG_RUNTIME_DIR}", runtime) for place in PODMAN_SOCKETS]
        socket = next(filter(os.path.exists, places), None)
        if socket is None:
            raise DaemonError(
                f"no Podman: there is no socket {' or '.join(dict.fromkeys(places))}. Install Podman (Debian, "
                "Ubuntu: apt-get install podman) and start its service: systemctl --user start podman.socket, as "
                "root without --user; or set DOCKER_HOST to its socket elsewhere"
            )
        host = f"unix://{socket}"
    if not find_daemon(host).podman:
        raise DaemonError(f"the daemon at {host} is Docker, not Podman")
    return host
