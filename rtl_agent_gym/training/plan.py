"""What can be wrong with a run before it has begun, found without loading a model or touching a service."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..engines.credentials import has_key
from ..errors import UsageError
from ..problems import Problem, category_name, load_problems
from ..renderers import RENDERER_NAMES
from .effects import check_effects
from .options import TINY, TrainOptions, build_options

CHARACTERS_A_TOKEN = 8
"""No vocabulary here does better on prose; a prompt that does not even fit so is too long for certain."""

HUB_PATIENCE = 3.0
"""Seconds that the hub has to say whether it has a model."""

TINY_PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
"""The problem that the tiny models know."""

TINY_DEFAULTS: dict[str, Any] = {
    "student_model": TINY,
    "teacher_model": TINY,
    "problem_ids": (TINY_PROBLEM,),
    "max_turns": 6,
    "max_tokens": 160,
    "max_trajectory_tokens": 1200,
    "group_size": 16,
    "num_steps": 40,
    "learning_rate": 2e-4,
    "warmup_steps": 6,
    "lr_schedule": "linear",
    "lora_rank": 0,
    "kl_penalty_coef": 1.0,
    "kl_clip": 2.0,
    "kl_budget": 6.0,
    "loss_reduction": "mean",
    "reward_coef": 0.0,
    "grad_clip_norm": 1.0,
    "adam_beta2": 0.999,
    "timeout_seconds": 10.0,
    "log_path": "runs/distillation_1problem_tiny",
}
"""What differs where nothing but a laptop is to be had: measured values, see docs/training.md."""

KEYED_DEFAULTS: dict[str, Any] = {"log_path": "runs/distillation_1problem"}

_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"openai/gpt-oss-\d+b", ("gpt_oss",)),
    (r"Qwen/Qwen3-Coder-.*", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-.*-Instruct(-\d+)?", ("qwen3_instruct",)),
    (r"Qwen/Qwen3-.*", ("qwen3", "qwen3_disable_thinking", "qwen3_instruct")),
)
"""Published models by name, and the dialects that they speak, the best one first."""

_OTHER_PURPOSE = re.compile(r"Qwen/Qwen3-(?:.*-)?(Base|VL|Omni|Embedding|Reranker|ASR|TTS)(?:-.*)?")
"""Models that bear a chat model's name and speak none of the dialects here, unless they were taught one."""


@dataclass(frozen=True)
class Plan:
    """A run whose options are sound."""

    options: TrainOptions
    engine: Literal["local", "tinker"]
    problems: list[Problem]
    renderer: str
    """The student's dialect; empty for tiny models, which bring their own."""
    warnings: tuple[str, ...] = ()
    """What the run will not do as its options may suggest."""


def plan_run(given: Mapping[str, Any], *, rl: bool = False) -> Plan:
    """The run that options ask for.

    Args:
        given: The options by name, values as text or as what they are.
        rl: Reinforcement learning: no teacher, unless the options name one.

    Raises:
        UsageError: An option is wrong; the message begins with its name.
    """
    base: dict[str, Any] = {}
    if no_service(given) and given.get("student_model", TINY) == TINY:
        base = dict(TINY_DEFAULTS)
        if given.get("cvdp_jsonl_path", "bundled") != "bundled":
            base.pop("problem_ids")
    elif not rl:
        base = dict(KEYED_DEFAULTS)
    if rl:
        base |= {"teacher_model": None, "kl_penalty_coef": 0.0, "reward_coef": 1.0, "log_path": "runs/rl"}
        if "group_size" not in base:
            base["group_size"] = 8
    options = build_options(given, base)
    engine = _engine(options)
    problems = _problems(options)
    renderer = _renderer(options, engine)
    _teacher(options, engine)
    _prompts(options, problems)
    if engine == "local":
        _models(options)
    return Plan(options, engine, problems, renderer, check_effects(options, engine, given))


def no_service(given: Mapping[str, Any]) -> bool:
    """Whether there is neither a key nor a service named."""
    if given.get("engine") in ("local", "tinker"):
        return bool(given["engine"] == "local")
    return not has_key() and not given.get("base_url")


def _engine(options: TrainOptions) -> Literal["local", "tinker"]:
    if importlib.util.find_spec("tinker") is None or importlib.util.find_spec("tinker_cookbook") is None:
        raise UsageError("training needs packages that are missing; pip install 'rtl-agent-gym[train,local]'")
    local = options.engine == "local" or (options.engine == "auto" and not has_key() and not options.base_url)
    if local:
        missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(f"engine: the local one needs {', '.join(missing)}; pip install 'rtl-agent-gym[local]'")
        return "local"
    if not has_key():
        what = f"base_url={options.base_url} asks" if options.base_url else "engine=tinker asks"
        raise UsageError(
            f"TINKER_API_KEY: {what} for a service, and there is no key; export one, store one with "
            "`tinker auth login`, or take engine=local"
        )
    if options.lora_rank == 0:
        raise UsageError("lora_rank: 0 trains all weights, which only engine=local can; give a rank such as 32")
    for name in ("student_model", "teacher_model"):
        if getattr(options, name) == TINY:
            raise UsageError(f"{name}: the tiny models are for engine=local; name a model of the service")
    return "tinker"


