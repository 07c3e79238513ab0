"""The configuration of an evaluation, and its record in the evaluation's folder."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, Field, SkipValidation, field_validator, model_validator

from .. import __version__
from ..episodes.episode import EpisodeConfig
from ..episodes.prompt import open_prompt
from ..episodes.rules import Reward, RewardFunction, read_reward
from ..options import EvaluationOptions, OptionalPath, ProblemOptions, SandboxOptions, with_default
from ..policies import ModelOptions, Policy, ScriptedPolicy, with_address
from ..policies.judge import judge_name
from ..policies.sampler import TokenSamplerPolicy, files_digest
from ..problems import Problem
from ..problems.paths import expand_home
from ..renderers import Renderer
from ..sandboxes import SandboxSpec
from ..sandboxes.image import image_tag
from ..scoring import rules_digest
from .play import rules_for


class EvaluationConfig(EvaluationOptions, SandboxOptions, ProblemOptions, strict=True):
    """The episodes of an evaluation, their rules, and the folder for the results.

    ::

        config = EvaluationConfig(policy="chat:Qwen/Qwen3-8B", samples=5, folder=Path("runs/qwen3"),
                                  model=ModelOptions(base_url="http://127.0.0.1:8000/v1"),
                                  episode=EpisodeConfig(max_turns=30))
        evaluation = asyncio.run(evaluate(config))
        print(evaluation.summary.pass_at[1])

    Raises:
        UsageError: A number is out of range.
    """

    problems: str | Path | SkipValidation[Sequence[Problem]] = with_default(ProblemOptions, "problems", "bundled")
    folder: OptionalPath = with_default(EvaluationOptions, "folder", None)
    renderer: str | Renderer = with_default(EvaluationOptions, "renderer", "qwen3")
    reward: SkipValidation[Reward] = with_default(EvaluationOptions, "reward", "default")
    model: ModelOptions = Field(default_factory=ModelOptions)
    """Sampling and connection options of the policy that `policy` names."""
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    """The rules of the episodes."""

    @model_validator(mode="before")
    @classmethod
    def _name_once(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Move an address in the policy's name to the model's options, so that both forms are the same evaluation."""
        policy = given.get("policy", "golden")
        if not isinstance(policy, str):
            return given
        policy, model = with_address(policy, given.get("model") or ModelOptions())
        return given | {"policy": policy, "model": model}

    @field_validator("folder")
    @classmethod
    def _expand_home(cls, folder: Path | None) -> Path | None:
        return None if folder is None else expand_home(folder)


class EvaluationRecord(BaseModel, frozen=True, extra="forbid"):
    """``config.json`` of an evaluation's folder: everything that its results depend on."""

    problems: str
    """The source. Not compared, since the digests are more precise."""
    digests: dict[str, str]
    """`Problem.digest` of each problem, by id, in order."""
    policy: str
    samples: int
    """Episodes of each problem. More can be added later, since each episode has its own seed."""
    seed: int = 0
    renderer: str
    max_turns: int
    command_timeout: float
    harness_feedback: int = 0
    weights: str = "default"
    """The reward preset, other weights as JSON, or the name of a function."""
    sampling: dict[str, Any] = {}
    """Temperature and similar options, for policies with a model."""
    image: str = ""
    """The simulation image's tag, a digest of its sources; empty if unknown."""
    prompts: str = ""
    """A digest of the system and user message of one problem; empty if unknown."""
    version: str = ""
    """This package's version, with the first digits of `scoring.rules_digest` after a plus sign; empty if unknown."""
    rules: dict[str, Any] = {}
    """The other rules of the episodes that differ from the defaults."""
    model_files: str = ""
    """A digest of a local model's files; empty if unknown."""
    reward_digest: str = ""
    """`reward_digest` of a reward function; empty if there is none or it is unknown."""

    @field_validator("problems", "policy")
    @classmethod
    def _encodable(cls, name: str) -> str:
        return name.encode(errors="backslashreplace").decode()  # a path need not be UTF-8

    @property
    def digest(self) -> str:
        """Twelve hex digits that identify everything that the results depend on, except `model_files`."""
        unset = {name for name in ("rules", "reward_digest") if not getattr(self, name)}  # older versions lacked them
        text = json.dumps(self.model_dump(mode="json", exclude={"samples", "model_files"} | unset), sort_keys=True)
        return _digest(text)

    def differences(self, other: EvaluationRecord) -> list[str]:
        """The fields that differ and may change the results, with both values.

        The source and the number of samples are not compared, nor is a field that is unknown in either record.
        """
        mine, others = self.model_dump(mode="json", exclude={"problems", "samples"}), other.model_dump(mode="json")
        optional = ["image", "prompts", "version", "model_files"]
        if not self.weights.endswith(("<lambda>", "partial")):  # names that many functions share
            optional.append("reward_digest")
        unknown = {name for name in optional if not (mine[name] and others[name])}
        changed = [name for name in mine if name not in unknown and mine[name] != others[name]]
        return [
            "problems (their content)" if name == "digests" else f"{name} ({others[name]!r}, now {mine[name]!r})"
            for name in changed
        ]


