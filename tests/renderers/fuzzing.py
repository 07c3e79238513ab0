"""What the tests with random texts and ids share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from rtl_agent_gym.renderers import Action

fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
"""Not in conftest.py, which may be read before the profile of the command line is loaded."""


def can_be_sent(action: Action) -> None:
    """The action is one of the three kinds, and whatever came in, its texts are valid Unicode."""
    assert (action.correction is not None) == (action.kind == "malformed")
    assert bool(action.commands) == (action.kind == "command")
    for text in (*action.commands, action.text, action.thinking, action.correction or "", *action.notes):
        text.encode()
