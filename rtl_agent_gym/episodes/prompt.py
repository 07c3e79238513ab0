"""The prompt of an episode, shortened if its token budget requires it, or with the tool declared natively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..problems import Problem
from ..prompts import build_prompt, build_single_turn_prompt, file_order
from ..prompts.shortening import fit_passages
from ..renderers import Message, Renderer, get_renderer
from ..renderers.protocol import TOOL
from ..renderers.renderer import ToollessRenderer
from .rules import EpisodeConfig
from .turns import Opening


class PromptTooLong(UsageError):
    """Even the shortened prompt does not fit its budget."""


def episode_renderer(config: EpisodeConfig, dialect: Renderer) -> Renderer:
    """The renderer of an episode: the model's dialect, without the tool if the workspace is ``"answer"``."""
    answer = config.workspace == "answer" and not isinstance(dialect, ToollessRenderer)
    return ToollessRenderer(dialect) if answer else dialect


def open_prompt(problem: Problem, config: EpisodeConfig, dialect: Renderer) -> Opening:
    """The prompt of a problem under the rules of an episode, within `EpisodeConfig.prompt_limit`.

    In a shell, the task's text can be shortened; for an answer also the given files, the least important first. A
    custom `EpisodeConfig.user_prompt` is shortened like a task.

    Raises:
        PromptTooLong: The parts that cannot be left out do not fit.
        UsageError: There is a limit, and the renderer has no vocabulary.
    """
    renderer, limit = episode_renderer(config, dialect), config.prompt_limit
    custom = config.user_prompt
    task = problem.prompt if custom is None else custom
    paths = file_order(problem) if config.workspace == "answer" and custom is None else []
    passages = [task, *(problem.context[path] for path in paths)]

    def build(passages: Sequence[str]) -> tuple[str, str]:
        files = problem.context | dict(zip(paths, passages[1:], strict=True))
        shortened = problem.model_copy(update={"prompt": passages[0], "context": files})
        if config.workspace == "answer":
            system, user = build_single_turn_prompt(shortened)
        else:
            system, user = build_prompt(
                shortened,
                renderer=renderer.name if config.teach_dialect else "",
                command_timeout=config.command_timeout,
                max_output=config.max_output,
                max_turns=config.max_turns,
                harness_feedback=config.harness_feedback,
            )
        given = config.system_prompt
        return system if given is None else given, user if custom is None else passages[0]

    cut: tuple[str, ...] = ()
    if limit is not None:
        fitted = fit_passages(passages, lambda shorter: len(renderer.initial_ids(*build(shorter))), limit)
        if fitted is None:
            raise PromptTooLong(
                f"the prompt of {problem.id} does not fit into {limit} tokens even when shortened; raise "
                "max_prompt_tokens or max_trajectory_tokens, or leave the problem out"
            )
        passages, cut = fitted.passages, fitted.cut
    system, user = build(passages)
    return Opening(system, user, renderer.initial_messages(system, user), cut)


@dataclass(frozen=True)
class ToolOpening:
    """A prompt without instructions for writing calls in a dialect, and the tools to declare."""

    messages: list[Message]
    """System message, if any, and user message."""
    tools: list[dict[str, Any]]
    """JSON schemas in the form of OpenAI's chat completions; none for the workspace ``"answer"``."""


def tool_opening(problem: Problem, config: EpisodeConfig | None = None) -> ToolOpening:
    """The opening of a problem for `Episode.act`, under the rules of an episode (None: the defaults).

    Raises:
        UsageError: The rules limit the prompt's tokens, which depend on the model's own chat template.
    """
    config = (config or EpisodeConfig()).with_options(teach_dialect=False)
    if config.prompt_limit is not None:
        raise UsageError(
            "max_prompt_tokens and max_trajectory_tokens need a renderer with the model's vocabulary; where the tool "
            "is declared natively, the framework or its server limits tokens"
        )
    plain = ToollessRenderer(get_renderer("qwen3"))
    shell = config.workspace == "shell"
    return ToolOpening(open_prompt(problem, config, plain).messages, [TOOL] if shell else [])
