"""What the tests of the environments share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _scorers(request: pytest.FixtureRequest) -> None:
    """Waiting sandboxes and repeated gradings are tests of the scorer; one file has them as users do."""
    if not request.path.name.startswith("test_gym_env"):
        request.getfixturevalue("no_waiting_sandboxes")
        request.getfixturevalue("shared_gradings")