def _problems(options: TrainOptions) -> list[Problem]:
    try:
        problems = load_problems(
            options.cvdp_jsonl_path,
            ids=list(options.problem_ids) or None,
            categories=list(options.categories) or None,
            difficulties=list(options.difficulties) or None,
        )
    except UsageError as error:
        raise UsageError(f"cvdp_jsonl_path={options.cvdp_jsonl_path}: {error}") from error
    except OSError as error:
        raise UsageError(f"cvdp_jsonl_path: {options.cvdp_jsonl_path} cannot be read: {error.strerror}") from error
    found = [problem for problem in problems if not problem.unscorable]
    if not found:
        raise UsageError(
            f"cvdp_jsonl_path: {options.cvdp_jsonl_path} has no problem that can be scored here and that problem_ids, "
            "categories and difficulties leave"
        )
    known = {problem.id for problem in found} | {category_name(problem.category) for problem in found}
    for name in options.teachers:
        if name not in known:
            raise UsageError(f"teachers: {name!r} is neither a problem nor a category of this run")
    return found


def _renderer(options: TrainOptions, engine: str) -> str:
    if options.student_model == TINY:
        if options.renderer_name is not None and not options.renderer_name.startswith("qwen3"):
            raise UsageError(f"renderer_name: {options.renderer_name} does not fit the tiny models; they speak Qwen's")
        return options.renderer_name or ""
    return renderer_for(options.student_model, options.renderer_name, engine, "student_model", "renderer_name")


def renderer_for(model: str, asked: str | None, engine: str, model_option: str, option: str) -> str:
    """The dialect of a model: the one asked for if it fits, or the best known.

    Raises:
        UsageError: The model is unknown, or the dialect does not fit it.
    """
    other = _OTHER_PURPOSE.fullmatch(model)
    if other is not None and asked is None:
        what = "a base model, which was taught no dialect" if other[1] == "Base" else f"a {other[1]} model"
        raise UsageError(
            f"{model_option}: {model} is {what}; take the chat model, or name the dialect that it has been taught "
            f"with {option}, such as {option}=qwen3_instruct"
        )
    fitting = next((names for pattern, names in _FAMILIES if re.fullmatch(pattern, model)), None)
    if fitting is None:
        if engine == "local" or model.startswith("tinker://"):
            if engine == "local" and not Path(model).is_dir() and "/" not in model:
                raise UsageError(f"{model_option}: there is no folder {model!r}, and it is no name of the hub either")
            if asked is None:
                raise UsageError(
                    f"{option}: no dialect is known for {model!r}; name one of {', '.join(RENDERER_NAMES)}"
                )
            return asked
        raise UsageError(
            f"{model_option}: {model!r} is unknown; the dialects here are those of Qwen3 and gpt-oss models"
        )
    if asked is None:
        return fitting[0]
    if not any(asked == name or (name == "gpt_oss" and asked.startswith("gpt_oss")) for name in fitting):
        raise UsageError(f"{option}: {asked} does not fit {model}; take {', '.join(fitting)}")
    return asked


def _models(options: TrainOptions) -> None:
    named = [("student_model", options.student_model)]
    if options.distils:
        named += [
            ("teacher_model", options.teacher_model or TINY),
            *(("teachers", m) for m in options.teachers.values()),
        ]
    for option, model in named:
        if model != TINY and not Path(model).is_dir():
            _see_that_the_hub_has(model, option)


def _see_that_the_hub_has(model: str, option: str) -> None:
    """Raises `UsageError` for a model that is neither in the hub's cache on this machine nor on the hub itself."""
    import requests
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    advice = "give a folder as transformers saves them, or the name of a model that the hub has"
    if constants.HF_HUB_OFFLINE:
        raise UsageError(f"{option}: {model!r} is not on this machine, and HF_HUB_OFFLINE is set; {advice}")
    token = os.environ.get("HF_TOKEN")
    try:
        found = requests.head(
            f"{constants.ENDPOINT}/{model}/resolve/main/config.json",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=HUB_PATIENCE,
            allow_redirects=False,
        )
    except requests.RequestException as error:
        raise UsageError(
            f"{option}: {model!r} is not on this machine, and the hub does not answer "
            f"({type(error).__name__}); {advice}"
        ) from error
    if found.status_code in (401, 403, 404):
        raise UsageError(f"{option}: the hub has no model {model!r} that may be read from here; {advice}")


def _teacher(options: TrainOptions, engine: str) -> None:
    if not options.distils:
        return
    for option, model in (
        ("teacher_model", options.teacher_model),
        *(("teachers", m) for m in options.teachers.values()),
    ):
        if model is not None and model != TINY:
            renderer_for(model, options.teacher_renderer_name, engine, option, "teacher_renderer_name")
    options.text_of("teacher_system_prompt")


def _prompts(options: TrainOptions, problems: list[Problem]) -> None:
    for name in ("system_prompt", "user_prompt"):
        options.text_of(name)
    if options.user_prompt is not None:
        return
    for problem in problems:
        fewest = len(problem.prompt) // CHARACTERS_A_TOKEN
        if fewest >= options.max_trajectory_tokens and options.student_model != TINY:
            raise UsageError(
                f"max_trajectory_tokens: the prompt of {problem.id} alone has more than {fewest} tokens, and the "
                f"limit is {options.max_trajectory_tokens}"
            )
