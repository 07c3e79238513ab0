"""Episodes and gradings at a daemon whose socket ssh forwards have the verdicts of a local one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.sandboxes.daemon import find_daemon
from rtl_agent_gym.scoring import Scorer
from tests.second_daemon import SecondDaemon, second_daemon
from tests.waiting import until

from .conftest import GOLDEN, TARGET
from .test_podman import verdicts

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def daemon() -> Iterator[SecondDaemon]:
    with second_daemon() as made:
        yield made


def answers(family: int, address: str | tuple[str, int]) -> bool:
    """Whether something listens at an address."""
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0


class Forwarding:
    """The second daemon's socket, forwarded as docs/howto/docker.md says, by an sshd of the test's own."""

    def __init__(self, folder: Path, port: int, remote: str) -> None:
        self.host = f"unix://{folder}/docker.sock"
        words = ["-F", f"{folder}/ssh_config", "-p", str(port), "-L", f"{folder}/docker.sock:{remote}"]
        self._command = ["ssh", "-nNT", "-o", "StreamLocalBindUnlink=yes", *words, "root@127.0.0.1"]
        self._socket = folder / "docker.sock"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)
        assert until(lambda: answers(socket.AF_UNIX, str(self._socket)), 10), "ssh forwards nothing"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def forwarding(daemon: SecondDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forwarding]:
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("ssh is tested with an sshd (Debian: openssh-server)")
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(keygen, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    known = (tmp_path / "host.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}")
    (tmp_path / "ssh_config").write_text(f"IdentityFile {tmp_path}/user\nUserKnownHostsFile {tmp_path}/known_hosts\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL) as server:
        try:
            assert until(lambda: answers(socket.AF_INET, ("127.0.0.1", port)), 10)
            made = Forwarding(tmp_path, port, daemon.host.removeprefix("unix://"))
            monkeypatch.setenv("DOCKER_HOST", made.host)
            yield made
            made.kill()
        finally:
            server.terminate()


@pytest.fixture
def remote(forwarding: Forwarding) -> str:
    return forwarding.host


def containers(daemon: SecondDaemon) -> list[str]:
    command = ["docker", "-H", daemon.host, "ps", "-aq"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def nothing_is_left(daemon: SecondDaemon) -> bool:
    return until(lambda: not containers(daemon), 30)


async def test_verdicts_are_those_of_the_local_daemon(remote: str, daemon: SecondDaemon, adder: Problem) -> None:
    assert find_daemon().host == remote
    there, _ = await verdicts(adder)
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("DOCKER_HOST")
        assert (await verdicts(adder))[0] == there
    assert [verdict["passed"] for verdict in there] == [True, False]
    assert nothing_is_left(daemon)


async def test_a_sandbox_carries_much_output_and_many_files(remote: str, daemon: SecondDaemon) -> None:
    async with DockerSandboxes() as provider:
        sandbox = await provider.create()
        assert containers(daemon)
        files = {f"d/{number}": os.urandom(1 << 20) for number in range(8)}
        await sandbox.write_files(files)
        assert dict(await sandbox.read_files(["d"])) == files
        result = await sandbox.run("seq 200000; (exit 3)", max_output=2_000_000)
        assert result.exit_code == 3
        assert result.output.splitlines() == [str(number) for number in range(1, 200_001)]
    assert nothing_is_left(daemon)


def test_an_episode_has_the_local_verdict(remote: str, tmp_path: Path) -> None:
    verdicts = []
    for host in (remote, ""):
        environment = os.environ | {"DOCKER_HOST": host}
        command = [sys.executable, "-m", "rtl_agent_gym", "run", "--policy", "golden", "--json"]
        where = ["--problem", "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001", "--transcript-dir", str(tmp_path)]
        done = subprocess.run([*command, *where], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        score = json.loads(done.stdout.splitlines()[-1])["score"]
        verdicts.append((score["passed"], score["tests_passed"], score["tests_total"], score["reward"]))
    assert verdicts[0] == verdicts[1]
    assert verdicts[0][0]


def test_containers_end_with_a_client_that_is_killed(remote: str, daemon: SecondDaemon) -> None:
    program = (
        "import asyncio, os\nfrom rtl_agent_gym.sandboxes import DockerSandboxes\n"
        "async def main():\n    made = await DockerSandboxes().create()\n"
        "    if os.fork() == 0:\n        import time; time.sleep(60)\n"  # a child must not keep it alive
        "    print(made.id, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline().startswith(b"rtl-gym-agent-")
        assert len(containers(daemon)) == 1
        client.kill()
        client.wait()
        assert nothing_is_left(daemon)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(client.pid, signal.SIGKILL)


async def test_a_broken_connection_is_a_machine_fault(forwarding: Forwarding, adder: Problem) -> None:
    async with DockerSandboxes() as provider:
        sandbox = await provider.create()
        forwarding.kill()
        with pytest.raises(SandboxError):
            await sandbox.run("true")
        forwarding.start()
        async with Scorer(provider) as scorer:
            assert (await scorer.score(adder, {TARGET: GOLDEN})).passed
