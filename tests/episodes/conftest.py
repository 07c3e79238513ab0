"""What the tests of episodes share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _scorers(no_waiting_sandboxes: None) -> None:
    """Sandboxes in waiting are the scorer's business, and tested there."""
