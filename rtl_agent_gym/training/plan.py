"""Plans a run: checks its options and chooses its problems and models, without loading a model or using a service."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..engines.catalogue import renderer_for, same_family
from ..engines.config import key_source
from ..envs.problem_order import Batches, Order, Schedule
from ..envs.tinker_config import TinkerEnvConfig, load_renderer
from ..episodes.prompt import PromptTooLong, episode_renderer, open_prompt
from ..episodes.rules import EpisodeConfig
from ..errors import ImageError, UsageError
from ..options import EpisodeOptions, EvaluationOptions, PolicyOptions
from ..policies.harness import check_agent
from ..policies.judge import judge_name
from ..problems import Problem, category_name, load_problems, split_problems
from ..problems.notes import Rows
from ..scoring.cache import default_cache_dir
from ..scoring.options import GradingOptions
from ..scoring.scorer import scorable
from ..visible import plural, without_secrets
from .advantages import has_weak_tests
from .options import SftOptions, TrainOptions, with_older_names
from .run_folder import ENGINE
from .sft.data import SupervisedData
from .teacher_context import HINTS, SELF, TeacherContext, check_teachers

HUB_PATIENCE = 3.0
"""Seconds to wait for the hub's answer."""

_REMEDY = "choose baseline=running, or group_size=2 or more"

_FOR_TEACHERS: Mapping[str, float | None] = {
    "kl_penalty_coef": 0, "kl_discount_factor": 0, "kl_clip": None, "kl_budget": None, "kl_weight_thinking": 1,
    "kl_weight_text": 1, "kl_weight_call": 1, "teacher_renderer_name": None, "teacher_system_prompt": None,
}  # fmt: skip
"""Options that have an effect only with a teacher, each with a value that has none."""


@dataclass(frozen=True)
class ModelRecipe:
    """Models of this package, used instead of published models."""

    name: str
    """The models' name in ``student_model`` and ``teacher_model``."""
    renderer: str
    defaults: Mapping[str, Any]
    """Default options of a run without a service whose student is of this recipe."""
    make: Callable[[Plan], Plan]
    """Prepares the models that the options name, and returns the plan with their paths and prompts."""
    digest: Callable[[Literal["student", "teacher"]], str]
    """A digest that identifies the files of the student or the teacher."""


