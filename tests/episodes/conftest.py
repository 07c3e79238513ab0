"""What the tests of episodes share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _scorers(no_waiting_sandboxes: None, shared_gradings: None) -> None:
    """Waiting sandboxes and repeated gradings are tests of the scorer."""
