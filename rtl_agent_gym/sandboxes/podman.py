"""What Podman's Docker-compatible socket does differently.

Its folders in memory take no owner, size in inodes or mode of their own, so a container gets volumes of type tmpfs
instead, which the kernel's own options describe. They are named after the container and removed after it; those of a
client that was killed are removed by the next one. A volume without a container has no content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import docker.errors

_PAGE = 4096
_KEPT = {"uid", "gid", "mode", "nr_inodes"}
"""Options of a tmpfs that belong to the volume; the others belong to its place in the container."""
PROCESSES = 16_384
"""Podman's own limit on a user's processes may be above the one that it runs under, which is an error."""

REMOVAL = 30.0
"""Seconds for which Podman is asked to remove what it says is in use."""


def is_podman(api: Any) -> bool:
    """Whether the daemon is Podman."""
    return any(part.get("Name") == "Podman Engine" for part in api.version().get("Components") or [])


def missing_limits(api: Any) -> tuple[str, ...]:
    """The limits of a container that this Podman cannot enforce. Its answers to Docker's questions are the machine's,
    also where a user without root has none of the machine's control groups.
    """
    host = api._result(api._get(f"{api.base_url}/v4.0.0/libpod/info"), json=True)["host"]
    controllers = set(host.get("cgroupControllers") or ())
    if host.get("security", {}).get("rootless") and host.get("cgroupVersion") != "v2":
        controllers = set()
    names = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    return tuple(name for controller, name in names.items() if controller not in controllers)


def make_volumes(api: Any, container: str, tmpfs: Mapping[str, str], label: Mapping[str, str]) -> list[str]:
    """Make volumes for the folders in memory of a container.

    Args:
        api: Podman's client.
        container: The container's name.
        tmpfs: Options by folder, as for Docker.
        label: For `remove_orphans`.

    Returns:
        What to mount where, in the form of Docker's ``binds``.
    """
    binds = []
    for number, (folder, text) in enumerate(sorted(tmpfs.items())):
        options = dict(part.partition("=")[::2] for part in text.split(","))
        kept = {name: value for name, value in options.items() if name in _KEPT}
        kept["nr_blocks"] = str(int(options["size"]) // _PAGE)  # Podman takes `size` for a quota of its own
        name = f"{container}-{number}"
        words = ",".join(f"{key}={value}" for key, value in kept.items())
        api.create_volume(name, "local", {"type": "tmpfs", "device": "tmpfs", "o": words}, dict(label))
        mounting = ",".join(word for word in options if word in ("rw", "exec", "noexec", "nosuid", "nodev"))
        binds.append(f"{name}:{folder}:{mounting}")
    return binds


def until_removed(remove: Callable[[], None]) -> None:
    """Remove a container. Podman answers 500 while one ends by itself ("could not be stopped"), so it is asked again.

    Raises:
        docker.errors.APIError: It refuses for `REMOVAL` seconds, or for another reason.
    """
    deadline = time.monotonic() + REMOVAL
    while True:
        try:
            remove()
        except docker.errors.APIError as error:
            if error.status_code != 500 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def remove_volumes(api: Any, container: str) -> None:
    """Remove the volumes of a container that has been removed, or whose removal is under way."""
    deadline = time.monotonic() + REMOVAL
    for volume in api.volumes(filters={"name": f"{container}-"})["Volumes"] or []:
        while not _removed(api, volume["Name"]) and time.monotonic() < deadline:
            time.sleep(0.1)


def _removed(api: Any, name: str) -> bool:
    try:
        api.remove_volume(name)
    except docker.errors.NotFound:
        return True
    except docker.errors.APIError:  # in use
        return False
    return True


def remove_orphans(api: Any, label: str, owner_lives: Callable[[str], bool]) -> None:
    """Remove volumes whose owner's process has ended. Those in use stay."""
    for volume in api.volumes(filters={"label": label})["Volumes"] or []:
        if not owner_lives((volume.get("Labels") or {}).get(label, "")):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_volume(volume["Name"])
