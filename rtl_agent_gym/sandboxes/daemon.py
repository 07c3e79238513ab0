"""The Docker daemon: find it; where that is this machine's business, install and start it.

`find_daemon` only asks. `ensure_daemon` also acts, in one situation: it is root on Debian or Ubuntu, and no daemon was
named. Everywhere else it raises `DaemonError` with what a person has to do.

A daemon that this module starts belongs to the machine, not to the process: it runs in a session of its own with its
output in a file, and outlives the caller. Only a daemon that does not come up in time is ended again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from docker.errors import DockerException

from rtl_agent_gym.errors import DaemonError, ImageError, SandboxError
from rtl_agent_gym.sandboxes.host import (
    Progress,
    apt_install,
    exclusive,
    find_program,
    is_debian_like,
    is_root,
    run_program,
    silent,
    tail,
)

DEFAULT_HOST = "unix:///var/run/docker.sock"
"""Where a daemon listens unless it is told otherwise."""

_ENFORCED_LIMITS = ("MemoryLimit", "PidsLimit", "CpuCfsQuota")


@dataclass(frozen=True)
class DaemonInfo:
    """A daemon that answers."""

    host: str
    """Its address, such as ``unix:///var/run/docker.sock``."""
    version: str
    api_version: str
    storage_driver: str
    cgroup_version: str
    cgroup_driver: str
    seccomp: bool
    """Whether containers run under a system call filter."""
    cpus: int
    memory: int
    """Bytes that the daemon's machine has."""
    root_dir: str
    """Where it keeps images and containers, on its own machine."""
    missing_limits: tuple[str, ...] = ()
    """Limits of a sandbox that this daemon cannot enforce."""


@dataclass(frozen=True)
class DaemonLaunch:
    """How `ensure_daemon` starts a daemon. The defaults are Debian's own."""

    host: str = DEFAULT_HOST
    """The unix socket it listens on."""
    pidfile: Path = Path("/var/run/docker.pid")
    exec_root: Path = Path("/var/run/docker")
    """Where it keeps the state of what runs, its containerd's among it."""
    arguments: tuple[str, ...] = ()
    """More arguments for `dockerd`."""
    log: Path | None = None
    """Its output; None for a file in ``/var/log``, or in the temporary folder where that is not writable."""
    wait: float = 60.0
    """Seconds it has to answer."""


def daemon_host() -> str:
    """The address to reach Docker at: ``$DOCKER_HOST``, or the first usual socket that exists."""
    named = os.environ.get("DOCKER_HOST")
    if named:
        return named
    places = [Path(DEFAULT_HOST.removeprefix("unix://"))]
    if runtime_dir := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(runtime_dir) / "docker.sock")  # rootless Docker
    places.append(Path.home() / ".docker/run/docker.sock")  # Docker Desktop
    return next((f"unix://{place}" for place in places if place.is_socket()), DEFAULT_HOST)


def connect(host: str | None = None, *, timeout: float = 60.0) -> docker.DockerClient:
    """A client of the daemon. The caller closes it.

    Args:
        host: The daemon's address; None for `daemon_host`.
        timeout: Seconds that one answer may take.

    Raises:
        DaemonError: Nothing answers there; the message says why and what to do.
    """
    host = host or daemon_host()
    _probe(host, timeout=min(timeout, 5.0))
    try:
        tls_files = os.environ if host == os.environ.get("DOCKER_HOST") else {}
        return docker.DockerClient.from_env(environment={**tls_files, "DOCKER_HOST": host}, timeout=int(timeout))
    except (DockerException, requests.RequestException, ValueError) as cause:  # the last for an address that is none
        raise DaemonError(f"what listens at {host} does not answer as a Docker daemon: {cause}") from cause


