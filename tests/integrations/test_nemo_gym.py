"""NeMo Gym: the scripts over HTTP with our resources server, and sessions that nobody ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.conformance import EXPECTED, scripts
from tests.integrations.ecosystem import call, play_all
from tests.integrations.players import SessionPlayer, check_equal
from tests.integrations.table import recorded

pytestmark = [pytest.mark.ecosystem, pytest.mark.docker, pytest.mark.timeout(1800)]


async def test_scripts_get_the_verdicts_of_a_session(tmp_path: Path) -> None:
    with recorded("NeMo Gym", EXPECTED) as notes:
        played = await play_all("nemo_gym", scripts(), tmp_path / "there")
        for script, there in zip(scripts(), played, strict=True):
            (tmp_path / script.name).mkdir()
            here = await SessionPlayer().play(script, tmp_path / script.name)
            check_equal(script.name, there, here)
            notes.add(script.name, there, observations=there.observations is not None)


async def test_an_episode_that_nobody_ends_is_ended_when_another_begins() -> None:
    told = await call("nemo_gym", "forgotten")
    assert (told["status"], told["reward"]) == (400, 1.4)
    assert "call /seed_session first" in told["said"]
