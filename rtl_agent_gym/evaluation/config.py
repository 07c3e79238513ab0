"""What an evaluation plays, and the record of it that its folder keeps."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict

from .. import __version__
from ..episodes.episode import EpisodeConfig
from ..episodes.prompt import open_prompt
from ..episodes.rewards import Reward
from ..errors import UsageError
from ..policies import ModelOptions, Policy, ScriptedPolicy
from ..problems import Problem
from ..renderers import Renderer
from ..sandboxes import SandboxSpec
from ..sandboxes.image import image_tag
from .play import rules_for


@dataclass(frozen=True)
class EvaluationConfig:
    """What an evaluation plays, under which rules, and where its results go.

    ::

        config = EvaluationConfig(policy="chat:Qwen/Qwen3-8B", samples=5, folder=Path("runs/qwen3"),
                                  model=ModelOptions(base_url="http://127.0.0.1:8000/v1"),
                                  episode=EpisodeConfig(max_turns=30))
        evaluation = asyncio.run(evaluate(config))
        print(evaluation.summary.pass_at[1])

    Raises:
        UsageError: A number is out of range.
    """

    problems: str | Path | Sequence[Problem] = "bundled"
    """A source as `load_problems` takes it, or the problems themselves."""
    ids: Sequence[str] | None = None
    """Of a source, only the problems with these ids."""
    categories: Sequence[str] | None = None
    """Of a source, only the problems of these categories, such as ``cid003``."""
    difficulties: Sequence[str] | None = None
    """Of a source, only the problems of these difficulties: ``easy``, ``medium``, ``hard``."""
    policy: str = "golden"
    """Who acts, by a name that `make_policy` takes. Not read where `evaluate` is given a policy."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """Sampling and connection of a policy that is made by its name."""
    renderer: str | Renderer = "qwen3"
    """The model dialect, by name or made."""
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    """The rules of the episodes."""
    reward: Reward = "default"
    """What is paid for: a preset's name, weights, or a function of a `Score`."""
    samples: int = 1
    """Episodes of each problem."""
    seed: int = 0
    """Each episode's own seed is made of this, its problem and its sample number (`episode_seed`)."""
    keep: bool = True
    """Whether results and transcripts are kept in a folder; without, results are in memory alone and transcripts go to
    `EpisodeConfig.transcript_dir`, if that is set."""
    folder: Path | None = None
    """That folder; None for one below ``runs/eval/``, named by the configuration."""
    resume: bool = True
    """Play only what the folder holds no verdict of. False refuses a folder that holds results."""
    concurrency: int = 8
    """Episodes at the same time."""
    gradings: int = os.cpu_count() or 2
    """Gradings at the same time: more than there are processors would push simulations into their time limits."""
    attempts: int = 3
    """How often an episode is begun while the machine fails, before it is left without a verdict."""
    longest_pause: float = 30.0
    """Seconds between two attempts, at most."""
    cache: bool = True
    """Whether gradings of equal files are kept on disk and used again."""

    def __post_init__(self) -> None:
        for name in ("samples", "concurrency", "gradings", "attempts"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")


class EvaluationRecord(BaseModel):
    """``config.json`` of an evaluation's folder: all that its results depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problems: str
    """The source, as it was named."""
    digests: dict[str, str]
    """`Problem.digest` of each problem, by id, in order."""
    policy: str
    samples: int
    """Episodes of each problem. The results do not depend on it, as each episode has its own seed: a run can be given
    more of them."""
    seed: int = 0
    renderer: str
    max_turns: int
    command_timeout: float
    harness_feedback: int = 0
    weights: str = "default"
    """The reward preset; other weights as JSON."""
    sampling: dict[str, Any] = {}
    """Temperature and the like, for policies with a model."""
    image: str = ""
    """The simulation image's tag, which is a digest of what it is built from; empty where unknown."""
    prompts: str = ""
    """A digest of the system and user message of one problem; empty where unknown."""
    version: str = ""
    """Of this package; empty where unknown."""
    rules: dict[str, Any] = {}
    """The other rules of the episodes, where they are not the defaults."""

    @property
    def digest(self) -> str:
        """Twelve hex digits that stand for all that the results depend on."""
        unset = {"rules"} if not self.rules else set()  # as in folders of versions that did not have it
        text = json.dumps(self.model_dump(mode="json", exclude={"samples"} | unset), sort_keys=True)
        return _digest(text)

    def differences(self, other: EvaluationRecord) -> list[str]:
        """The fields in which the results of two configurations may differ, with both values.

        The number of samples is none of them, and neither is what one of the two does not know.
        """
        mine, others = self.model_dump(mode="json", exclude={"samples"}), other.model_dump(mode="json")
        unknown = {name for name in ("image", "prompts", "version") if not (mine[name] and others[name])}
        changed = [name for name in mine if name not in unknown and mine[name] != others[name]]
        return [
            "problems (their content)" if name == "digests" else f"{name} ({others[name]!r}, now {mine[name]!r})"
            for name in changed
        ]


def make_record(
    config: EvaluationConfig, problems: Sequence[Problem], policy: Policy, renderer: Renderer, *, named: bool
) -> EvaluationRecord:
    """The record of an evaluation of `problems`; `named` says that the policy was made by its name in `config`."""
    rules = config.episode
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
        prompts=prompts_digest(policy, renderer, problems[0], rules),
        version=__version__,
        rules=_other_rules(rules),
    )


def _other_rules(rules: EpisodeConfig) -> dict[str, Any]:
    usual = EpisodeConfig().recorded()
    found = {name: value for name, value in rules.recorded().items() if usual.get(name) != value}
    for name in ("max_tokens", "max_trajectory_tokens", "max_prompt_tokens"):
        if (limit := getattr(rules, name)) is not None:
            found[name] = limit
    if rules.sandbox != SandboxSpec():
        found["sandbox"] = repr(rules.sandbox)
    return {name: value for name, value in found.items() if name not in EvaluationRecord.model_fields}


def _reward_name(reward: Reward) -> str:
    if reward is None or isinstance(reward, str):
        return reward or "default"
    dump = getattr(reward, "model_dump_json", None)
    if dump is not None:
        return str(dump())
    return getattr(reward, "__qualname__", None) or json.dumps(reward, sort_keys=True, default=repr)


def prompts_digest(policy: Policy, renderer: Renderer, problem: Problem, rules: EpisodeConfig) -> str:
    """Twelve hex digits that stand for the words around a problem: what an episode of this one begins with."""
    system, user, _ = open_prompt(problem, rules_for(policy, rules), renderer)
    return _digest(f"{system}\0{user}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def sampling(policy: Policy) -> dict[str, Any]:
    """The options of a policy with a model that its results depend on; of a script, a digest of its content."""
    if isinstance(policy, ScriptedPolicy):
        return {"script": hashlib.sha256(policy.path.read_bytes()).hexdigest()}
    options = getattr(policy, "options", None)
    if not isinstance(options, ModelOptions):
        return {}
    names = ("temperature", "top_p", "max_tokens", "max_context", "tools")
    return {name: getattr(options, name) for name in names} | {"base_url": _without_port(options.base_url)}


def _without_port(address: str | None) -> str | None:
    """A service's address as far as it says what is asked. A server that is started again has another port."""
    if address is None:
        return None
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.hostname or "", query="", fragment="")).rstrip("/")


def default_folder(record: EvaluationRecord) -> Path:
    """The folder of an evaluation that was given none: named by policy, problems and digest."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{record.policy}-{Path(record.problems).name}").strip("-")
    return Path("runs/eval") / f"{words[:60]}-{record.digest}"
