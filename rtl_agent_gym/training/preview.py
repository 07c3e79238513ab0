"""What a run will do, and what it may cost on a service: shown before the run starts, and by ``--dry-run``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Annotated

import requests
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from ..errors import UsageError
from ..problems.paths import expand_home
from ..visible import plural, without_secrets
from .plan import Plan, dialect_for
from .teacher_context import SELF, TeacherContext

TURNS, SAMPLED, READ = 10, 400, 300
"""Assumptions on a typical episode: turns, sampled tokens per turn, and tokens of a command's output."""

CHARACTERS_A_TOKEN = 3.5
"""Approximate characters per token of a prompt."""

SYSTEM = 600
"""Approximate tokens of the environment's system prompt."""

PATIENCE = 5.0
"""Seconds to wait for the list of prices."""

KINDS = {"prefill": "read", "cached_prefill": "read from the cache", "sample": "sampled", "train": "trained on"}
"""The kinds of tokens that have a price, with their names in the output."""

Usage = Counter[tuple[str, str]]
"""Tokens by model and kind."""

Dollars = Annotated[
    float,
    BeforeValidator(lambda value: str(value).strip().lstrip("$").replace(",", "")),
    Field(ge=0, allow_inf_nan=False),
]
"""A price such as ``$1.87``."""


class Price(BaseModel):
    """An entry of Tinker's list of models and prices, in US dollars per million tokens of each kind."""

    tinker_id: str
    prefill: Dollars
    cached_prefill: Dollars
    sample: Dollars
    train: Dollars


def describe_run(plan: Plan) -> list[str]:
    """What a run will do: models, problems, prompts, limits, steps; on a service also its tokens and their price."""
    o = plan.options
    where = "this machine" if plan.engine == "local" else without_secrets(o.base_url or "Tinker's service")
    rank = f"LoRA of rank {o.lora_rank}" if o.lora_rank else "all weights"
    lines = [f"student: {plan.student} on {where}, dialect {plan.renderer}, {rank}"]
    if o.distils:
        lines.append(f"teacher: {', '.join(_teachers(plan))}")
    held_out = "".join(f", {len(problems)} in {name}" for name, problems in plan.evaluated().items() if name != "train")
    if plan.supervised is not None:
        source, each = f"{plural(len(plan.supervised.train), 'episode')} to imitate", f"{o.batch_size} episodes"
    else:
        source = f"{plural(len(plan.problems), 'problem')} of {o.problems} to train on"
        each = f"{o.batch_size} x {o.group_size} episodes"
    lines.append(f"data: {source}{held_out.replace(', 0 in test', '')}")
    system = _prompt(o.system_prompt) if o.agent == "none" else f"of {o.agent}"
    lines.append(f"prompts: system {system}, user {_prompt(o.user_prompt)}")
    turns = f"{o.max_turns} turns" if o.env == "agentic" else "one turn"
    lines.append(
        f"limits: {turns}, {o.max_tokens:,} tokens a turn, {o.max_trajectory_tokens:,} an episode, "
        f"{o.command_timeout:g} s a command"
    )
    lines.append(f"steps: {o.num_steps} of {each}; {_evaluated(plan)} episodes in evaluations; folder {o.log_path}")
    if plan.engine == "tinker":
        lines += _describe_cost(plan)
    return lines


def usage(plan: Plan, *, at_most: bool) -> Usage:
    """The tokens of a run with typical episodes, or with uncached episodes as long as the options allow.

    The numbers include the steps that a resumed run has already done. They do not include work that is repeated after a
    fault, nor what a teacher reads in addition to the student's tokens.
    """
    o = plan.options
    size = _episode(plan, at_most=at_most)
    played = 0 if plan.supervised is not None else o.num_steps * o.batch_size * o.group_size
    found: Usage = Counter()
    for kind, tokens in size.items():
        found[plan.student, kind] = tokens * (played if kind == "train" else played + _evaluated(plan))
    if plan.supervised is not None:
        demonstrations = plan.supervised.train
        mean = sum(len(episode.tokens) for episode in demonstrations) / max(1, len(demonstrations))
        found[plan.student, "train"] = round(o.num_steps * o.batch_size * mean)
    elif o.distils:
        context = TeacherContext.of(o)
        chosen = [plan.teacher_of(problem) for problem in plan.problems if context.covers(problem)]
        for (_, teacher), problems in Counter(filter(None, chosen)).items():
            read = round(played * size["train"] * problems / len(plan.problems))
            found[plan.student if teacher == SELF else teacher, "prefill"] += read
    return +found


