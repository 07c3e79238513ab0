"""What a sandbox's container may use, and who its users are on the daemon's machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import docker

from .protocol import WORK_DIR, SandboxSpec

OWNER_LABEL = "io.rtl-agent-gym.owner"
"""The label of every container; it names the process that owns it."""
UIDS = range(0x4000_0000, 0x7000_0000, 2)
"""User ids of agents; each keeper has the next. To the kernel, containers with the same user id are one user, who has
only so many epoll watches, inotify instances, pending signals and keys. So each container has a user of its own, drawn
from so many that no two on a machine are likely to draw the same. The ids are some of those that systemd keeps for
containers: https://systemd.io/UIDS-GIDS/"""
MAPPED_UIDS = range(2000, 65_000, 2)
"""The same where the daemon maps the ids of containers to a range of 65,536, as rootless Docker does."""
MAX_INODES = 32_768
"""Files and folders in each of the folders in memory. The kernel's own memory for them counts against the container's,
and is not a part of the folders' sizes."""
NAMES = "/var/lib/extrausers"
"""Where libnss-extrausers finds the names of users (`warden/relay.py`)."""
_SHARED_PAGES = (16 << 20) >> 12
"""System V shared memory, which outlives the processes that made it."""


def uid_range(info: Mapping[str, Any]) -> Sequence[int]:
    """The user ids that a daemon's containers can have, from what it says of itself."""
    mapped = any("name=userns" in option or "name=rootless" in option for option in info.get("SecurityOptions") or [])
    return MAPPED_UIDS if mapped else UIDS


def owner_label() -> str:
    """The value of `OWNER_LABEL` for this process: ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def owner_lives(label: str) -> bool:
    """Whether the process that a label names is alive; one of another host is taken to be."""
    host, _, pid = label.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def environment(spec: SandboxSpec) -> dict[str, str]:
    """The environment variables of a sandbox."""
    plain = {"HOME": "/home/agent", "USER": "agent", "TERM": "dumb", "PAGER": "cat", "RTL_GYM_CWD": WORK_DIR}
    return plain | dict(spec.env)


def host_config(api: Any, spec: SandboxSpec, uid: int) -> Any:
    """The limits of a sandbox's container, in Docker's form.

    All folders that can be written to are in memory. Together they are smaller than the container's memory, so that the
    warden has room to work in when they are full.
    """
    agent, keeper = f"uid={uid},gid={uid}", f"uid={uid + 1},gid={uid + 1}"
    scoring = spec.role == "scoring"
    flags = f"rw,exec,nosuid,nodev,mode=755,nr_inodes={MAX_INODES}"
    tmpfs = {
        WORK_DIR: f"{flags},{agent},size={spec.disk}",
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,nr_inodes={MAX_INODES},size={spec.disk}",
        "/home/agent": f"{flags},{agent},size={64 << 20}",
        "/rundir": f"{flags},{agent},size={spec.disk}",
        NAMES: f"rw,noexec,nosuid,nodev,mode=755,nr_inodes=16,{keeper if scoring else agent},size={64 << 10}",
    }
    if scoring:
        tmpfs |= dict.fromkeys(spec.keeper_folders, f"{flags},{keeper},size={64 << 20}")
    return api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["SETUID", "SETGID"] if scoring else None,
        security_opt=["no-new-privileges:true"],
        read_only=True,
        auto_remove=True,
        tmpfs=tmpfs,
        mem_limit=spec.memory,
        memswap_limit=spec.memory,
        shm_size=64 << 20,
        sysctls={"kernel.shmall": str(_SHARED_PAGES)},
        nano_cpus=int(spec.cpus * 1e9),
        pids_limit=spec.pids,
        ulimits=[
            docker.types.Ulimit(name="fsize", soft=spec.file_size, hard=spec.file_size),
            docker.types.Ulimit(name="core", soft=0, hard=0),
            docker.types.Ulimit(name="nofile", soft=4096, hard=4096),
        ],
        log_config=docker.types.LogConfig(type="none"),
    )
