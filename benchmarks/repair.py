"""How often an episode passes after its first submission failed, before and after training with submissions."""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from learning_options import HELD_OUT, SHORT, final_weights, given, played, seconds

from research.episodes import READ, SUBMIT, call, write
from rtl_agent_gym import Problem
from rtl_agent_gym.demo.jobs import train
from rtl_agent_gym.demo.shipped import FEEDBACK_PROMPT, RENDERER, SMALL, shipped
from rtl_agent_gym.episodes import submissions
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.policies import Completion, ModelOptions
from rtl_agent_gym.policies.sampler import TokenSamplerPlayer, TokenSamplerPolicy, local_policy
from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.sources.families import FAMILIES, Parameters, draw_members


@dataclass(frozen=True)
class HabitualFirst:
    """A policy that reads the specification, submits a design with bad habits, and then lets a model continue.

    So the first submission of every episode fails, before and after training.
    """

    policy: TokenSamplerPolicy
    members: Mapping[str, Parameters]
    """By problem id."""

    @property
    def name(self) -> str:
        """See `Policy.name`."""
        return self.policy.name

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> TokenSamplerPlayer:
        """See `Policy.player`."""
        member, rng = self.members[problem.id], random.Random(f"{problem.id} {seed}")
        family = FAMILIES[member.family]
        habits = family.habits_of(member)
        chosen = [habit for habit in habits if rng.random() < 0.5] or [rng.choice(habits)]
        commands = (READ, write(family.design(member, chosen)), SUBMIT)
        return _Forced(self.policy, renderer, seed, [call(command) for command in commands])


class _Forced(TokenSamplerPlayer):
    """A player whose first turns are prescribed."""

    def __init__(self, policy: TokenSamplerPolicy, renderer: Renderer, seed: int | None, turns: list[str]) -> None:
        super().__init__(policy, renderer, seed)
        self._turns = turns

    async def sample(self, tokens: TokenTranscript) -> Completion | None:
        if not self._turns:
            return await super().sample(tokens)
        tokenizer, text = self._policy.tokenizer, self._turns.pop(0)
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        return Completion(self._renderer.decode(ids), token_ids=ids)


def repaired(model: Path, seed: int, sizes: argparse.Namespace) -> tuple[float, int]:
    """The share of held-out problems that pass after a first submission that fails, and the number of problems.

    Raises:
        SandboxError: An episode has no verdict.
    """
    options = ModelOptions(max_tokens=SMALL.defaults["max_tokens"], max_context=1000)
    policy = local_policy(str(model), options)
    members = list(draw_members(HELD_OUT.format(count=sizes.held_out, seed=300 + seed)))
    problems = [FAMILIES[member.family].problem(member) for member in members]
    config = EvaluationConfig(
        problems=problems,
        renderer=get_renderer(RENDERER, policy.tokenizer),
        keep=False,
        seed=seed,
        episode=EpisodeConfig(system_prompt=FEEDBACK_PROMPT, max_turns=8, harness_feedback=2),
    )
    first = HabitualFirst(policy, {problem.id: member for problem, member in zip(problems, members, strict=True)})
    found = played(config, first, policy)
    return found.passed / found.episodes, found.episodes


@contextlib.contextmanager
def scrambled_feedback() -> Iterator[None]:
    """The reply to a failed submission names the right number of checks, but random ones."""
    rng, failing = random.Random(0), submissions.failing

    def scrambled(score: Score, *, tested: bool = True) -> list[str]:
        names = sorted({submissions.plain_name(test.name) for test in score.tests})
        count = len(failing(score, tested=tested))
        return sorted(rng.sample(names, min(count, len(names))), key=names.index)

    with mock.patch.object(submissions, "failing", scrambled):
        yield


def repair(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Train with submissions, unless `name` is ``before``, and measure repair."""
    model, trained = shipped("student"), 0.0
    with scrambled_feedback() if name == "scrambled" else contextlib.nullcontext():
        if name != "before":
            folder = sizes.folder / f"repair-{name}-{seed}"
            options = given({"harness_feedback": 2, "max_turns": 8, **SHORT}, seed, sizes)
            trained = seconds(train(options | {"log_path": str(folder), "held_out": "none"}))
            model = final_weights(folder)
        begun = time.monotonic()
        share, episodes = repaired(model, seed, sizes)
    return {
        "seed": seed,
        "after": share,
        "episodes": episodes,
        "seconds": round(trained + time.monotonic() - begun),
    }
