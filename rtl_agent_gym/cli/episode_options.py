"""Options of the commands that play episodes. Each sets a field of the configuration, which has its default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
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
JudgeOption = Annotated[
    str | None,
    typer.Option(
        "--judge", metavar="JUDGE", help="Judge of answers that are text: chat:MODEL, or chat:MODEL@URL for a server."
    ),
]
HarnessImagesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--harness-image",
        metavar="NAME=IMAGE",
        help="Your image for a commercial simulator, such as VERIF_EDA_IMAGE=my/simulator:24.03; repeatable.",
    ),
]
HarnessEnvOption = Annotated[
    Path | None,
    typer.Option(
        "--harness-env",
        metavar="FILE",
        help="NAME=value lines: variables of the tests in your image, such as the place of its licence.",
    ),
]
HarnessNetworkOption = Annotated[
    str,
    typer.Option(
        "--harness-network", metavar="NETWORK", help="Docker network that your image's tests join; none by default."
    ),
]
EnvOption = Annotated[
    Literal["agentic", "single-turn"],
    typer.Option(help="agentic: many turns in a shell. single-turn: one answer that holds the files."),
]

_EVALUATION = {
    "sandbox_limits": Annotated[
        str,
        typer.Option(
            metavar="LIMITS",
            help="What sandboxes may use of the machine, such as memory=16G,cpus=4,starts=8; by default what it has.",
        ),
    ],
    "problems": ProblemsOption,
    "policy": Annotated[str, typer.Option(metavar="POLICY", help=f"What plays the episodes: {', '.join(POLICIES)}.")],
    "seed": Annotated[int, typer.Option(help="Random seed. With equal seeds, run plays the first episode of eval.")],
    "renderer": Annotated[
        str, typer.Option(metavar="NAME", help="Chat format of the model, such as qwen3, qwen3_instruct or gpt_oss.")
    ],
    "reward": WeightsOption,
}
_EPISODE = {
    "max_turns": Annotated[int, typer.Option(min=1, help="Turns after which an episode ends.")],
    "command_timeout": Annotated[
        float, typer.Option(min=0.1, max=LONGEST_TIMEOUT, help="Seconds that one shell command may run.")
    ],
    "harness_feedback": Annotated[
        int, typer.Option(min=0, help="How often the agent may submit its files and read which checks fail; 0: never.")
    ],
    "judge": JudgeOption,
    "harness_images": HarnessImagesOption,
    "harness_env": HarnessEnvOption,
    "harness_network": HarnessNetworkOption,
}
_MODEL = {
    "temperature": Annotated[float, typer.Option(min=0.0, help="Sampling temperature; model policies only.")],
    "top_p": Annotated[
        float, typer.Option(help="Nucleus sampling: share of the probability to sample from; model policies only.")
    ],
    "max_tokens": Annotated[int, typer.Option(min=1, help="Token limit of one turn; model policies only.")],
    "max_context": Annotated[
        int, typer.Option(min=1, help="Context length of the model in tokens; tinker and local policies only.")
    ],
    "base_url": Annotated[
        str | None, typer.Option(metavar="URL", help="Address of the model service, such as http://HOST:PORT/v1.")
    ],
    "api_key": Annotated[
        str | None,
        typer.Option(metavar="KEY", help="API key of the model service; safer in the provider's environment variable."),
    ],
    "tools": Annotated[
        bool, typer.Option(help="Declare the shell as a tool, or have the model write its calls as text; chat only.")
    ],
    "stream": Annotated[bool, typer.Option(help="Have each answer streamed; chat only.")],
    "price_input": Annotated[
        float | None,
        typer.Option(metavar="USD", help="Price of a million tokens read, if litellm's list lacks it; chat only."),
    ],
    "price_output": Annotated[
        float | None, typer.Option(metavar="USD", help="Price of a million tokens written; chat only.")
    ],
    "price_cached": Annotated[
        float | None, typer.Option(metavar="USD", help="Price of a million tokens read from a cache; chat only.")
    ],
}


def with_options(**more: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function of an `EvaluationConfig` as a command with the options that set it.

    Args:
        more: Options for other fields of `EvaluationConfig`, by the field's name.
    """
    options: dict[type, dict[str, Any]] = {
        EvaluationConfig: _EVALUATION | more,
        EpisodeConfig: _EPISODE,
        ModelOptions: _MODEL,
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("env", keyword, default="agentic", annotation=EnvOption)] + [
        inspect.Parameter(name, keyword, default=getattr(config, name), annotation=hint)
        for config, hints in options.items()
        for name, hint in hints.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(env: str, **given: Any) -> None:
            fields = {config: {name: given.pop(name) for name in hints} for config, hints in options.items()}
            episode = EpisodeConfig(workspace="answer" if env == "single-turn" else "shell", **fields[EpisodeConfig])
            model = ModelOptions(**fields[ModelOptions])
            command(EvaluationConfig(episode=episode, model=model, **fields[EvaluationConfig]), **given)

        hints = get_type_hints(command, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()  # the first is the configuration
        every = parameters + [one.replace(kind=keyword, annotation=hints[one.name]) for one in own]
        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in every}
        return call

    return decorate