@contextlib.contextmanager
def docker_errors() -> Iterator[None]:
    """Turn the exceptions of Docker work into those of `rtl_agent_gym.errors`."""
    try:
        yield
    except SandboxError:
        raise
    except docker.errors.ImageNotFound as error:
        raise ImageError(f"{error.explanation}; build it with: rtl-agent-gym image build") from error
    except docker.errors.APIError as error:
        raise DaemonError(f"Docker refused: {error.explanation or error}") from error
    except (DockerException, OSError) as error:  # those of requests are an OSError, too
        raise DaemonError(
            f"no Docker daemon answers ({error}); start one with ./scripts/setup, then see: rtl-agent-gym doctor"
        ) from error


def _probe(host: str, timeout: float) -> None:
    """Tell a missing, a forbidden and a dead socket apart, which the client's own errors do not."""
    if not host.startswith("unix://"):
        return
    path = host.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout)
        try:
            probe.connect(path)
        except FileNotFoundError as cause:
            raise DaemonError(f"no Docker daemon: {path} does not exist. {_how_to_get_one()}") from cause
        except PermissionError as cause:
            raise DaemonError(
                f"not allowed to use the Docker daemon at {path}. Add yourself to its group (as root: "
                f"usermod -aG docker $USER, then log in again), or use rootless Docker."
            ) from cause
        except OSError as cause:
            raise DaemonError(f"the Docker daemon at {path} is gone ({cause}). {_how_to_get_one()}") from cause


def find_daemon(host: str | None = None, *, timeout: float = 10.0) -> DaemonInfo:
    """Ask the daemon what it is.

    Raises:
        DaemonError: No daemon answers within `timeout` seconds, or not to this user.
    """
    host = host or daemon_host()
    client = connect(host, timeout=timeout)
    try:
        info, version = client.info(), client.version()
    except (DockerException, requests.RequestException) as cause:
        raise DaemonError(f"the Docker daemon at {host} does not answer: {cause}") from cause
    finally:
        client.close()
    return _daemon_info(host, info, version)


def _daemon_info(host: str, info: dict[str, Any], version: dict[str, Any]) -> DaemonInfo:
    security = [str(option) for option in info.get("SecurityOptions") or []]
    return DaemonInfo(
        host=host,
        version=str(version.get("Version", "?")),
        api_version=str(version.get("ApiVersion", "?")),
        storage_driver=str(info.get("Driver", "?")),
        cgroup_version=str(info.get("CgroupVersion", "?")),
        cgroup_driver=str(info.get("CgroupDriver", "?")),
        seccomp=any("name=seccomp" in option and "unconfined" not in option for option in security),
        cpus=int(info.get("NCPU", 0)),
        memory=int(info.get("MemTotal", 0)),
        root_dir=str(info.get("DockerRootDir", "")),
        missing_limits=tuple(name for name in _ENFORCED_LIMITS if not info.get(name)),
    )


def ensure_daemon(progress: Progress = silent, *, launch: DaemonLaunch | None = None) -> DaemonInfo:
    """Find the daemon, or install and start one where this process may.

    Args:
        progress: Told what is done.
        launch: How to start one; None for Debian's own way at the default socket.

    Raises:
        DaemonError: There is none and none could be started; the message says why and what to do.
    """
    host = launch.host if launch else None
    try:
        return find_daemon(host)
    except DaemonError as missing:
        if isinstance(missing.__cause__, PermissionError) or (launch is None and os.environ.get("DOCKER_HOST")):
            raise
        if not (is_root() and is_debian_like()):
            raise
    with exclusive("daemon", progress):
        try:
            return find_daemon(host)  # who held the lock before may have started it
        except DaemonError:
            return _get_daemon(launch or DaemonLaunch(), progress)


def _get_daemon(launch: DaemonLaunch, progress: Progress) -> DaemonInfo:
    _install_daemon(progress)
    if launch == DaemonLaunch() and Path("/run/systemd/system").is_dir():
        progress("starting Docker's service")
        run_program(["systemctl", "start", "docker"], error=DaemonError)
        return _wait_for_daemon(launch, None, None)
    return _start_daemon(launch, progress)


