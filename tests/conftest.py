"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def cvdp_data() -> Path:
    """The folder of NVIDIA's CVDP rows, which the project does not ship."""
    folder = ROOT.parent / "shared" / "data" / "cvdp"
    if not folder.is_dir():
        pytest.skip(f"NVIDIA's CVDP rows are not at {folder.parent.name}/{folder.name} beside the checkout")
    return folder


@pytest.fixture
async def provider() -> AsyncIterator[DockerSandboxes]:
    """A maker of real containers. Without a daemon and an image this fails: ./scripts/test sets both up."""
    async with DockerSandboxes() as made:
        yield made


@pytest.fixture
async def sandbox(provider: DockerSandboxes) -> DockerSandbox:
    """A fresh agent's container."""
    return await provider.create()
