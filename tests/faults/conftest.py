"""What the tests of faults share."""

from __future__ import annotations

from tests.training.conftest import home, toy, toy_models

__all__ = ["home", "toy", "toy_models"]
