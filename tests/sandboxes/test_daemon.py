"""Finding, starting and recovering a Docker daemon: on a private dockerd that shares nothing with the machine's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rtl_agent_gym.errors import DaemonError
from rtl_agent_gym.sandboxes import daemon as module
from rtl_agent_gym.sandboxes.daemon import (
    connect,
    ensure_daemon,
    find_daemon,
    find_program,
    is_debian_like,
    is_root,
)
from tests.waiting import until

starts_daemons = [
    pytest.mark.daemon,
    pytest.mark.skipif(
        not (is_root() and is_debian_like() and find_program("dockerd")),
        reason="only root on Debian or Ubuntu starts daemons",
    ),
]


def place_daemon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a daemon, and for the files of one that is started, only in this folder."""
    for name in ("DOCKER_HOST", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(module, "DEFAULT_HOST", f"unix://{folder}/d.sock")
    places = {
        "PIDFILE": "pid",
        "CONTAINERD_PIDFILE": "exec/containerd/containerd.pid",
        "SYSTEMD": "no",
        "LOG_FOLDER": "",
    }
    for name, place in places.items():
        monkeypatch.setattr(module, name, folder / place)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a daemon is started that is all alone: its own socket, folders, pid file and network namespace.

    Without the namespace its ``--bridge=none`` would delete docker0, which the machine's own daemon stands on.
    """
    had_bridge = "docker0" in os.listdir("/sys/class/net")
    folder = Path(tempfile.mkdtemp(prefix="rtl-gym-", dir="/tmp"))  # a socket's path has 108 bytes at most
    wrapper = folder / "bin/dockerd"
    wrapper.parent.mkdir()
    places = f"--host unix://{folder}/d.sock --pidfile {folder}/pid --exec-root {folder}/exec --data-root {folder}/data"
    command = f"unshare --net {find_program('dockerd')} {places} --bridge=none --iptables=false"
    wrapper.write_text(f"#!/bin/sh\nexec {command}\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    place_daemon(folder, monkeypatch)
    yield folder
    for process in _daemons_in(folder):
        with contextlib.suppress(ProcessLookupError):  # containerd ends with its dockerd
            os.kill(process, signal.SIGTERM)
    assert until(lambda: not _daemons_in(folder))
    for mount in [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]:
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(folder)
    assert ("docker0" in os.listdir("/sys/class/net")) == had_bridge


def _daemons_in(folder: Path) -> list[int]:
    """The live processes (dockerd and its containerd) whose command line names the folder."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and str(folder).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue  # it ended while we looked
    return found


class TestStarting:
    pytestmark = starts_daemons

    def test_starts_one_in_its_own_session_leaves_it_alone_and_recovers_when_it_was_killed(self, folder: Path) -> None:
        said: list[str] = []
        pidfile = folder / "pid"
        # A pid that another program has now: dockerd itself would refuse with "ensure docker is not running".
        pidfile.write_text(str(os.getpid()))
        with ThreadPoolExecutor(2) as threads:
            info, other = threads.map(lambda _: ensure_daemon(said.append), range(2))
        assert info == other, "two at once share one"
        assert info.host == module.DEFAULT_HOST
        assert info.version[0].isdigit()
        pid = int(pidfile.read_text())
        assert os.getsid(pid) == pid != os.getpid()
        assert any("starting dockerd" in line for line in said)

        said.clear()
        assert ensure_daemon(said.append) == info
        assert said == []
        assert int(pidfile.read_text()) == pid

        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with pytest.raises(DaemonError, match="is gone"):
            find_daemon()
        ensure_daemon(said.append)
        assert any("left by a dockerd that is gone" in line for line in said)
        assert int(pidfile.read_text()) != pid

    def test_one_that_ends_at_once_is_reported_with_the_end_of_its_log(self, folder: Path) -> None:
        started = time.monotonic()
        wrapper = folder / "bin/dockerd"
        wrapper.write_text(f"{wrapper.read_text().strip()} --no-such-option\n")
        with pytest.raises(DaemonError, match=r"(?s)exit code \d+.*no-such-option.*DOCKER_HOST"):
            ensure_daemon()
        assert time.monotonic() - started < 30
        assert not (folder / "pid").exists()

    def test_one_that_does_not_answer_in_time_is_ended_again(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "START_SECONDS", 0.0)
        with pytest.raises(DaemonError, match="did not answer within 0 s"):
            ensure_daemon()
        assert until(lambda: not _daemons_in(folder))

    def test_without_the_right_to_start_one_it_says_what_to_do(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "is_root", lambda: False)
        with pytest.raises(DaemonError, match=r"does not exist.*As root, `rtl-agent-gym image build --start-daemon`"):
            ensure_daemon()
        assert not (folder / "pid").exists()


def test_a_machine_without_docker_gets_its_packages_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here apt-get and what it installs only write down how they were called."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    noted = f'#!/bin/sh\necho "${{0##*/}} $*" >> {calls}\n'
    installed = f'{noted}echo "no kernel for it" >&2; exit 3\n'
    dockerd = programs / "dockerd"
    install = f"case $* in *install*) printf '%s' '{installed}' > {dockerd}; chmod 755 {dockerd};; esac\n"
    (programs / "apt-get").write_text(f"{noted}PATH=/usr/bin:/bin\n{install}")
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(module, "_SYSTEM_FOLDERS", str(programs))
    monkeypatch.setattr(module, "is_root", lambda: True)
    monkeypatch.setattr(module, "is_debian_like", lambda: True)
    said: list[str] = []
    place_daemon(tmp_path, monkeypatch)
    with pytest.raises(DaemonError, match=r"(?s)exit code 3.*no kernel for it"):
        ensure_daemon(said.append)
    lines = calls.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["apt-get", "apt-get", "dockerd"]
    assert lines[0].endswith(" update")
    assert lines[1].endswith(" install -y --no-install-recommends docker.io iptables")
    assert said[0] == "installing docker.io iptables with apt-get"


class TestFinding:
    def test_a_socket_that_nobody_listens_on(self, tmp_path: Path) -> None:
        path = tmp_path / "dead.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        with pytest.raises(DaemonError, match=r"dead\.sock is gone"):
            connect(f"unix://{path}")

    def test_something_else_that_listens(self, tmp_path: Path) -> None:
        path = tmp_path / "other.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(10)

            def answer() -> None:
                for _ in range(2):  # the probe, which hangs up at once, then the client
                    with listener.accept()[0] as peer, contextlib.suppress(BrokenPipeError):
                        peer.sendall(b"220 mail server\r\n")

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(DaemonError, match="does not answer as a Docker daemon"):
                find_daemon(f"unix://{path}")
            thread.join()

    def test_an_address_where_nothing_listens(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # not listening
            with pytest.raises(DaemonError, match="does not answer"):
                find_daemon(f"tcp://127.0.0.1:{taken.getsockname()[1]}")


def test_a_socket_that_may_be_used_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, desktop = tmp_path / "first.sock", tmp_path / ".docker/desktop/docker.sock"
    desktop.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # a socket's path has 108 bytes at most
    for path in (first, desktop):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path.relative_to(tmp_path)))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "DEFAULT_HOST", f"unix://{first}")
    for allowed, chosen in (([first, desktop], first), ([desktop], desktop), ([], first)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, right, allowed=allowed: right == os.F_OK or path in allowed)
            assert module.daemon_host() == f"unix://{chosen}"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home folder
    assert module.daemon_host() == f"unix://{first}"


@pytest.mark.parametrize(
    ("host", "why"),
    [
        (
            "ssh://me@there:2222",
            r"not supported directly.*ssh -fnNT -L /tmp/docker-there.sock:\S+ me@there, then DOCKER_",
        ),
        ("tcp://10.0.0.7:2375", "not supported directly.*you@10.0.0.7"),
        ("tcp://build.example:2376", "not supported directly"),
        ("tcp://0.0.0.0:2375", "not supported directly"),
        ("npipe:////./pipe/docker", "is not an address: use unix://PATH"),
        ("ssh://", "is not an address"),
        ("docker.sock", "is not an address"),
        ("http://127.0.0.1:1", "is not an address"),
        ("tcp://here:99999", "tcp://here:99999"),
    ],
)
def test_an_address_that_is_not_used_is_an_error_that_says_what_to_do(host: str, why: str) -> None:
    with pytest.raises(DaemonError, match=why):
        connect(host)


def test_tls_is_not_ignored_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    with pytest.raises(DaemonError, match="TLS are not supported"):
        connect("tcp://127.0.0.1:2376")


def test_a_forwarded_socket_is_another_machine() -> None:
    here = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert module.is_local("unix:///some.sock", {"MemTotal": here})
    assert module.is_local("unix:///some.sock", {})
    assert not module.is_local("unix:///some.sock", {"MemTotal": here + 4096})
    assert not module.is_local("tcp://127.0.0.1:2375", {"MemTotal": here})