def make_record(
    config: EvaluationConfig, problems: Sequence[Problem], policy: Policy, renderer: Renderer, *, named: bool
) -> EvaluationRecord:
    """The record of an evaluation of `problems`; `named`: the policy was made from its name in `config`."""
    rules, model = config.episode, _model(policy)
    folder = model.folder if isinstance(model, TokenSamplerPolicy) else None
    return EvaluationRecord(
        problems=str(config.problems) if isinstance(config.problems, (str, Path)) else "given",
        digests={problem.id: problem.digest for problem in problems},
        policy=config.policy if named else policy.name,
        samples=config.samples,
        seed=config.seed,
        renderer=renderer.name,
        max_turns=rules.max_turns,
        command_timeout=rules.command_timeout,
        harness_feedback=rules.harness_feedback,
        weights=_reward_name(config.reward),
        sampling=sampling(policy),
        image=image_tag(),
        prompts=prompts_digest(policy, renderer, min(problems, key=lambda problem: problem.id), rules),
        version=f"{__version__}+{rules_digest()[:12]}",
        rules=_other_rules(rules),
        model_files="" if folder is None else files_digest(folder),
        reward_digest="" if (function := read_reward(config.reward)[1]) is None else reward_digest(function),
    )


def _other_rules(rules: EpisodeConfig) -> dict[str, Any]:
    usual = EpisodeConfig().recorded()
    found = {name: value for name, value in rules.recorded().items() if usual.get(name) != value}
    for name in ("max_tokens", "max_trajectory_tokens", "max_prompt_tokens"):
        if (limit := getattr(rules, name)) is not None:
            found[name] = limit
    if rules.judge is not None:
        found["judge"] = judge_name(rules.judge) if isinstance(rules.judge, str) else rules.judge.name
    if rules.harness_images:
        found["harness_images"] = list(rules.harness_images)
    if rules.sandbox != SandboxSpec():
        found["sandbox"] = repr(rules.sandbox)
    return {name: value for name, value in found.items() if name not in EvaluationRecord.model_fields}


def _reward_name(reward: Reward) -> str:
    if reward is None or isinstance(reward, str):
        return reward or "default"
    dump = getattr(reward, "model_dump_json", None)
    if dump is not None:
        return str(dump())
    if callable(reward):  # its repr may contain its address, which differs between processes
        return str(getattr(reward, "__qualname__", type(reward).__qualname__))
    return json.dumps(reward, sort_keys=True, default=repr)


def reward_digest(function: RewardFunction) -> str:
    """Twelve hex digits that identify a function's code; random for anything with state.

    State (a closure, defaults, arguments of a partial, attributes of an object) cannot be compared in general. The
    functions that it calls are not included.
    """
    if type(function) is FunctionType and not (
        function.__closure__ or function.__defaults__ or function.__kwdefaults__
    ):
        return _digest(_code(function.__code__))
    return secrets.token_hex(6)


def _code(value: object) -> str:
    """A text that represents code, the same in every process."""
    if isinstance(value, CodeType):
        return repr((value.co_code, value.co_names, [_code(held) for held in value.co_consts]))
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def prompts_digest(policy: Policy, renderer: Renderer, problem: Problem, rules: EpisodeConfig) -> str:
    """Twelve hex digits that identify the prompt of a problem's episodes."""
    opening = open_prompt(problem, rules_for(policy, rules), renderer)
    return _digest(f"{opening.system}\0{opening.user}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _model(policy: Policy) -> Policy:
    """The policy that has the weights and options: for an agent that samples from a model, the model."""
    model = getattr(policy, "model", None)
    return model if isinstance(model, TokenSamplerPolicy) else policy


def sampling(policy: Policy) -> dict[str, Any]:
    """The options of a model policy that its results depend on; for a script, a digest of its content."""
    if isinstance(policy, ScriptedPolicy):
        return {"script": hashlib.sha256(policy.path.read_bytes()).hexdigest()}
    options = getattr(_model(policy), "options", None)
    if not isinstance(options, ModelOptions):
        return {}
    names = ("temperature", "top_p", "max_tokens", "max_context", "tools")
    return {name: getattr(options, name) for name in names} | {"base_url": _without_port(options.base_url)}


def _without_port(address: str | None) -> str | None:
    """A service's address without its port, which changes when a server is restarted, and without its query."""
    if address is None:
        return None
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.hostname or "", query="", fragment="")).rstrip("/")


def default_folder(record: EvaluationRecord) -> Path:
    """The default folder of an evaluation, named by policy, problems and digest."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{record.policy}-{Path(record.problems).name}").strip("-")
    return Path("runs/eval") / f"{name[:60]}-{record.digest}"
