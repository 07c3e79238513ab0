"""What the tests of sandboxes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from rtl_agent_gym.sandboxes import root_folder
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.image import Content


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is about Docker itself needs sandboxes, too."""
    if item.get_closest_marker("daemon"):
        item.add_marker("docker")


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    """A client of the machine's daemon."""
    with closing(connect()) as client:
        yield client


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for roots; their content is not read, as these have no Python."""
    monkeypatch.setenv(root_folder.VARIABLE, str(tmp_path / "roots"))
    monkeypatch.setattr(root_folder, "_read", lambda root, modes: Content(digest="sha256:1", packages={}))
    return tmp_path / "roots"
