"""Options of the commands, generated from the tree of options, and the problems that they choose."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from pydantic.fields import FieldInfo

from ..errors import UsageError
from ..options import (
    WORKSPACES,
    ClusterOptions,
    EpisodeRules,
    EvaluationOptions,
    Options,
    PolicyOptions,
    ProblemOptions,
    SandboxOptions,
    bounds,
)
from ..problems import Problem, load_problems

FLAGS = {
    "ids": ["--problem"],
    "categories": ["--category"],
    "difficulties": ["--difficulty"],
    "samples": ["-n", "--samples"],
    "folder": ["--out"],
    "reward": ["--weights"],
    "harness_images": ["--harness-image"],
    "cache": ["--cache/--no-cache"],
    "ray_address": ["--ray"],
}
"""The names on the command line that are not the option's own."""

_EVALUATION: tuple[tuple[type[Options], str], ...] = (
    (SandboxOptions, "sandbox"),
    (SandboxOptions, "sandbox_limits"),
    (ProblemOptions, "problems"),
    *((EvaluationOptions, name) for name in ("policy", "seed", "renderer", "reward")),
)
_EPISODE = (
    "max_turns", "command_timeout", "harness_feedback", "judge", "harness_images", "harness_env", "harness_network",
)  # fmt: skip
_NOT_HERE = {"attempts", "request_timeout"}


def option(kind: type[Options], name: str) -> Any:
    """An option of the tree as an option of the command line."""
    field = kind.model_fields[name]
    text = re.sub(r"`+", "", " ".join((field.description or "").split()))
    several = isinstance(field.default, tuple)
    if several:
        text = text.removesuffix("; empty for all.").rstrip(".") + "; repeatable."
    limits = bounds(field)
    least = limits.get("ge", limits.get("gt"))
    if "gt" in limits and int in (field.annotation, *get_args(field.annotation)):
        least = limits["gt"] + 1
    flags = FLAGS.get(name, [f"--{name.replace('_', '-')}"] if field.annotation is not bool else [])
    return typer.Option(*flags, metavar=field.title, min=least, max=limits.get("le"), help=text)


def _type(field: FieldInfo) -> Any:
    if isinstance(field.default, tuple):
        return list[str] | None
    if field.annotation is Any:
        return str if isinstance(field.default, str) else str | None
    return field.annotation


ProblemsOption = Annotated[str, option(ProblemOptions, "problems")]
ProblemOption = Annotated[
    str | None, typer.Option("--problem", metavar="ID", help="Id of the problem; not needed where there is only one.")
]
ProblemIdsOption = Annotated[list[str] | None, option(ProblemOptions, "ids")]
FairOnlyOption = Annotated[
    bool,
    typer.Option(
        "--fair-only",
        help="Only rows of CVDP that a right design is known to pass and whose tests demand nothing unstated.",
    ),
]
WeightsOption = Annotated[str, option(EvaluationOptions, "reward")]
CacheOption = Annotated[bool, option(EvaluationOptions, "cache")]
JudgeOption = Annotated[str | None, option(EpisodeRules, "judge")]
HarnessImagesOption = Annotated[list[str] | None, option(EpisodeRules, "harness_images")]
HarnessEnvOption = Annotated[Path | None, option(EpisodeRules, "harness_env")]
HarnessNetworkOption = Annotated[str, option(EpisodeRules, "harness_network")]
MaxTurnsOption = Annotated[int, option(EpisodeRules, "max_turns")]
CommandTimeoutOption = Annotated[float, option(EpisodeRules, "command_timeout")]
HarnessFeedbackOption = Annotated[int, option(EpisodeRules, "harness_feedback")]
RayOption = Annotated[str, option(ClusterOptions, "ray_address")]
RaySlotsOption = Annotated[int, option(ClusterOptions, "ray_slots")]
CanarySecondsOption = Annotated[float, option(ClusterOptions, "canary_seconds")]
MetricsPortOption = Annotated[int, option(ClusterOptions, "metrics_port")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; everything else goes to stderr.")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
EnvOption = Annotated[
    Literal["agentic", "single-turn"],
    typer.Option(help="agentic: many turns in a shell. single-turn: one answer that holds the files."),
]


def with_options(*more: tuple[type[Options], str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function of an `EvaluationConfig` as a command with the options that set it.

    Args:
        more: Other options of an evaluation, by their class in the tree and their name.
    """
    from ..episodes.rules import EpisodeConfig
    from ..evaluation import EvaluationConfig
    from ..policies import ModelOptions

    options: dict[type[Options], list[tuple[type[Options], str]]] = {
        EvaluationConfig: [*_EVALUATION, *more],
        EpisodeConfig: [(EpisodeRules, name) for name in _EPISODE],
        ModelOptions: [(PolicyOptions, name) for name in PolicyOptions.model_fields if name not in _NOT_HERE],
    }
    parameters = [inspect.Parameter("env", _KEYWORD, default="agentic", annotation=EnvOption)]
    parameters += [_parameter(kind, name) for chosen in options.values() for kind, name in chosen]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(env: str, **given: Any) -> None:
            values = {config: {name: given.pop(name) for _, name in chosen} for config, chosen in options.items()}
            workspace = WORKSPACES[env.replace("-", "_")]
            episode = EpisodeConfig(workspace=workspace, **values[EpisodeConfig])
            model = ModelOptions(**values[ModelOptions])
            command(EvaluationConfig(episode=episode, model=model, **values[EvaluationConfig]), **given)

        return _with_signature(call, parameters + _own_parameters(command))

    return decorate


def of_problems(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a function of problems as a command with the options that choose them from its parameter `source`."""
    chosen = [_parameter(ProblemOptions, name) for name in ("ids", "categories", "difficulties")]
    fair = inspect.Parameter("fair_only", _KEYWORD, default=False, annotation=FairOnlyOption)

    @wraps(command)
    def call(source: str, fair_only: bool = False, **given: Any) -> None:
        filters = {choice.name: given.pop(choice.name, None) or None for choice in chosen}
        problems = load_problems(source, rows="fair" if fair_only else "all", **filters)
        command(problems, source=source, **given)

    return _with_signature(call, [*_own_parameters(command), *chosen, fair])


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _parameter(kind: type[Options], name: str) -> inspect.Parameter:
    field = kind.model_fields[name]
    default = None if isinstance(field.default, tuple) else field.default
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[_type(field), option(kind, name)])


def _own_parameters(command: Callable[..., None]) -> list[inspect.Parameter]:
    """All parameters but the first, which the other options make."""
    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    return [found.replace(kind=_KEYWORD, annotation=hints[found.name]) for found in own]


def _with_signature(call: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {found.name: found.annotation for found in parameters}
    return call


def one_problem(source: str, problem_id: str | None) -> Problem:
    """The problem with this id, or without an id the only problem of the source.

    Raises:
        UsageError: There is no such problem, or no id was given and there are several.
    """
    problems = load_problems(source, ids=[problem_id] if problem_id is not None else None)
    if len(problems) == 1:
        return problems[0]
    raise UsageError(
        f"{source} holds {len(problems)} problems: choose one with --problem ID "
        f"(list them with: rtl-agent-gym problems list --problems {source})"
    )


def writable_folder(folder: Path, option: str) -> None:
    """Create a folder if it does not exist.

    Raises:
        UsageError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be created: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot be written to")
