"""Options of the commands that play episodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, Literal, get_type_hints

import typer

from ..episodes.episode import EpisodeConfig
from ..episodes.rules import LONGEST_TIMEOUT
from ..evaluation import EvaluationConfig
from ..policies import POLICIES, ModelOptions
from ..scoring import PRESETS
from .options import ProblemsOption

WeightsOption = Annotated[
    str, typer.Option("--weights", metavar="PRESET", help=f"How the reward is computed: {', '.join(PRESETS)}.")
]
CacheOption = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Cache gradings on disk and reuse them for equal files.")
]


@dataclass(frozen=True)
class EpisodeOptions:
    """The options of the commands that play episodes."""

    problems: ProblemsOption = "bundled"
    policy: Annotated[str, typer.Option(metavar="POLICY", help=f"What plays the episodes: {', '.join(POLICIES)}.")] = (
        "golden"
    )
    env: Annotated[
        Literal["agentic", "single-turn"],
        typer.Option(help="agentic: many turns in a shell. single-turn: one answer that holds the files."),
    ] = "agentic"
    seed: Annotated[int, typer.Option(help="Random seed. With equal seeds, run plays the first episode of eval.")] = 0
    renderer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Chat format of the model, such as qwen3, qwen3_instruct or gpt_oss."),
    ] = "qwen3"
    max_turns: Annotated[int, typer.Option(min=1, help="Turns after which an episode ends.")] = 50
    command_timeout: Annotated[
        float, typer.Option(min=0.1, max=LONGEST_TIMEOUT, help="Seconds that one shell command may run.")
    ] = 30.0
    harness_feedback: Annotated[
        int,
        typer.Option(min=0, help="How often the agent may submit its files and learn which checks fail; 0: never."),
    ] = 0
    weights: WeightsOption = "default"
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; model policies only.")] = 1.0
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: share of the probability to sample from; model policies only.")
    ] = 1.0
    max_tokens: Annotated[int, typer.Option(min=1, help="Token limit of one turn; model policies only.")] = 4096
    max_context: Annotated[
        int, typer.Option(min=1, help="Context length of the model in tokens; tinker and local policies only.")
    ] = 32_768
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of the model service, such as http://HOST:PORT/v1.")
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="API key of the model service; safer in the provider's environment variable."),
    ] = None
    tools: Annotated[
        bool,
        typer.Option(
            "--tools/--no-tools",
            help="Declare the shell to the service as a tool, or have the model write its calls as text; chat only.",
        ),
    ] = True

    def evaluation(self, **more: Any) -> EvaluationConfig:
        """The evaluation with these options; `more` sets its other fields."""
        return EvaluationConfig(
            policy=self.policy,
            model=ModelOptions(
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_tokens,
                max_context=self.max_context,
                base_url=self.base_url,
                api_key=self.api_key,
                tools=self.tools,
            ),
            renderer=self.renderer,
            episode=EpisodeConfig(
                workspace="answer" if self.env == "single-turn" else "shell",
                max_turns=self.max_turns,
                command_timeout=self.command_timeout,
                harness_feedback=self.harness_feedback,
                transcript_dir=more.pop("transcript_dir", None),
            ),
            reward=self.weights,
            seed=self.seed,
            **more,
        )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a function with a dataclass parameter into a command with one option for each field of the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    (group,) = (name for name, hint in hints.items() if is_dataclass(hint))
    options = fields(hints[group])
    option_hints = get_type_hints(hints[group], include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name == group:
            parameters += [
                inspect.Parameter(one.name, keyword, default=one.default, annotation=option_hints[one.name])
                for one in options
            ]
        else:
            parameters.append(parameter.replace(kind=keyword, annotation=hints[name]))

    @wraps(command)
    def call(**given: Any) -> None:
        command(**{group: hints[group](**{one.name: given.pop(one.name) for one in options})}, **given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
