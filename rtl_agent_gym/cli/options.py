"""Options of the commands, generated from the tree of options, and the problems that they select."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..errors import UsageError
from ..options import (
    WORKSPACES,
    EpisodeRules,
    EvaluationOptions,
    PolicyOptions,
    ProblemOptions,
    SandboxOptions,
    bounds,
)
from ..problems import Problem, load_problems
from ..problems.paths import text_of_option

FLAGS = {
    "ids": ["--problem"],
    "categories": ["--category"],
    "difficulties": ["--difficulty"],
    "samples": ["-n", "--samples"],
    "folder": ["--out"],
    "reward": ["--weights"],
    "harness_images": ["--harness-image"],
    "cache": ["--cache/--no-cache"],
    "passed_only": ["--passed-only/--all"],
    "keep_malformed": ["--keep-malformed"],
    "keep_violations": ["--keep-violations"],
    "ray_address": ["--ray"],
    "coverage": ["--coverage"],
}
"""Flags of options whose name on the command line differs from their name in the tree."""

PLAY = ("max_turns", "command_timeout", "harness_feedback")
"""The rules of episodes that every command which plays episodes has as options."""
PROMPTS = ("system_prompt", "user_prompt")
"""The rules of episodes whose value is a text or ``@file``."""
_NOT_HERE = {"attempts", "request_timeout"}
GRADING = ("judge", "harness_images", "harness_env", "harness_network")
"""The rules of episodes that concern grading."""
CHOICE = ("ids", "categories", "difficulties")
"""The options that select problems."""


def option(kind: type[BaseModel], name: str) -> Any:
    """Convert an option of the tree to an option of the command line."""
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
    str | None, typer.Option("--problem", metavar="ID", help="Id of the problem; not needed if there is only one.")
]
ProblemIdsOption = Annotated[list[str] | None, option(ProblemOptions, "ids")]
FairOnlyOption = Annotated[
    bool,
    typer.Option(
        "--fair-only",
        help="Only CVDP rows that a correct design is known to pass and whose tests demand nothing unstated.",
    ),
]
WeightsOption = Annotated[str, option(EvaluationOptions, "reward")]
CacheOption = Annotated[bool, option(EvaluationOptions, "cache")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; everything else goes to stderr.")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
EnvOption = Annotated[
    Literal["agentic", "single-turn"],
    typer.Option(help="agentic: many turns in a shell. single-turn: one answer that contains the files."),
]


def parameters_of(kind: type[BaseModel], *names: str) -> list[inspect.Parameter]:
    """The named options of a class of the tree as parameters of a command; without names, all of its options."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if isinstance(field.default, tuple) else field.default,
            annotation=Annotated[_type(field), option(kind, name)],
        )
        for name, field in kind.model_fields.items()
        if not names or name in names
    ]


def options_as(
    name: str, make: Callable[..., Any], options: list[inspect.Parameter], *more: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function as a command in which options replace one parameter.

    Args:
        name: The parameter.
        make: Makes its value from the options.
        options: The options, as returned by `parameters_of`.
        more: Other parameters of the function that are also passed to `make`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(**given: Any) -> None:
            values = {choice.name: given.pop(choice.name, choice.default) for choice in options}
            command(**given, **{name: make(**values, **{other: given[other] for other in more})})

        hints = get_type_hints(command, include_extras=True)
        own = [found for found in inspect.signature(command).parameters.values() if found.name != name]
        keyword = [found.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[found.name]) for found in own]
        call.__signature__ = inspect.Signature([*options, *keyword])  # type: ignore[attr-defined]
        call.__annotations__ = {found.name: found.annotation for found in [*options, *keyword]}
        return call

    return decorate


_EVALUATION = [
    *parameters_of(SandboxOptions, "sandbox", "sandbox_limits"),
    *parameters_of(ProblemOptions, "problems"),
    *parameters_of(EvaluationOptions, "policy", "seed", "renderer", "reward"),
]


def with_options(*more: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function of `config` as a command whose options, `more` included, make that `EvaluationConfig`."""
    from ..episodes.rules import EpisodeConfig
    from ..evaluation import EvaluationConfig
    from ..policies import ModelOptions

    env = inspect.Parameter("env", inspect.Parameter.KEYWORD_ONLY, default="agentic", annotation=EnvOption)
    evaluation, episode = [*_EVALUATION, *more], parameters_of(EpisodeRules, *PLAY, *PROMPTS, *GRADING)
    model = parameters_of(PolicyOptions, *PolicyOptions.model_fields.keys() - _NOT_HERE)

    def make(env: str, **given: Any) -> EvaluationConfig:
        def values(options: list[inspect.Parameter]) -> dict[str, Any]:
            return {choice.name: given[choice.name] for choice in options}

        given |= {name: text_of_option(name, given[name]) for name in PROMPTS}
        rules = EpisodeConfig(workspace=WORKSPACES[env.replace("-", "_")], **values(episode))
        return EvaluationConfig(episode=rules, model=ModelOptions(**values(model)), **values(evaluation))

    return options_as("config", make, [env, *evaluation, *episode, *model])


def with_problems(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a function of `problems` as a command whose options select them from its `source`."""
    fair = inspect.Parameter("fair_only", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=FairOnlyOption)

    def make(source: str, fair_only: bool, **filters: list[str] | None) -> list[Problem]:
        chosen: dict[str, Any] = {name: values or None for name, values in filters.items()}
        return load_problems(source, rows="fair" if fair_only else "all", **chosen)

    return options_as("problems", make, [*parameters_of(ProblemOptions, *CHOICE), fair], "source")(command)


def one_problem(source: str, problem_id: str | None) -> Problem:
    """The problem with this id, or, without an id, the source's only problem. Raises `UsageError` if there is none."""
    problems = load_problems(source, ids=problem_id)
    if len(problems) == 1:
        return problems[0]
    raise UsageError(
        f"{source} has {len(problems)} problems: choose one with --problem ID "
        f"(list them with: rtl-agent-gym problems list --problems {shlex.quote(source)})"
    )


def refuse_options_of_nodes(context: typer.Context, sandbox: str = "auto") -> None:
    """Raise `UsageError` if a run on a cluster sets how nodes make sandboxes, before or after the command's name."""
    before = context.find_root().params
    kind = sandbox if sandbox != "auto" else before.get("sandbox") or "auto"
    given = [f"--sandbox {kind}"] if kind != "auto" else []
    given += ["--allow-weak-limits"] if before.get("allow_weak_limits") else []
    if given:
        command = f"rtl-agent-gym {' '.join(given)} cluster up"
        raise UsageError(f"{given[0]}: a run cannot set this for the nodes of a cluster; start them with `{command}`")


def writable_folder(folder: Path, option: str) -> None:
    """Create a folder if it does not exist. Raises `UsageError` if it cannot be created or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be created: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot be written to")
