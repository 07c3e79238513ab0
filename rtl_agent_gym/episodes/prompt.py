"""The prompt of an episode, shortened where its token budget requires it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..problems import Problem
from ..prompts import build_prompt, build_single_turn_prompt, file_order
from ..prompts.shortening import fit_passages
from ..renderers import Renderer
from ..renderers.toolless import ToollessRenderer
from .rules import EpisodeConfig


class PromptTooLong(UsageError):
    """Even the shortened prompt does not fit its budget."""


class Prompt(NamedTuple):
    """The first two messages of an episode."""

    system: str
    user: str
    cut: tuple[str, ...] = ()
    """The passages that were left out."""


def episode_renderer(config: EpisodeConfig, dialect: Renderer) -> Renderer:
    """The renderer of an episode: the model's dialect, without the tool if the workspace is ``"answer"``."""
    answer = config.workspace == "answer" and not isinstance(dialect, ToollessRenderer)
    return ToollessRenderer(dialect) if answer else dialect


def open_prompt(problem: Problem, config: EpisodeConfig, dialect: Renderer) -> Prompt:
    """The prompt of a problem under the rules of an episode, within `EpisodeConfig.prompt_limit`.

    In a shell, the task's text can be shortened; for an answer also the given files, the least important first. A
    custom `EpisodeConfig.user_prompt` is shortened like a task.

    Raises:
        PromptTooLong: The parts that cannot be left out do not fit.
        UsageError: There is a limit, and the renderer has no vocabulary.
    """
    renderer, limit = episode_renderer(config, dialect), config.prompt_limit
    if limit is None:
        return _build(problem, config, renderer.name)
    custom = config.user_prompt
    task = problem.prompt if custom is None else custom
    paths = file_order(problem) if config.workspace == "answer" and custom is None else []

    def build(passages: Sequence[str]) -> Prompt:
        if custom is not None:
            return _build(problem, config, renderer.name)._replace(user=passages[0])
        files = problem.context | dict(zip(paths, passages[1:], strict=True))
        shortened = problem.model_copy(update={"prompt": passages[0], "context": files})
        return _build(shortened, config, renderer.name)

    def tokens(passages: Sequence[str]) -> int:
        system, user, _ = build(passages)
        return len(renderer.initial_ids(system, user))

    fitted = fit_passages([task, *(problem.context[path] for path in paths)], tokens, limit)
    if fitted is None:
        raise PromptTooLong(
            f"the prompt of {problem.id} does not fit {limit} tokens, shortened as far as it can be; raise "
            "max_prompt_tokens or max_trajectory_tokens, or leave the problem out"
        )
    return build(fitted.passages)._replace(cut=fitted.cut)


def _build(problem: Problem, config: EpisodeConfig, dialect: str) -> Prompt:
    if config.workspace == "answer":
        system, user = build_single_turn_prompt(problem)
    else:
        system, user = build_prompt(
            problem,
            renderer=dialect if config.teach_dialect else "",
            command_timeout=config.command_timeout,
            max_output=config.max_output,
            max_turns=config.max_turns,
            harness_feedback=config.harness_feedback,
        )
    return Prompt(
        system if config.system_prompt is None else config.system_prompt,
        user if config.user_prompt is None else config.user_prompt,
    )
