"""Finds the Docker daemon, and installs and starts one where that is allowed.

`find_daemon` changes nothing. `ensure_daemon` also installs and starts one if this process is root on Debian or Ubuntu
and DOCKER_HOST is not set; otherwise it raises `DaemonError` with what the user has to do.

A daemon that this module starts belongs to the machine, not to the process: it runs in its own session, writes its
output to a file, and outlives the caller. It is ended again only if it does not answer in time.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.errors
from docker.errors import DockerException
from pydantic import BaseModel, Field

from ..errors import DaemonError, ImageError, SandboxError
from ..files import exclusive

Progress = Callable[[str], None]
"""Called with one line per step of long work."""
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
_LONGEST_RUN = 1800.0
DEFAULT_HOST = "unix:///var/run/docker.sock"
PIDFILE = Path("/var/run/docker.pid")
CONTAINERD_PIDFILE = Path("/var/run/docker/containerd/containerd.pid")
"""The files with the process ids of a daemon and of its containerd."""
SYSTEMD = Path("/run/systemd/system")
"""A folder that exists if systemd runs; systemd then starts the daemon."""
LOG_FOLDER = Path("/var/log")
"""The folder for the output of a started daemon; the temporary folder if this user may not write here."""
START_SECONDS = 60.0
"""Seconds within which a started daemon must answer."""

_ENFORCED_LIMITS = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
"""The limits of a sandbox: their names in ``docker info``, by controller."""


def silent(line: str) -> None:
    """A `Progress` that prints nothing."""


class DaemonInfo(BaseModel, frozen=True):
    """A daemon that answers."""

    host: str
    """Its address, such as ``unix:///var/run/docker.sock``."""
    version: str = Field(alias="ServerVersion")
    api_version: str
    storage_driver: str = Field("?", alias="Driver")
    cgroup_version: str = Field("?", alias="CgroupVersion")
    cgroup_driver: str = Field("?", alias="CgroupDriver")
    seccomp: bool
    """Whether containers run under a system call filter."""
    cpus: int = Field(0, alias="NCPU")
    memory: int = Field(0, alias="MemTotal")
    """The memory of the daemon's machine in bytes."""
    root_dir: str = Field("", alias="DockerRootDir")
    """Where it keeps images and containers, on its own machine."""
    missing_limits: tuple[str, ...]
    """Limits of a sandbox that this daemon cannot enforce."""
    podman: bool = False
    """Whether it is Podman, which answers Docker's requests."""


def daemon_host() -> str:
    """The address of the Docker daemon: ``$DOCKER_HOST``, or the first standard socket that this user may use.

    Without either, it is the first socket that exists; connecting to it fails with the reason.
    """
    named = os.environ.get("DOCKER_HOST")
    if named:
        return named
    places = [Path(DEFAULT_HOST.removeprefix("unix://"))]
    if runtime_dir := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(runtime_dir) / "docker.sock")  # rootless Docker
    home = Path(os.path.expanduser("~"))  # `Path.home` raises if there is none
    places += [home / f".docker/{folder}/docker.sock" for folder in ("run", "desktop")]  # Docker Desktop
    tries = ((place, right) for right in (os.W_OK, os.F_OK) for place in places)
    found = (f"unix://{place}" for place, right in tries if os.access(place, right) and place.is_socket())
    return next(found, DEFAULT_HOST)


def connect(host: str | None = None, *, timeout: float = 60.0) -> docker.DockerClient:
    """A client of the daemon. The caller closes it.

    Args:
        host: The daemon's address; None for `daemon_host`.
        timeout: Seconds that one answer may take.

    Raises:
        DaemonError: No daemon answers there, or it is not supported; the message says why and what to do.
    """
    host = host or daemon_host()
    _check_address(host)
    if host.startswith("unix://"):
        _probe(host.removeprefix("unix://"), timeout=min(timeout, 5.0))
    try:
        return docker.DockerClient.from_env(environment={"DOCKER_HOST": host}, timeout=int(timeout))
    except (DockerException, OSError, ValueError) as cause:  # ValueError: not an address
        raise DaemonError(f"what listens at {host} does not answer as a Docker daemon: {cause}") from cause