@dataclass(frozen=True)
class Plan:
    """A run with checked options."""

    options: TrainOptions
    engine: Literal["local", "tinker"]
    problems: list[Problem]
    held_out: list[Problem]
    """Problems that are only evaluated."""
    student: str
    """The engine's name for the student. `ModelRecipe.make` replaces a recipe's name by folders of models."""
    teacher: str | None
    renderer: str
    """The student's dialect."""
    system_prompt: str | None = None
    """None for the environment's default; likewise `user_prompt`."""
    user_prompt: str | None = None
    recipes: tuple[ModelRecipe, ...] = ()
    """The recipes of the models that must be built."""
    warnings: tuple[str, ...] = ()
    """Options that do not have the effect that they suggest."""
    extra_held_out: Mapping[str, list[Problem]] = field(default_factory=dict)
    """More problems that are only evaluated, by the source's name in ``extra_held_out``."""
    supervised: SupervisedData | None = None
    """The episodes to imitate; None for a run that plays its own episodes."""

    def with_models(self, name: str, student: Path, teacher: Path, system_prompt: str) -> Plan:
        """The plan with the folders of a recipe's models instead of the recipe's name.

        In a shell, the student gets the models' system prompt unless the options set one; user prompts stay.
        """
        made = self if self.teacher != name else replace(self, teacher=str(teacher))
        if self.student != name:
            return made
        short = self.options.env == "agentic" and self.system_prompt is None
        return replace(made, student=str(student), system_prompt=system_prompt if short else self.system_prompt)

    def evaluated(self) -> dict[str, list[Problem]]:
        """The problems of the evaluations, by the names of their metrics: ``test`` and ``test/…`` are held out."""
        return {
            "test": self.held_out,
            **{f"test/{name}": problems for name, problems in self.extra_held_out.items()},
            "train": self.problems if self.options.eval_episodes else [],
        }

    def played(self) -> list[Problem]:
        """All problems of which the run plays episodes, in training or in evaluations."""
        trained = {} if self.supervised is not None else {"train": self.problems}
        return [*itertools.chain(*(self.evaluated() | trained).values())]

    def teacher_of(self, problem: Problem) -> tuple[str, str] | None:
        """The option that names a problem's teacher, and the teacher; None if the problem has no teacher."""
        named = self.options.teachers
        model = named.get(problem.id, named.get(category_name(problem.category)))
        if model is not None:
            return "teachers", model
        return None if self.teacher is None else ("teacher_model", self.teacher)

    def batches(self) -> Batches:
        """The training problems in the order of the steps."""
        o = self.options
        order: Order = "shuffled" if o.curriculum == "none" else o.curriculum
        return Batches(
            self.problems, Schedule(o.batch_size, o.group_size, order=order, seed=o.seed, batches=o.num_steps)
        )

    def env_config(self, transcripts: Path, context: int | None = None) -> TinkerEnvConfig:
        """The configuration of the run's episodes; `context` is the student's context length in tokens, if known."""
        o = self.options
        rules = {name: getattr(o, name) for name in EpisodeOptions.model_fields} | {
            "workspace": "answer" if o.env == "single_turn" else "shell",
            "transcript_dir": transcripts,
            "system_prompt": self.system_prompt,
            "user_prompt": self.user_prompt,
            "max_trajectory_tokens": min(o.max_trajectory_tokens, context or o.max_trajectory_tokens),
        }
        return TinkerEnvConfig(
            model_name=self.student,
            renderer_name=self.renderer,
            episode=EpisodeConfig(**rules),
            reward=o.reward_config(),
            score_cache=default_cache_dir(),
        )

    def evaluation_command(self, weights: str) -> str:
        """The command that evaluates weights of the run with its prompts, limits and temperature.

        Its problems are the run's held-out problems, or if there are none, those that the run selected from its source.
        """
        o = self.options
        system_prompt = self.system_prompt if o.system_prompt is None else o.system_prompt
        model = f"{'local' if self.engine == 'local' else 'tinker'}:{weights}"
        ids = [problem.id for problem in self.held_out or self.problems]
        given = o.held_out or ""
        own = not given or _is_share(given) or not {name.strip() for name in given.split(",")}.isdisjoint(ids)
        chosen = own and (given or o.ids or o.rows != "all")
        named = chosen or o.categories or o.difficulties  # filters that the command does not repeat
        values = {
            "policy": model if o.agent == "none" else f"harness:{o.agent} {model}",
            "renderer": self.renderer,
            "problems": o.problems if own else given,
            "env": o.env.replace("_", "-"),
            "system-prompt": system_prompt if o.agent == "none" else None,
            "user-prompt": o.user_prompt,
            "max-turns": o.max_turns,
            "command-timeout": o.command_timeout,
            "harness-feedback": o.harness_feedback,
            "judge": o.judge,
            "max-tokens": o.max_tokens,
            "max-context": o.max_trajectory_tokens,
            "temperature": o.evaluation_temperature,
        }
        kinds = (EvaluationOptions, EpisodeOptions, PolicyOptions)
        usual = {name.replace("_", "-"): field.default for kind in kinds for name, field in kind.model_fields.items()}
        usual |= {"problems": "bundled", "env": "agentic", "policy": None}
        words = [(f"--{name}", str(value)) for name, value in values.items() if value != usual[name]]
        words += [("--problem", id_) for id_ in ids if named]
        return shlex.join(["rtl-agent-gym", "eval", *itertools.chain(*words)])

    def record(self) -> dict[str, Any]:
        """The options as plain data, without the passwords in addresses.

        A run is resumed only with equal options, apart from `run_folder.CHANGEABLE`.
        """
        o = self.options
        public = {"judge": o.judge and judge_name(o.judge), "base_url": o.base_url and without_secrets(o.base_url)}
        data = {} if self.supervised is None else {"episodes_digest": self.supervised.digest}
        texts = {
            name: self.options.text_of(name)
            for name in ("system_prompt", "user_prompt", "teacher_system_prompt")
            if str(getattr(self.options, name)).startswith("@")
        }
        if self.options.teacher_context.startswith(HINTS):
            texts["teacher_context"] = json.dumps(dict(TeacherContext.of(self.options).hints), sort_keys=True)
        # The training problems of a supervised run are only evaluated.
        problems = self.evaluated() | {"train": self.problems if self.supervised is None else []}
        contents = {name: [problem.digest for problem in some] for name, some in problems.items()}
        texts["problems"] = json.dumps(contents, sort_keys=True)
        digests = {f"{name}_digest": hashlib.sha256(str(text).encode()).hexdigest() for name, text in texts.items()}
        for recipe in self.recipes:
            if self.options.student_model == recipe.name:
                digests["student_model_digest"] = recipe.digest("student")
            if self.options.distils and self.options.teacher_model == recipe.name:
                digests["teacher_model_digest"] = recipe.digest("teacher")
        return o.model_dump(mode="json") | public | {ENGINE: self.engine} | data | digests


