"""The opening of a Tinker episode: the prompt as ids, shortened where its budget asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..episodes.prompt_budget import fit_passages
from ..episodes.rules import EpisodeConfig
from ..problems import Problem
from ..prompts import build_prompt
from ..prompts.single_turn import build_single_turn_prompt, file_order
from ..renderers import Renderer
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
    the least important go first. A caller's own `EpisodeConfig.user_prompt` is shortened as a task is.
    """
    rules, limit = config.episode, config.prompt_limit
    paths = file_order(problem) if config.single_turn and rules.user_prompt is None else []
    task = problem.prompt if rules.user_prompt is None else rules.user_prompt
    passages = [task, *(problem.context[path] for path in paths)]

    def words(passages: Sequence[str]) -> tuple[str, str]:
        files = dict(problem.context) | dict(zip(paths, passages[1:], strict=True))
        system, user = _words(problem.model_copy(update={"prompt": passages[0], "context": files}), config, renderer)
        return (
            system if rules.system_prompt is None else rules.system_prompt,
            user if rules.user_prompt is None else passages[0],
        )

    def measure(passages: Sequence[str]) -> int:
        return len(_ids(config, renderer, *words(passages)))

    cut: tuple[str, ...] = ()
    if limit is not None:
        fitted = fit_passages(passages, measure, limit)
        if fitted is None:
            return None
        passages, cut = fitted.passages, fitted.cut
    system, user = words(passages)
    return Opened(_ids(config, renderer, system, user), replace(rules, system_prompt=system, user_prompt=user), cut)


def _words(problem: Problem, config: TinkerEnvConfig, renderer: Renderer) -> tuple[str, str]:
    if config.single_turn:
        return build_single_turn_prompt(problem)
    rules = config.episode
    return build_prompt(
        problem,
        renderer=renderer.name,
        command_timeout=rules.command_timeout,
        max_output=rules.max_output,
        max_turns=rules.max_turns,
        harness_feedback=rules.harness_feedback,
    )


def _ids(config: TinkerEnvConfig, renderer: Renderer, system: str, user: str) -> list[int]:
    if config.single_turn:
        return renderer.plain_ids(system, user)
    return renderer.initial_ids(system, user)