def attach(client: docker.DockerClient, container: str) -> socket.socket:
    """The raw stream of a container that has not been started. Its stdin ends when this one socket is closed."""
    stream = client.api.attach_socket(container, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    try:
        if not isinstance(stream, socket.SocketIO):
            raise DaemonError(f"cannot attach to containers: Docker's client returned a {type(stream).__name__}")
        return socket.socket(fileno=os.dup(stream.fileno()))
    finally:
        stream._response.close()
        stream.close()


@contextlib.contextmanager
def docker_errors() -> Iterator[None]:
    """Translate Docker's exceptions into those of `rtl_agent_gym.errors`."""
    try:
        yield
    except SandboxError:
        raise
    except docker.errors.ImageNotFound as error:
        raise ImageError(f"{error.explanation}; build it with: rtl-agent-gym image build") from error
    except docker.errors.APIError as error:
        raise DaemonError(f"Docker refused: {error.explanation or error}") from error
    except (DockerException, OSError) as error:  # requests' exceptions are OSErrors
        raise DaemonError(
            f"no Docker daemon answers ({error}); start one with `rtl-agent-gym image build --start-daemon`, then see: "
            "rtl-agent-gym doctor"
        ) from error


def _check_address(host: str) -> None:
    try:
        where = urlsplit(host)
        name, port = where.hostname or "", where.port
    except ValueError as cause:
        raise DaemonError(f"DOCKER_HOST={host}: {cause}") from cause
    if where.scheme in ("ssh", "tcp") and name:
        if where.scheme == "tcp" and port and _is_loopback(name) and not os.environ.get("DOCKER_TLS_VERIFY"):
            return
        raise DaemonError(
            f"DOCKER_HOST={host}: daemons on other machines and TLS are not supported directly. Forward the daemon's "
            f"socket by ssh, and use its local end: ssh -fnNT -L /tmp/docker-there.sock:/var/run/docker.sock "
            f"{where.username or 'you'}@{name}, then DOCKER_HOST=unix:///tmp/docker-there.sock"
        )
    if where.scheme != "unix":
        raise DaemonError(f"DOCKER_HOST={host} is not an address: use unix://PATH or tcp://127.0.0.1:PORT")


def _is_loopback(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def is_local(host: str, info: Mapping[str, Any]) -> bool:
    """Whether a daemon runs on this machine, and not behind a forwarded socket or in a virtual machine.

    It is another machine if the daemon's description of itself, `info`, has another size of memory.
    """
    if not host.startswith("unix://"):
        return False
    try:
        here = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return True
    there = int(info.get("MemTotal") or 0)
    return here is None or not there or there == int(here[1]) * 1024


def _probe(path: str, timeout: float) -> None:
    """Distinguish a missing, a forbidden and a dead socket, which the client's own errors do not."""
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


def find_daemon(host: str | None = None) -> DaemonInfo:
    """Describe the daemon.

    Raises:
        DaemonError: No daemon answers within ten seconds, or this user may not use it.
    """
    host = host or daemon_host()
    with docker_errors(), closing(connect(host, timeout=10.0)) as client:
        info = client.info()
        security = [str(option) for option in info.get("SecurityOptions") or []]
        return DaemonInfo(
            host=host,
            api_version=client.api.api_version,
            seccomp=any("name=seccomp" in option and "unconfined" not in option for option in security),
            missing_limits=missing_limits(client.api, info),
            podman=is_podman(client.api),
            **info,
        )


def is_podman(api: Any) -> bool:
    """Whether the daemon is Podman."""
    return any(part.get("Name") == "Podman Engine" for part in api.version().get("Components") or [])


def missing_limits(api: Any, info: Mapping[str, Any]) -> tuple[str, ...]:
    """The limits of a sandbox that a daemon cannot enforce, by their names in its ``docker info`` (`info`)."""
    if not is_podman(api):
        return tuple(name for name in _ENFORCED_LIMITS.values() if not info.get(name))
    # Podman's Docker API reports the machine's limits, even if a rootless user has no control groups.
    host = api._result(api._get(f"{api.base_url}/v4.0.0/libpod/info"), json=True)["host"]
    controllers = set(host.get("cgroupControllers") or ())
    if host.get("security", {}).get("rootless") and host.get("cgroupVersion") != "v2":
        controllers = set()
    return tuple(name for controller, name in _ENFORCED_LIMITS.items() if controller not in controllers)


def ensure_daemon(progress: Progress = silent) -> DaemonInfo:
    """Find the daemon, or install and start one where this process may.

    Raises:
        DaemonError: There is none and none could be started; the message says why and what to do.
    """
    try:
        return find_daemon()
    except DaemonError as missing:
        if isinstance(missing.__cause__, PermissionError) or os.environ.get("DOCKER_HOST"):
            raise
        if not (is_root() and is_debian_like()):
            raise
    with exclusive("daemon", progress):
        try:
            return find_daemon()  # another process may have started it meanwhile
        except DaemonError:
            return _start_daemon(progress)


def _start_daemon(progress: Progress) -> DaemonInfo:
    # dockerd cannot set up its network without iptables, which Debian's package only recommends.
    programs = {"dockerd": "docker.io", "iptables": "iptables"}
    missing = [package for program, package in programs.items() if find_program(program) is None]
    if missing:
        apt_install(missing, error=DaemonError, progress=progress)
    if SYSTEMD.is_dir():
        progress("starting Docker's service")
        run_program(["systemctl", "start", "docker"], error=DaemonError)
        return _wait_for_daemon()
    running = _running(PIDFILE, "dockerd")
    if running is not None:
        progress(f"a dockerd is running (process {running}) but does not answer yet; waiting for it")
        return _wait_for_daemon()
    # Also containerd's: dockerd waits in vain for a dead one that its parent has not reaped.
    for pidfile, program in {PIDFILE: "dockerd", CONTAINERD_PIDFILE: "containerd"}.items():
        deadline = time.monotonic() + 5.0
        while _running(pidfile, program) is not None and time.monotonic() < deadline:  # it ends with its dockerd
            time.sleep(0.1)
        if pidfile.exists() and _running(pidfile, program) is None:
            progress(f"removing {pidfile}, left by a {program} that is gone")
            pidfile.unlink(missing_ok=True)
    folder = LOG_FOLDER if os.access(LOG_FOLDER, os.W_OK) else tempfile.gettempdir()
    log = Path(folder, "rtl-agent-gym-dockerd.log")
    dockerd = find_program("dockerd") or "dockerd"
    progress(f"starting dockerd; its output goes to {log}")
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [dockerd], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
            )
    except OSError as cause:
        raise DaemonError(f"cannot start {dockerd}: {cause}") from cause
    try:
        info = _wait_for_daemon(process, log)
    except BaseException:  # even an interrupt must not leave behind a daemon that never answered
        process.terminate()
        try:
            process.wait(timeout=15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    process.returncode = 0  # it keeps running; without this, Popen warns when it is garbage-collected
    return info


def _wait_for_daemon(process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> DaemonInfo:
    deadline = time.monotonic() + START_SECONDS
    while True:
        # Checked first: if two callers start a daemon at once, the slower one's ends while the other's answers.
        ended = process.poll() if process else None
        try:
            return find_daemon(DEFAULT_HOST)
        except DaemonError as cause:
            if ended is not None:
                raise DaemonError(f"dockerd ended with exit code {ended}. {_why(log)}") from cause
            if time.monotonic() > deadline:
                raise DaemonError(f"dockerd did not answer within {START_SECONDS:.0f} s. {_why(log)}") from cause
        time.sleep(0.2)


def _why(log: Path | None) -> str:
    if log is None:
        return (
            f"Another program started it: see its log (journalctl -u docker), or end it (its process id is in "
            f"{PIDFILE}) and run this again."
        )
    return (
        f"The end of {log}:\n{tail(log.read_text(errors='replace').splitlines())}\nFix what it names (a container or "
        f"virtual machine may lack cgroups, overlay or iptables), or set DOCKER_HOST to a daemon that runs elsewhere."
    )


def _running(pidfile: Path, program: str) -> int | None:
    """The process id in the file, if a live process of that name has it; ids are reused, so the name is checked."""
    try:
        pid = int(pidfile.read_text())
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except (OSError, ValueError):
        return None
    return pid if name == program and rest.split()[0] not in {"Z", "X"} else None


def _how_to_get_one() -> str:
    if os.environ.get("DOCKER_HOST"):
        return "DOCKER_HOST has this address: start a daemon there, or unset DOCKER_HOST"
    install = (
        "As root, `rtl-agent-gym image build --start-daemon` installs and starts one; or: apt-get install docker.io "
        "iptables"
        if is_debian_like()
        else "Install and start Docker (Linux: your distribution's docker package; macOS: Docker Desktop or colima)"
    )
    return f"{install}. To use a daemon elsewhere, set DOCKER_HOST."


def is_root() -> bool:
    """Whether this process may install packages and start daemons."""
    return os.geteuid() == 0


def is_debian_like() -> bool:
    """Whether this is Debian, Ubuntu or a derivative, with `apt-get`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return bool(names & {"debian", "ubuntu"}) and find_program("apt-get") is not None


def find_program(name: str) -> str | None:
    """The path of a program, also in the system folders that a user's PATH omits."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS)


def tail(lines: Iterable[str], count: int = 30) -> str:
    """The last lines that are not empty, indented for the end of a message."""
    return "\n".join([f"    {line.rstrip()}" for line in lines if line.strip()][-count:])


def run_program(argv: Sequence[str], *, error: type[SandboxError]) -> str:
    """Run a program of the machine and return its stdout and stderr.

    Args:
        argv: The program and its arguments.
        error: Raised if it cannot be run, fails or takes more than half an hour; the message ends with its last lines
            of output.
    """
    command = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
            timeout=_LONGEST_RUN,
        )
    except OSError as cause:
        raise error(f"cannot run `{command}`: {cause.strerror}") from cause
    except subprocess.TimeoutExpired as cause:
        raise error(f"`{command}` did not end within {_LONGEST_RUN:.0f} s") from cause
    if done.returncode != 0:
        raise error(f"`{command}` failed with exit code {done.returncode}:\n{tail(done.stdout.splitlines())}")
    return done.stdout


def apt_install(packages: Sequence[str], *, error: type[SandboxError], progress: Progress) -> None:
    """Install Debian packages as root. Waits up to two minutes for another apt to finish."""
    progress(f"installing {' '.join(packages)} with apt-get")
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        run_program(["apt-get", "-o", "DPkg::Lock::Timeout=120", *words], error=error)