def _install_daemon(progress: Progress) -> None:
    # dockerd cannot set up its network without iptables, and as a mere recommendation it may not be there.
    programs = {"dockerd": "docker.io", "iptables": "iptables"}
    missing = [package for program, package in programs.items() if find_program(program) is None]
    if missing:
        apt_install(missing, error=DaemonError, progress=progress)


def _start_daemon(launch: DaemonLaunch, progress: Progress) -> DaemonInfo:
    running = _running(launch.pidfile, "dockerd")
    if running is not None:
        progress(f"a dockerd is running (process {running}) but does not answer yet; waiting for it")
        return _wait_for_daemon(launch, None, None)
    # containerd's too: dockerd takes a dead one that its parent has not reaped for alive, and waits for it in vain.
    for pidfile, program in (
        (launch.pidfile, "dockerd"),
        (launch.exec_root / "containerd/containerd.pid", "containerd"),
    ):
        if pidfile.exists() and _running(pidfile, program) is None:
            progress(f"removing {pidfile}, left by a {program} that is gone")
            pidfile.unlink(missing_ok=True)
    log = launch.log or _log_file()
    argv = [find_program("dockerd") or "dockerd", *launch.arguments]
    if launch.host != DEFAULT_HOST:
        argv += ["--host", launch.host]
    if launch.pidfile != DaemonLaunch.pidfile:
        argv += ["--pidfile", str(launch.pidfile)]
    if launch.exec_root != DaemonLaunch.exec_root:
        argv += ["--exec-root", str(launch.exec_root)]
    progress(f"starting dockerd; its output goes to {log}")
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd="/"
            )
    except OSError as cause:
        raise DaemonError(f"cannot start {argv[0]}: {cause}") from cause
    try:
        info = _wait_for_daemon(launch, process, log)
    except BaseException:  # an interrupt too must not leave a daemon behind that nobody has seen answer
        _end(process)
        raise
    process.returncode = 0  # let go: the object would warn on collection that its process, rightly, still runs
    return info


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_daemon(launch: DaemonLaunch, process: subprocess.Popen[bytes] | None, log: Path | None) -> DaemonInfo:
    deadline = time.monotonic() + launch.wait
    while True:
        # Asked before looking: where two callers start a daemon at once, the slower one's ends while the other answers.
        ended = process.poll() if process else None
        try:
            return find_daemon(launch.host)
        except DaemonError as cause:
            if ended is not None or time.monotonic() > deadline:
                what = (
                    f"ended with exit code {ended}" if ended is not None else f"gave no answer in {launch.wait:.0f} s"
                )
                raise DaemonError(f"dockerd {what}. {_why(launch, log)}") from cause
        time.sleep(0.2)


def _why(launch: DaemonLaunch, log: Path | None) -> str:
    if log is None:
        return (
            f"It was not started from here: see its own log (journalctl -u docker), or end it (its process id is in "
            f"{launch.pidfile}) and run this again."
        )
    lines = log.read_text(errors="replace").splitlines()
    return (
        f"The end of {log}:\n{tail(lines)}\nFix what it names (a container or virtual machine may lack cgroups, "
        f"overlay or iptables), or set DOCKER_HOST to a daemon that runs elsewhere."
    )


def _running(pidfile: Path, program: str) -> int | None:
    """The process id in the file when a live process of that name has it; ids are used again, so the name counts."""
    try:
        pid = int(pidfile.read_text())
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except (OSError, ValueError):
        return None
    return pid if name == program and rest.split()[0] not in {"Z", "X"} else None


def _log_file() -> Path:
    folder = Path("/var/log")
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    return folder / "rtl-agent-gym-dockerd.log"


def _how_to_get_one() -> str:
    if os.environ.get("DOCKER_HOST"):
        return "DOCKER_HOST names it: start it there, or unset DOCKER_HOST"
    if is_debian_like():
        install = "As root, ./scripts/setup installs and starts one; or: apt-get install docker.io iptables"
    else:
        install = (
            "Install and start Docker (Linux: the docker package of your distribution; macOS: Docker Desktop or colima)"
        )
    return f"{install}. A daemon elsewhere is used by setting DOCKER_HOST."