def read_prices(source: str) -> dict[str, Price]:
    """The prices in a file or at an address, by model. Entries without all four prices are left out.

    Raises `UsageError` if the file cannot be read, the address does not answer, or the content has another format.
    """
    try:
        if source.startswith(("https://", "http://")):
            answer = requests.get(source, timeout=PATIENCE, headers={"User-Agent": "rtl-agent-gym"})
            answer.raise_for_status()
            entries = answer.json()
        else:
            entries = json.loads(expand_home(source).read_text(encoding="utf-8"))
        found = TypeAdapter(list[dict[str, object]]).validate_python(entries)
    except (requests.ConnectionError, requests.Timeout) as error:
        raise UsageError(f"prices: {source} does not answer ({type(error).__name__})") from error
    except requests.RequestException as error:
        raise UsageError(f"prices: {source} cannot be read: {error}") from error
    except OSError as error:
        raise UsageError(f"prices: {source} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # JSON's and pydantic's
        raise UsageError(f"prices: {source} is not a list of models and prices in JSON") from error
    return {price.tinker_id: price for entry in found if (price := _price(entry)) is not None}


def _describe_cost(plan: Plan) -> list[str]:
    typical, most = (usage(plan, at_most=at_most) for at_most in (False, True))
    models = sorted({model for model, _ in chain(typical, most)})
    lines = []
    for model in models:
        counts = [
            f"{name} {_millions(typical[model, kind])}"
            + (f" (at most {_millions(most[model, kind])})" if most[model, kind] else "")
            for kind, name in KINDS.items()
            if typical[model, kind] or most[model, kind]
        ]
        lines.append(f"tokens of {model}: {', '.join(counts)}")
    basis = f"if an episode has {TURNS} turns"
    try:
        prices = {} if plan.options.prices is None else read_prices(plan.options.prices)
        unknown = f"prices={plan.options.prices} lacks {', '.join(name for name in models if name not in prices)}"
    except UsageError as error:  # the run itself needs no prices
        prices, unknown = {}, str(error)
    if prices.keys() >= {*models}:
        low, high = _sum(typical, prices), _sum(most, prices)
        return [*lines, f"cost: about ${low:,.2f} {basis}, at most ${high:,.2f}"]
    return [*lines, f"cost: unknown, since {unknown}; the token counts hold {basis}"]


def _sum(tokens: Usage, prices: Mapping[str, Price]) -> float:
    return sum(count * float(getattr(prices[model], kind)) / 1e6 for (model, kind), count in tokens.items())


def _price(entry: dict[str, object]) -> Price | None:
    try:
        return Price.model_validate(entry)
    except ValidationError:
        return None


def _teachers(plan: Plan) -> list[str]:
    o, found = plan.options, []
    for option, model in dict.fromkeys(o.named_teachers()):
        if any(model == recipe.name for recipe in plan.recipes):
            found.append(model)
        elif model == SELF:
            found.append(f"the student's own weights (context {o.teacher_context})")
        else:
            dialect = dialect_for(model, o.teacher_renderer_name, plan.engine, option, "teacher_renderer_name")
            found.append(f"{model}, dialect {dialect}")
    return found


def _prompt(option: str | None) -> str:
    return "of the environment" if option is None else option if option.startswith("@") else "of the options"


def _episode(plan: Plan, *, at_most: bool) -> dict[str, int]:
    """The tokens of one episode by kind; those of ``train`` are prompt, turns and outputs together."""
    o = plan.options
    turns = o.max_turns if o.env == "agentic" else 1
    if at_most:
        length = o.max_trajectory_tokens
        return {"prefill": turns * length, "sample": min(turns * o.max_tokens, length), "train": length}
    problems = plan.played()
    characters = sum(len(problem.prompt) for problem in problems)
    if o.env == "single_turn":
        characters += sum(len(text) for problem in problems for text in problem.context.values())
    prompt = round(characters / max(1, len(problems)) / CHARACTERS_A_TOKEN)
    turns, sampled = min(TURNS, turns), min(SAMPLED, o.max_tokens)
    starts = [min(SYSTEM + prompt + turn * (sampled + READ), o.max_trajectory_tokens) for turn in range(turns)]
    length = min(starts[-1] + sampled, o.max_trajectory_tokens)
    return {"cached_prefill": sum(starts[:-1]), "prefill": starts[-1], "sample": turns * sampled, "train": length}


def _evaluated(plan: Plan) -> int:
    """Number of episodes in all evaluations."""
    o, played = plan.options, 0
    times = 1 + sum(o.evaluates_after(step) for step in range(o.num_steps))
    for kind, problems in plan.evaluated().items():
        if problems:
            played += (2 if "/" in kind else times) * o.evaluated_episodes(len(problems)) * len(problems)
    return played


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:,.1f} M"