def plan_run(given: Mapping[str, Any], *, rl: bool = False, recipes: Sequence[ModelRecipe] = ()) -> Plan:
    """Plan a run.

    Args:
        given: Options by name, with values as text or with their type.
        rl: Reinforcement learning: no teacher, unless the options set a teacher and a ``kl_penalty_coef``.
        recipes: Models that can be built on this machine; without a service, the first is the default.

    Raises:
        UsageError: An option is wrong; the message begins with its name.
    """
    defaults: dict[str, Any] = {}
    if chosen := local_recipe(given, recipes):
        defaults = dict(chosen.defaults)
        if {"cvdp_jsonl_path", "categories", "difficulties"} & with_older_names(given).keys():
            defaults.pop("problem_ids", None)
    elif not rl:
        defaults = {"log_path": "runs/distillation_1problem"}
    if rl:
        defaults |= {"teacher_model": None, "kl_penalty_coef": 0.0, "reward_coef": 1.0, "log_path": "runs/rl"}
        defaults.setdefault("group_size", 8)
    o = TrainOptions.build(given, defaults)
    plan = plan_options(o, given, recipes)
    return replace(plan, warnings=(*check_teachers(o, plan.problems), *_check_effects(plan, given)))


def plan_options(o: TrainOptions, given: Mapping[str, Any], recipes: Sequence[ModelRecipe]) -> Plan:
    """Plan a run with options `o`, of which the user gave those in `given`. Raises like `plan_run`."""
    engine = _check_engine(o, given, recipes)
    problems, held_out, extra = _choose_problems(o)
    made = {recipe.name: recipe for recipe in recipes}
    chosen = made.get(o.student_model)
    if o.distils and (shipped := made.keys() & o.teachers.values()):
        raise UsageError(
            f"teachers: {min(shipped)!r} is a name for student_model and teacher_model only; give a folder or a "
            "published model"
        )
    used = [("student_model", o.student_model), *(o.named_teachers() if o.distils else ())]
    published = [(option, model) for option, model in used if model not in {*made, SELF}]
    teacher = made.get(o.teacher_model or "") if o.distils else None
    renderer = _check_models(o, engine, chosen, teacher, published)
    if o.agent != "none":
        try:
            check_agent(o.agent, renderer)
        except (ImageError, UsageError) as error:
            raise UsageError(f"agent: {error}") from error
    prompts = o.text_of("system_prompt") if o.agent == "none" else "", o.text_of("user_prompt")
    if o.distils:
        o.text_of("teacher_system_prompt")  # raises if its file cannot be read
    for option, model in published if engine == "local" else ():
        if not Path(model).is_dir():
            check_hub(model, option)
    models = o.student_model, o.teacher_model, renderer
    names = {model for _, model in used}
    built = tuple(recipe for recipe in recipes if recipe.name in names)
    return Plan(o, engine, problems, held_out, *models, *prompts, recipes=built, extra_held_out=extra)


def local_recipe(given: Mapping[str, Any], recipes: Sequence[ModelRecipe]) -> ModelRecipe | None:
    """The recipe of the student, by default the first one; None without recipes or with a service."""
    wanted = given.get("student_model", recipes[0].name if recipes else None)
    found = next((recipe for recipe in recipes if recipe.name == wanted), None)
    return found if is_local(given.get("engine", "auto"), given.get("base_url")) else None


def is_local(engine: str, base_url: str | None) -> bool:
    """Whether a run with these options trains on this machine."""
    return engine == "local" or (engine != "tinker" and not key_source() and not base_url)


