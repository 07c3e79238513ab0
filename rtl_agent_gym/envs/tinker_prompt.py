"""The opening of a Tinker episode: the prompt as ids, shortened where its budget asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..problems import Problem
from ..prompts import build_prompt
from ..prompts.single_turn import build_single_turn_prompt, file_order
from ..renderers import Renderer
from ..renderers.plain import plain_ids
from .episode import EpisodeConfig
from .prompt_budget import fit_passages
from .tinker_config import TinkerEnvConfig


@dataclass(frozen=True)
class Opened:
    """An opening that fits."""

    ids: list[int]
    rules: EpisodeConfig
    """The episode's rules, with exactly these words as its prompt."""
    cut: tuple[str, ...]
    """What was left out; empty when nothing was."""


def open_prompt(problem: Problem, config: TinkerEnvConfig, renderer: Renderer) -> Opened | None:
    """The opening of a problem within its budget; None when what must stay does not fit either.

    In the agentic form the task's text is what can be shortened. In the single-turn form also the given files, of which
    the least important go first.
    """
    passages = [problem.prompt]
    paths = file_order(problem) if config.single_turn else []
    passages += [problem.context[path] for path in paths]

    def shortened(passages: Sequence[str]) -> Problem:
        files = dict(problem.context) | dict(zip(paths, passages[1:], strict=True))
        return problem.model_copy(update={"prompt": passages[0], "context": files})

    def measure(passages: Sequence[str]) -> int:
        return len(_ids(config, renderer, *_words(shortened(passages), config, renderer)))

    limit = config.prompt_limit
    cut: tuple[str, ...] = ()
    if limit is not None:
        fitted = fit_passages(passages, measure, limit)
        if fitted is None:
            return None
        passages, cut = fitted.passages, fitted.cut
    system, user = _words(shortened(passages), config, renderer)
    rules = replace(config.episode, system_prompt=system, user_prompt=user)
    return Opened(_ids(config, renderer, system, user), rules, cut)


def _words(problem: Problem, config: TinkerEnvConfig, renderer: Renderer) -> tuple[str, str]:
    rules = config.episode
    if config.single_turn:
        system, user = build_single_turn_prompt(problem)
    else:
        system, user = build_prompt(
            problem,
            renderer=renderer.name,
            command_timeout=rules.command_timeout,
            max_output=rules.max_output,
            max_turns=rules.max_turns,
        )
    return (
        system if rules.system_prompt is None else rules.system_prompt,
        user if rules.user_prompt is None else rules.user_prompt,
    )


def _ids(config: TinkerEnvConfig, renderer: Renderer, system: str, user: str) -> list[int]:
    if config.single_turn:
        return plain_ids(renderer, system, user)
    return renderer.initial_ids(system, user)
