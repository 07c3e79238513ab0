"""TRL as a player: `GRPOTrainer` generates, calls the tool, and asks for rewards; only the sampled ids are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rtl_agent_gym.integrations.session import FAULT
from rtl_agent_gym.integrations.trl import RTLEnvironment, hidden_tests, make_dataset
from tests.integrations.conformance import Played, Script, gray, in_short

if TYPE_CHECKING:
    from tests.integrations.trl_trainer import ScriptedTrainer

AT_ONCE = 4
"""Episodes of a batch, each of which has a container."""
FILLER = Script("filler", ("There is nothing to do.",))
"""Beside a script that is alone, since TRL compares at least two episodes."""


class TrlPlayer:
    name = "TRL"

    async def play(self, script: Script, folder: Path) -> Played:
        return (await self.play_all([script], folder))[script.name]

    async def play_all(self, scripts: Sequence[Script], folder: Path) -> dict[str, Played]:
        """Play scripts in steps of GRPO; the episodes of a step have equal rules."""
        played: dict[str, Played] = {}
        left = list(scripts)
        while left:
            some = [script for script in left if script.config == left[0].config][:AT_ONCE]
            played |= await asyncio.to_thread(step, some, folder / some[0].name)
            left = [script for script in left if script not in some]
        return played


def step(scripts: Sequence[Script], folder: Path) -> dict[str, Played]:
    """A step of GRPO whose episodes are the scripts. TRL must train on the very ids that were sampled."""
    from tests.integrations.trl_trainer import ScriptedTrainer, settings, tiny

    config = scripts[0].config
    episodes = [*scripts, replace(FILLER, config=config)] if len(scripts) == 1 else scripts
    environment = partial(RTLEnvironment, [gray()], config=config.with_options(transcript_dir=folder / "transcripts"))
    model, tokenizer = tiny()
    trainer = ScriptedTrainer(
        scripts=episodes,
        model=model,
        args=settings(folder / "trainer", len(episodes), config.max_turns),
        train_dataset=make_dataset(environment),
        environment_factory=environment,
        reward_funcs=[hidden_tests],
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.check_tokens()
    played = [read(trainer, row) for row in range(len(episodes))]
    (log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    passed = [one.passed for one in played if one.passed is not None]
    assert log["rtl/tests_passed"] == pytest.approx(sum(passed) / len(passed))
    assert log["rtl/faults"] == pytest.approx(1 - len(passed) / len(played))
    assert len(list((folder / "transcripts").iterdir())) == len(episodes)
    return {script.name: one for script, one in zip(scripts, played, strict=False)}


def read(trainer: ScriptedTrainer, row: int) -> Played:
    """What TRL made of an episode. The reward tells the verdict; TRL logs only the mean of all."""
    observations: list[str] = []
    for turn, replies in groupby(trainer.made[3][row], key=lambda message: message["role"]):
        if turn == "tool":
            texts = [str(message["content"]) for message in replies]
            observations += [in_short("\n".join(texts))] if FAULT not in texts else []
    (reward,) = trainer.rewards[row].tolist()
    advantage = float(trainer.scored["advantages"].flatten()[row])
    if reward != reward:  # not a number: outside of the loss and of the baseline
        assert advantage == 0.0
        return Played(None, None, tuple(observations))
    reward = round(reward, 6)  # from 32 bits
    return Played(reward, reward >= 1.4, tuple(observations))
