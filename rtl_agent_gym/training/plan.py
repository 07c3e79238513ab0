"""What can be wrong with a run before it has begun, found without loading a model or touching a service."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..engines.credentials import has_key
from ..errors import UsageError
from ..problems import Problem, category_name, load_problems, split_problems
from ..scoring.scorable import scorable
from .effects import check_effects
from .options import TrainOptions, build_options
from .published import check_hub, renderer_for

CHARACTERS_A_TOKEN = 8
"""No vocabulary here does better on prose; a prompt that does not even fit so is too long for certain."""


@dataclass(frozen=True)
class Models:
    """The models of a run, by the names that its engine knows."""

    student: str
    teacher: str | None
    tokenizer: str
    """Of the student."""
    renderer: str
    """The student's dialect."""
    system_prompt: str | None = None
    """None for the environment's own; likewise the next."""
    user_prompt: str | None = None


@dataclass(frozen=True)
class ModelRecipe:
    """Models that are made on this machine for a run, instead of published ones."""

    name: str
    """What ``student_model`` and ``teacher_model`` call them."""
    renderer: str
    """The dialect that they speak."""
    defaults: Mapping[str, Any]
    """Of a run without a service that names no other student."""
    make: Callable[[TrainOptions, Models], Models]
    """Makes those that the options name, and gives the run's models with the made ones in their places."""


@dataclass(frozen=True)
class Plan:
    """A run whose options are sound."""

    options: TrainOptions
    engine: Literal["local", "tinker"]
    problems: list[Problem]
    """To train on."""
    models: Models
    """Where a recipe makes them, `ModelRecipe.make` gives the real ones."""
    held_out: list[Problem]
    """To evaluate only."""
    recipe: ModelRecipe | None = None
    warnings: tuple[str, ...] = ()
    """What the run will not do as its options may suggest."""

    def is_made(self, model: str | None) -> bool:
        """Whether a model is one of the recipe's."""
        return self.recipe is not None and model == self.recipe.name


def plan_run(given: Mapping[str, Any], *, rl: bool = False, recipe: ModelRecipe | None = None) -> Plan:
    """The run that options ask for.

    Args:
        given: The options by name, values as text or as what they are.
        rl: Reinforcement learning: no teacher, unless the options name one.
        recipe: Models that can be made here.

    Raises:
        UsageError: An option is wrong; the message begins with its name.
    """
    defaults: dict[str, Any] = {}
    local = _is_local(given.get("engine", "auto"), given.get("base_url"))
    if recipe is not None and local and given.get("student_model", recipe.name) == recipe.name:
        defaults = dict(recipe.defaults)
        if given.get("cvdp_jsonl_path", "bundled") != "bundled":
            defaults.pop("problem_ids", None)
    elif not rl:
        defaults = {"log_path": "runs/distillation_1problem"}
    if rl:
        defaults |= {"teacher_model": None, "kl_penalty_coef": 0.0, "reward_coef": 1.0, "log_path": "runs/rl"}
        defaults.setdefault("group_size", 8)
    o = build_options(given, defaults)
    engine = _check_engine(o, recipe)
    problems, held_out = _choose_problems(o)
    made = recipe.name if recipe is not None else None
    teachers = [("teacher_model", o.teacher_model), *(("teachers", model) for model in o.teachers.values())]
    published = [("student_model", o.student_model), *(teachers if o.distils else ())]
    published = [(option, model) for option, model in published if model not in (None, made)]
    models = _check_models(o, engine, recipe, published)
    _check_prompts(o, () if o.student_model == made else problems + held_out)
    for option, model in published if engine == "local" else ():
        if not Path(model).is_dir():
            check_hub(model, option)
    return Plan(o, engine, problems, models, held_out, recipe, check_effects(o, engine, given))


def _is_local(engine: str, base_url: str | None) -> bool:
    return engine == "local" or (engine != "tinker" and not has_key() and not base_url)


