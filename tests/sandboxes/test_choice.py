"""Which kind of sandboxes a process makes."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from rtl_agent_gym.errors import DaemonError, SandboxError, UsageError
from rtl_agent_gym.options import SANDBOXES, SandboxOptions
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, choice, container, root_folder
from rtl_agent_gym.sandboxes.choice import VARIABLE, make_provider, resolved_kind, set_kind


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", None)
    monkeypatch.setattr(choice, "_found", None)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def test_a_word_says_it(monkeypatch: pytest.MonkeyPatch, no_daemon: None) -> None:
    monkeypatch.setenv(VARIABLE, "namespaces")
    assert isinstance(make_provider(), NamespaceSandboxes)
    set_kind("auto")
    assert isinstance(make_provider(), NamespaceSandboxes)
    set_kind("docker")  # counts more than the variable; the daemon is asked for at the first sandbox
    assert isinstance(make_provider(), DockerSandboxes)
    monkeypatch.setattr(choice, "_chosen", None)
    monkeypatch.setenv(VARIABLE, "vm")
    with pytest.raises(
        UsageError, match="RTL_GYM_SANDBOX: 'vm' is not one of auto, docker, podman, namespaces, apptainer"
    ):
        make_provider()
    with pytest.raises(UsageError, match="sandbox must be 'auto', 'docker', 'podman', 'namespaces' or 'apptainer'"):
        SandboxOptions(sandbox="vm")  # type: ignore[arg-type]
    assert get_args(SandboxOptions.model_fields["sandbox"].annotation) == SANDBOXES


@pytest.mark.daemon
def test_auto_is_docker_where_a_daemon_answers() -> None:
    assert resolved_kind() == "docker"


@pytest.mark.docker
def test_auto_is_namespaces_where_none_does(no_daemon: None, root_folder: Path) -> None:
    assert resolved_kind() == "namespaces"


def test_auto_says_what_each_lacks(no_daemon: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(root_folder.VARIABLE, str(tmp_path))
    with pytest.raises(
        SandboxError, match=r"Docker: .*none\.sock does not exist.* Namespaces: .*image unpack.* Apptainer: "
    ):
        make_provider()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"Namespaces: .*install the package bubblewrap.* Apptainer: .*not inst"):
        make_provider()


@pytest.mark.daemon
def test_podman_must_be_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    set_kind("podman")
    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    with pytest.raises(DaemonError, match="is Docker, not Podman"):
        make_provider()


def test_the_word_podman_leaves_dockers_sandboxes_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    socket = f"unix://{tmp_path}/podman.sock"
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(choice, "PODMAN_SOCKETS", (f"{tmp_path}/podman.sock",))
    monkeypatch.setattr(choice, "find_daemon", lambda host: SimpleNamespace(podman=host == socket))
    (tmp_path / "podman.sock").touch()
    for word, host in (("podman", socket), ("docker", None)):
        made = make_provider(word)
        assert isinstance(made, DockerSandboxes)
        assert made._client.host == host
    asked = list[str | None]()

    def owners(host: str | None) -> dict[str, int]:
        asked.append(host)
        return {}

    monkeypatch.setattr(container, "other_owners", owners)
    for word in ("podman", "docker"):
        assert container.warning_of_others("--limits", host=partial(choice.host_of, word)) == ""
    assert asked == [socket, None]
    assert "DOCKER_HOST" not in os.environ
    set_kind("podman")
    assert choice.made_by() == socket


def test_podman_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(choice, "PODMAN_SOCKETS", ("{XDG_RUNTIME_DIR}/mine.sock", f"{tmp_path}/roots.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    for _ in range(2):
        with pytest.raises(
            DaemonError, match=r"^no Podman: there is no socket /nowhere/mine\.sock or .*apt-get install podman"
        ):
            make_provider("podman")