def _check_engine(
    o: TrainOptions, given: Mapping[str, Any], recipes: Sequence[ModelRecipe]
) -> Literal["local", "tinker"]:
    if importlib.util.find_spec("tinker") is None or importlib.util.find_spec("tinker_cookbook") is None:
        raise UsageError("packages for training are missing; pip install 'rtl-agent-gym[train,local]'")
    if is_local(o.engine, o.base_url):
        missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(f"engine: local needs {', '.join(missing)}; pip install 'rtl-agent-gym[local]'")
        return "local"
    if not key_source():
        what = f"base_url={without_secrets(o.base_url)}" if o.base_url else "engine=tinker"
        raise UsageError(
            f"TINKER_API_KEY: {what} needs a key, and there is none; export one, store one with `tinker auth login`, "
            "or choose engine=local"
        )
    if o.lora_rank == 0:
        raise UsageError("lora_rank: 0 trains all weights, which only engine=local supports; give a rank such as 32")
    for name in given:
        if name.startswith("local_"):
            raise UsageError(f"{name}: has no effect on a service; leave it out, or choose engine=local")
    for name in ("student_model", "teacher_model"):
        if (model := getattr(o, name)) in {recipe.name for recipe in recipes}:
            raise UsageError(f"{name}: {model} needs engine=local; name a model of the service")
    return "tinker"


def _choose_problems(o: TrainOptions) -> tuple[list[Problem], list[Problem], dict[str, list[Problem]]]:
    """The problems to train on, those to test on, and those of ``extra_held_out`` by name."""
    found = _load(o, "cvdp_jsonl_path", o.problems, ids=list(o.ids) or None, rows=o.rows)
    problems, held_out = _hold_out(o, found)
    extra = {name: _load(o, "extra_held_out", source) for name, source in o.extra_held_out.items()}
    tested = {problem.id for some in extra.values() for problem in some}
    if not problems:
        raise UsageError(f"held_out: {o.held_out} leaves no problem to train on")
    problems = [problem for problem in problems if problem.id not in tested]
    if not problems:
        raise UsageError("extra_held_out: it leaves no problem to train on")
    if o.held_out is not None and not held_out:
        raise UsageError(
            f"held_out: {o.held_out} holds out none of {len(found)} problems; give a larger fraction, ids or a source"
        )
    known = {problem.id for problem in problems} | {category_name(problem.category) for problem in problems}
    for name in o.teachers:
        if name not in known:
            raise UsageError(f"teachers: {name!r} is neither a problem nor a category of this run")
    return problems, held_out, extra