def _check_engine(o: TrainOptions, recipe: ModelRecipe | None) -> Literal["local", "tinker"]:
    if importlib.util.find_spec("tinker") is None or importlib.util.find_spec("tinker_cookbook") is None:
        raise UsageError("training needs packages that are missing; pip install 'rtl-agent-gym[train,local]'")
    if _is_local(o.engine, o.base_url):
        missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(f"engine: the local one needs {', '.join(missing)}; pip install 'rtl-agent-gym[local]'")
        return "local"
    if not has_key():
        what = f"base_url={o.base_url} asks" if o.base_url else "engine=tinker asks"
        raise UsageError(
            f"TINKER_API_KEY: {what} for a service, and there is no key; export one, store one with "
            "`tinker auth login`, or take engine=local"
        )
    if o.lora_rank == 0:
        raise UsageError("lora_rank: 0 trains all weights, which only engine=local can; give a rank such as 32")
    for name in ("student_model", "teacher_model"):
        if recipe is not None and getattr(o, name) == recipe.name:
            raise UsageError(f"{name}: the {recipe.name} models are for engine=local; name a model of the service")
    return "tinker"


def _choose_problems(o: TrainOptions) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on and those to test on."""
    found = _load(o, "cvdp_jsonl_path", o.cvdp_jsonl_path, ids=list(o.problem_ids) or None)
    if not found:
        raise UsageError(
            f"cvdp_jsonl_path: {o.cvdp_jsonl_path} has no problem that can be scored here and that problem_ids, "
            "categories and difficulties leave"
        )
    problems, held_out = _hold_out(o, found)
    if not problems:
        raise UsageError(f"held_out: {o.held_out} leaves no problem to train on")
    if o.held_out is not None and not held_out:
        raise UsageError(f"held_out: {o.held_out} holds out none of {len(found)} problems; give more, ids or a source")
    known = {problem.id for problem in problems} | {category_name(problem.category) for problem in problems}
    for name in o.teachers:
        if name not in known:
            raise UsageError(f"teachers: {name!r} is neither a problem nor a category of this run")
    return problems, held_out


def _hold_out(o: TrainOptions, problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Problems split by ``held_out``: a share, ids or a source, from which nothing is trained on either."""
    if o.held_out is None:
        return problems, []
    try:
        share = float(o.held_out)
    except ValueError:
        names = {name.strip() for name in o.held_out.split(",")}
        if names <= {problem.id for problem in problems}:
            held_out = [problem for problem in problems if problem.id in names]
        else:
            held_out = _load(o, "held_out", o.held_out)
            names = {problem.id for problem in held_out}
        return [problem for problem in problems if problem.id not in names], held_out
    try:
        return split_problems(problems, share, o.seed)
    except UsageError as error:
        raise UsageError(f"held_out: {error}") from error


def _load(o: TrainOptions, option: str, source: str, ids: list[str] | None = None) -> list[Problem]:
    """The problems of a source that the filters leave and that can be scored here."""
    try:
        filters = {"categories": list(o.categories) or None, "difficulties": list(o.difficulties) or None}
        return scorable(load_problems(source, ids=ids, **filters))[0]
    except UsageError as error:
        raise UsageError(f"{option}={source}: {error}") from error
    except OSError as error:
        raise UsageError(f"{option}: {source} cannot be read: {error.strerror}") from error


def _check_models(
    o: TrainOptions, engine: str, recipe: ModelRecipe | None, published: Sequence[tuple[str, str]]
) -> Models:
    """The models by name, each published one known and with a dialect that fits it."""
    renderer = o.renderer_name or (recipe.renderer if recipe is not None else "")
    made = recipe is not None and o.student_model == recipe.name
    if recipe is not None and made and renderer.partition("_")[0] != recipe.renderer.partition("_")[0]:
        raise UsageError(f"renderer_name: {renderer} does not fit the {recipe.name} models; take {recipe.renderer}")
    for option, model in published:
        if option == "student_model":
            renderer = renderer_for(model, o.renderer_name, engine, option, "renderer_name")
        else:
            renderer_for(model, o.teacher_renderer_name, engine, option, "teacher_renderer_name")
    prompts = o.text_of("system_prompt"), o.text_of("user_prompt")
    return Models(o.student_model, o.teacher_model, o.student_model, renderer, *prompts)


def _check_prompts(o: TrainOptions, problems: Sequence[Problem]) -> None:
    if o.distils:
        o.text_of("teacher_system_prompt")
    for problem in problems if o.user_prompt is None else ():
        fewest = len(problem.prompt) // CHARACTERS_A_TOKEN
        if fewest >= o.max_trajectory_tokens:
            raise UsageError(
                f"max_trajectory_tokens: the prompt of {problem.id} alone has more than {fewest} tokens, and the "
                f"limit is {o.max_trajectory_tokens}"
            )
