"""Daemons on other machines: what an address may be, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.errors import DaemonError
from rtl_agent_gym.sandboxes import tunnel
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.tunnel import reach
from rtl_agent_gym.sandboxes.tunnel_tls import TlsTunnel
from tests.certificates import make_certificates


@pytest.mark.parametrize("host", ["unix:///var/run/docker.sock", "tcp://127.0.0.1:2375", "tcp://[::1]:2375"])
def test_addresses_on_this_machine_are_used_as_they_are(host: str) -> None:
    assert reach(host, {}) == host


@pytest.mark.parametrize("host", ["tcp://10.0.0.7:2375", "tcp://build.example:2375", "tcp://0.0.0.0:2375"])
def test_an_unencrypted_address_elsewhere_is_refused(host: str) -> None:
    with pytest.raises(DaemonError, match=rf"{host} is not used without TLS.*ssh://.*DOCKER_TLS_VERIFY=1"):
        reach(host, {})


@pytest.mark.parametrize(
    "host", ["npipe:////./pipe/docker", "tcp://here", "ssh://", "docker.sock", "http://127.0.0.1:1"]
)
def test_what_is_no_address_is_named(host: str) -> None:
    with pytest.raises(DaemonError, match="is no address: use unix://PATH"):
        reach(host, {})


def test_a_port_that_is_none() -> None:
    with pytest.raises(DaemonError, match="tcp://here:99999"):
        reach("tcp://here:99999", {})


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=rf"cannot read ca.pem, cert.pem and key.pem in {tmp_path}"):
        reach("tcp://10.0.0.7:2376", {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)})


@pytest.mark.timeout(30)
def test_a_tunnel_that_cannot_listen_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with a long TMPDIR, since the path of a socket has at most 107 bytes."""
    monkeypatch.setattr(TlsTunnel, "_check", lambda self, context: None)
    made = TlsTunnel("localhost", 2376, make_certificates(tmp_path / "tls"), tmp_path / ("d" * 110))
    for _ in range(2):
        with pytest.raises(DaemonError, match=rf"cannot listen at {tmp_path}/d+ for the tunnel: .*too long"):
            made.open()
    made.close()


def test_a_tunnel_keeps_its_local_end_while_it_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are bound to that address, and must find the daemon there once it is back."""

    class Shaky:
        works = True

        def __init__(self, where: object, path: Path) -> None: ...

        def open(self) -> None:
            if not self.works:
                raise DaemonError("away")

        def close(self) -> None: ...

        forget = close

    monkeypatch.setattr(tunnel, "SshTunnel", Shaky)
    monkeypatch.setattr(tunnel, "_tunnels", {})
    try:
        first = reach("ssh://there")
        Shaky.works = False
        with pytest.raises(DaemonError, match="away"):
            reach("ssh://there")
        Shaky.works = True
        assert reach("ssh://there") == first
        assert Path(first.removeprefix("unix://")).parent.is_dir()
    finally:
        tunnel.close_tunnels()


def test_a_machine_that_ssh_does_not_reach_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"cannot reach nobody@127\.0\.0\.1 by ssh: .*must work"):
        connect("ssh://nobody@127.0.0.1:9")
    monkeypatch.setattr("rtl_agent_gym.sandboxes.tunnel_ssh.find_program", lambda name: None)
    with pytest.raises(DaemonError, match="openssh-client"):
        connect("ssh://nobody@127.0.0.1:9")
