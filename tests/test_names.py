"""The names that the package promises, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rtl_agent_gym

NAMES = {"Episode", "EpisodeConfig", "Problem", "Score", "Scorer", "evaluate", "load_problems", "score_files"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_promised_name_is_there(name: str) -> None:
    assert callable(getattr(rtl_agent_gym, name))
    assert getattr(rtl_agent_gym, name).__name__ == name
    assert name in dir(rtl_agent_gym)


def test_all_names_the_promised_ones() -> None:
    assert set(rtl_agent_gym.__all__) == NAMES | {"__version__"}


def test_other_names_are_missing_as_anywhere() -> None:
    with pytest.raises(AttributeError, match="module 'rtl_agent_gym' has no attribute 'nosuch'"):
        rtl_agent_gym.nosuch  # noqa: B018
    with pytest.raises(ImportError, match="nosuch"):
        exec("from rtl_agent_gym import nosuch")


def test_importing_the_package_imports_none_of_them() -> None:
    script = "import sys, rtl_agent_gym; print([m for m in sys.modules if m.startswith('rtl_agent_gym.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rtl_agent_gym.starting']"
