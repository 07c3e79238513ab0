"""Podman's Docker-compatible socket, with folders of its own; rootful, or as another user without root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes.daemon import daemon_host
from rtl_agent_gym.sandboxes.image import image_tag


@contextlib.contextmanager
def podman_service(*, rootless: bool) -> Iterator[str]:
    """The address of a Podman that has the simulation image. Skips the test where there can be none."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("Podman is tested as root, with its program (Debian: podman)")
    home = Path(tempfile.mkdtemp(prefix="podman-", dir="/var/tmp"))
    home.chmod(0o755)
    user: list[str] = []
    if rootless:
        user = _other_user(home)
    # crun, the default, does not run where control groups of both versions are in use.
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    places = ["--root", f"{home}/data", "--runroot", f"{home}/run", "--storage-driver", "overlay"]
    options = [*runtime, *places, "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": f"{home}/xdg"}
    command = [*user, "podman", *options, "system", "service", "--time=0", f"unix://{home}/sock"]
    with (home / "log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=home)
    host = f"unix://{home}/sock"
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(["docker", "-H", host, "version"], capture_output=True).returncode:
            if time.monotonic() > deadline or service.poll() is not None:
                pytest.skip(f"no Podman service starts here: {(home / 'log').read_text()[-500:]}")
            time.sleep(0.5)
        with subprocess.Popen(["docker", "-H", daemon_host(), "save", image_tag()], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", "-H", host, "load"], stdin=saved.stdout, check=True, capture_output=True)
        yield host
    finally:
        service.terminate()
        service.wait()
        reset = [*user, "podman", *options, "system", "reset", "--force"]
        subprocess.run(reset, env=environment, cwd=home, capture_output=True, timeout=120)
        shutil.rmtree(home, ignore_errors=True)


def _other_user(home: Path) -> list[str]:
    """The words before a command that runs it as a user with subordinate ids; the folder becomes this user's."""
    listed = Path("/etc/subuid").read_text() if Path("/etc/subuid").exists() else ""
    for line in listed.splitlines():
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(line.split(":")[0])
            if found.pw_uid != 0 and shutil.which("newuidmap"):
                (home / "xdg").mkdir(mode=0o700)
                for place in (home, home / "xdg"):
                    os.chown(place, found.pw_uid, found.pw_gid)
                return ["setpriv", f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups"]
    shutil.rmtree(home)
    pytest.skip("rootless Podman takes a user in /etc/subuid (useradd -m NAME) and newuidmap (Debian: uidmap)")
