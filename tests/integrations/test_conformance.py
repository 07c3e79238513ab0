"""Every framework gives the same scripted episodes the same verdicts, rewards and observations."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from rtl_agent_gym.transcripts import read_transcript
from tests.integrations.conformance import EXPECTED, Played, Player, scripts
from tests.integrations.ecosystem import importable
from tests.integrations.players import CookbookPlayer, GymnasiumPlayer, SessionPlayer
from tests.integrations.table import Notes, recorded
from tests.sandboxes.providers import owned

importable("tinker_cookbook")
PLAYERS: Sequence[Player] = (SessionPlayer(), GymnasiumPlayer(), CookbookPlayer())


QUICK = {"solved", "machine fault"}


async def play_all(player: Player, folder: Path, names: Collection[str]) -> dict[str, Played]:
    """What a framework makes of scripts, which it plays at the same time."""
    todo = [script for script in scripts() if script.name in names]
    for script in todo:
        (folder / player.name / script.name).mkdir(parents=True)
    played = await asyncio.gather(*(player.play(script, folder / player.name / script.name) for script in todo))
    return {script.name: each for script, each in zip(todo, played, strict=True)}


@pytest.mark.docker
@pytest.mark.parametrize(
    "names",
    [
        QUICK,
        pytest.param(EXPECTED.keys() - QUICK, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
async def test_scripts_get_the_verdicts_of_a_session(tmp_path: Path, names: Collection[str]) -> None:
    with recorded("Gymnasium", names) as gymnasium, recorded("tinker-cookbook", names) as cookbook:
        before = owned(every=True)
        await play_and_compare(tmp_path, names, {GymnasiumPlayer.name: gymnasium, CookbookPlayer.name: cookbook})
        assert owned(every=True) <= before


async def play_and_compare(tmp_path: Path, names: Collection[str], notes: Mapping[str, Notes]) -> None:
    """Play scripts in each framework, and compare what came of them."""
    direct, *others = [await play_all(player, tmp_path, names) for player in PLAYERS]
    assert {name: played.passed for name, played in direct.items()} == {name: EXPECTED[name] for name in names}
    for name, played in direct.items():
        if name == "machine fault":
            assert played.reward is None
        else:
            assert played.reward is not None
            assert (played.reward >= 1.4) == played.passed
    for player, played_there in zip(PLAYERS[1:], others, strict=True):
        for name, expected in direct.items():
            played = played_there[name]
            assert (name, played.reward, played.passed) == (name, expected.reward, expected.passed), player.name
            assert (name, played.other_numbers(expected)) == (name, {}), player.name
            shown, read = played.observations or (), expected.observations or ()
            assert len(shown) >= len(read) - (player.name == CookbookPlayer.name)
            assert (name, shown) == (name, read[: len(shown)]), player.name
            notes[player.name].add(name, played, observations=True, tokens=player.name == CookbookPlayer.name)
    for player in PLAYERS:
        for name in names:
            (path,) = (tmp_path / player.name / name).iterdir()
            end = read_transcript(path).end
            assert end is not None
            assert (end.stop_reason == "error") == (name == "machine fault")