def _hold_out(o: TrainOptions, problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on and to test on. ``held_out`` is a fraction, ids or a source."""
    if o.held_out is None:
        return problems, []
    if not _is_share(o.held_out):
        names = {name.strip() for name in o.held_out.split(",")}
        if names <= {problem.id for problem in problems}:
            held_out = [problem for problem in problems if problem.id in names]
        else:
            held_out = _load(o, "held_out", o.held_out)
            names = {problem.id for problem in held_out}
        return [problem for problem in problems if problem.id not in names], held_out
    try:
        return split_problems(problems, float(o.held_out), o.seed)
    except UsageError as error:
        raise UsageError(f"held_out: {error}") from error


def _is_share(held_out: str) -> bool:
    """Whether ``held_out`` is a fraction, rather than ids or a source."""
    try:
        float(held_out)
    except ValueError:
        return False
    return True


def _load(o: TrainOptions, option: str, source: str, ids: list[str] | None = None, rows: Rows = "all") -> list[Problem]:
    """The problems of a source that match the filters and can be scored here. Raises `UsageError` if there are none."""
    try:
        filters = {"categories": list(o.categories) or None, "difficulties": list(o.difficulties) or None}
        return scorable(load_problems(source, ids=ids, rows=rows, **filters), source, GradingOptions(o.judge))[0]
    except UsageError as error:
        raise UsageError(f"{option}={source}: {error}") from error
    except OSError as error:
        raise UsageError(f"{option}: {source} cannot be read: {error.strerror}") from error


def _check_models(
    o: TrainOptions,
    engine: str,
    chosen: ModelRecipe | None,
    teacher: ModelRecipe | None,
    published: Sequence[tuple[str, str]],
) -> str:
    """The student's dialect, after checking that the published models are known and all dialects fit."""
    renderer = o.renderer_name or (chosen.renderer if chosen is not None else "")
    for option, name, recipe in (
        ("renderer_name", renderer, chosen),
        ("teacher_renderer_name", o.teacher_renderer_name, teacher),
    ):
        if recipe is not None and name and not same_family(name, recipe.renderer):
            raise UsageError(f"{option}: {name} does not fit the {recipe.name} models; choose {recipe.renderer}")
    for option, model in published:
        if option == "student_model":
            renderer = dialect_for(model, o.renderer_name, engine, option, "renderer_name")
        else:
            dialect_for(model, o.teacher_renderer_name, engine, option, "teacher_renderer_name")
    return renderer


def dialect_for(model: str, requested: str | None, engine: str, model_option: str, option: str) -> str:
    """The dialect of a model, from `renderer_for`. Raises `UsageError` also if `model` cannot be a model's name."""
    if engine == "local" and not Path(model).is_dir() and "/" not in model:
        raise UsageError(f"{model_option}: {model!r} is neither a folder nor a name on the Hugging Face hub")
    return renderer_for(model, requested, model_option=model_option, option=option)


def check_hub(model: str, option: str) -> None:
    """Raise `UsageError` if a model is neither in this machine's cache of the hub nor on the hub."""
    from huggingface_hub import errors, model_info, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    advice = "give a folder in the format of transformers, or the name of a model on the hub"
    try:
        model_info(model, timeout=HUB_PATIENCE)
    except errors.RepositoryNotFoundError as error:
        raise UsageError(f"{option}: the hub has no model {model!r}, or it needs another HF_TOKEN; {advice}") from error
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # also if HF_HUB_OFFLINE is set
        raise UsageError(
            f"{option}: {model!r} is not on this machine, and the hub does not answer "
            f"({type(error).__name__}); {advice}"
        ) from error


def check_prompts(plan: Plan, config: TinkerEnvConfig) -> None:
    """Raise `UsageError` if a problem's prompt does not fit into ``max_trajectory_tokens``."""
    renderer = load_renderer(config)
    for problem in plan.played():
        try:
            open_prompt(problem, config.episode, renderer)
        except PromptTooLong as error:
            raise UsageError(
                f"max_trajectory_tokens: even shortened, the prompt of {problem.id} does not fit into the limit of "
                f"{config.episode.max_trajectory_tokens}; raise it, or leave the problem out with problem_ids"
            ) from error


def _check_effects(plan: Plan, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about options without the effect that they suggest; each begins with the name of an option.

    Raises `UsageError` if every advantage of every step would be 0, or if a control would have no effect.
    """
    o = plan.options
    cancelled = _reward_cancels_itself(o)
    warnings: list[str] = []
    if not o.distils:
        if o.reward_coef == 0:
            raise UsageError(
                "reward_coef: it is 0, and there is no teacher or kl_penalty_coef=0; nothing would be learned"
            )
        if cancelled:
            raise UsageError(f"{cancelled}, so every advantage would be 0; {_REMEDY}")
    if o.distils and o.reward_coef > 0 and cancelled:
        warnings.append(
            f"{cancelled} and has no effect, only the teacher does; {_REMEDY}, or reward_coef=0 if this is intended"
        )
    if o.weak_coef != 1:
        warnings += _check_weak(plan)
    if o.control == "negated_kl" and not o.distils:
        raise UsageError("control: negated_kl needs a teacher; name one with teacher_model")
    if o.control == "permuted_rewards" and (o.reward_coef == 0 or len(plan.problems) < 2):
        raise UsageError(
            "control: permuted_rewards needs rewards that have an effect (reward_coef) and two problems to train on; "
            f"got reward_coef={o.reward_coef:g} and {len(plan.problems)} problem(s)"
        )
    for name, without in _FOR_TEACHERS.items() if not o.distils else ():
        if name in given and getattr(o, name) != without:
            warnings.append(f"{name}: has no effect without a teacher; name one with teacher_model")
    for name in ("teacher_model", "teachers") if o.kl_penalty_coef == 0 else ():
        if name in given and getattr(o, name):
            warnings.append(f"{name}: has no effect with kl_penalty_coef=0; give kl_penalty_coef, too")
    if o.temperature != 1:
        logprobs = (
            "are of that temperature"
            if plan.engine == "local"
            else "are of that temperature or of 1, which the service does not document (see optim/kl_sample_train_v1)"
        )
        warnings.append(
            f"temperature: tokens are sampled at {o.temperature:g}, and their log-probabilities {logprobs}, but the "
            "loss and the teacher assume temperature 1: importance weights are not 1, and the KL is not that of the "
            "model; choose temperature=1 unless this is intended"
        )
    return (*warnings, *_check_rate(o, given))


def _check_rate(o: TrainOptions, given: Mapping[str, Any]) -> list[str]:
    """Warnings about options of the learning rate that do not have the effect that they suggest."""
    warnings = []
    if "lr_final" in given and o.lr_schedule == "constant":
        warnings.append("lr_final: has no effect with lr_schedule=constant; choose lr_schedule=linear")
    if "warmup_steps" in given and o.warmup_steps >= o.num_steps:
        warnings.append(
            f"warmup_steps: the run ends after {plural(o.num_steps, 'step')}, before the full learning_rate"
        )
    return warnings


def _check_weak(plan: Plan) -> list[str]:
    """Warnings about ``weak_coef``. Raises `UsageError` if nothing would be learned."""
    o, weak = plan.options, sum(map(has_weak_tests, plan.problems))
    if weak == 0 or o.reward_coef == 0:
        why = "reward_coef is 0" if weak else "no training problem is a row of CVDP with weak tests"
        return [f"weak_coef: has no effect, since {why}"]
    if o.weak_coef > 0 or o.distils:
        return []
    if weak == len(plan.problems):
        raise UsageError("weak_coef: it is 0, all problems are weak, and there is no teacher; nothing would be learned")
    return [
        f"weak_coef: with 0 and no teacher, nothing is learned from {weak} of {len(plan.problems)} problems, which are "
        "still played; rows=partial excludes them"
    ]


def _reward_cancels_itself(o: TrainOptions) -> str | None:
    """Why each episode's reward is its own baseline; None if it is not."""
    if o.baseline == "group" and o.group_size == 1:
        return "baseline: with baseline=group and group_size=1 each episode's reward is its own baseline"
    if o.baseline == "batch" and o.group_size * o.batch_size == 1:
        return "baseline: with baseline=batch and one episode per step each episode's reward is its own baseline"
    return None


# ---- supervised runs: the data are part of the plan, since the number of steps depends on them

FROM_RECIPE = {
    "student_model", "max_turns", "max_tokens", "max_trajectory_tokens", "lora_rank", "timeout_seconds",
    "grad_clip_norm", "max_concurrent",
}  # fmt: skip
"""The defaults of a recipe's models that also apply to supervised training."""


def plan_sft(given: Mapping[str, Any], *, recipes: Sequence[ModelRecipe] = ()) -> Plan:
    """Plan a supervised run, and read its episodes: like `plan_run`, with `SftOptions`.

    Raises `UsageError` also if there is no episode to train on.
    """
    defaults: dict[str, Any] = {}
    if chosen := local_recipe(given, recipes):
        defaults = {name: value for name, value in chosen.defaults.items() if name in FROM_RECIPE}
    o = SftOptions.build(given, defaults)
    if not o.episodes:
        raise UsageError("episodes: none are given; name transcripts, a run, or a file that rtl-agent-gym export wrote")
    plan = plan_options(o, given, recipes)
    for recipe in plan.recipes:
        plan = recipe.make(plan)
    data = load_data(plan, o)
    if not data.train:
        raise UsageError(f"episodes: there is no episode to train on; {data.reasons()}")
    o = o.model_copy(update={"num_steps": data.steps(o.batch_size, o.epochs)})
    return replace(
        plan,
        options=o,
        warnings=(*plan.warnings, *_check_rate(o, given)),
        supervised=data,
    )


def load_data(plan: Plan, o: SftOptions) -> SupervisedData:
    """The episodes of a run, in the student's tokens. Raises like `plan_sft`."""
    dialect = load_renderer(TinkerEnvConfig(plan.student, plan.renderer))
    rules = EpisodeConfig(workspace="answer" if o.env == "single_turn" else "shell")
    held_out = {problem.id for problem in itertools.chain(plan.held_out, *plan.extra_held_out.values())}
    prompts = plan.system_prompt, plan.user_prompt
    return SupervisedData.read(o, episode_renderer(rules, dialect), prompts, held_out)
