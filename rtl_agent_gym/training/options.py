"""The options of training runs, given as ``name=value``: those of the tree of options, and the trainers' own.

This module imports nothing that loads slowly, so that a wrong option is reported at once.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ..engines.catalogue import DEFAULT_STUDENT, DEFAULT_TEACHER
from ..engines.config import LocalEngineConfig
from ..errors import UsageError, near_matches
from ..options import (
    ClusterOptions,
    EpisodeOptions,
    Names,
    OptionalCount,
    OptionalNonNegative,
    OptionalPositive,
    OptionalText,
    ProblemOptions,
    SandboxOptions,
    Table,
    first_mistake,
    from_json,
    optional,
    with_default,
)
from ..policies.agents import INSIDE
from ..problems.paths import text_of_option
from ..renderers import is_renderer_name, near_renderers
from ..scoring import RewardWeights

LogDirBehavior = Literal["ask", "resume", "delete", "raise"]
BaselineName = Literal["group", "batch", "running", "none"]
Prompt = Annotated[str | None, BeforeValidator(lambda value: value if value == "" else optional(value))]
"""A text that may be None. The empty string is a text, not None."""

OLDER_NAMES = {"problems": "cvdp_jsonl_path", "ids": "problem_ids", "command_timeout": "timeout_seconds"}
"""The trainers' older names of options in the tree; both names are accepted."""


def _older_name(name: str) -> str:
    return OLDER_NAMES.get(name, name)


def with_older_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the trainers' names. Raises `UsageError` if an option is given under both names."""
    for name, older in OLDER_NAMES.items():
        if name in given and older in given:
            raise UsageError(f"{name}: given twice, also as {older}; remove one of them")
    return {_older_name(name): value for name, value in given.items()}


class TrainOptions(ClusterOptions, SandboxOptions, EpisodeOptions, ProblemOptions, alias_generator=_older_name):
    """All options of a run. Each docstring is the option's help text; inherited options have theirs in the tree."""

    # Models
    student_model: str = DEFAULT_STUDENT
    """A model of the service, a folder or Hugging Face name for the local engine, or a model of this package: ``small``
    or ``smollm2``."""
    teacher_model: OptionalText = DEFAULT_TEACHER
    """The model whose log-probabilities the student learns from, named like ``student_model``; None for no teacher;
    ``self`` for the student's own earlier weights."""
    teachers: Table = Field(default_factory=dict)
    """Other teachers for some problems: ``{"problem id or category": "model"}`` as JSON."""
    teacher_renderer_name: OptionalText = None
    """The teacher's chat format (dialect), if it is of another model family; None for the model's own."""
    teacher_system_prompt: Prompt = None
    """A system prompt that only the teacher reads: a text, or ``@file``; an empty text for none."""
    teacher_context: str = "none"
    """What only the teacher reads: ``none``; ``reference``, the problem's reference solution; ``feedback``, the grading
    of this episode and a solution from its group; or ``hints:FILE``, a JSON object with a text for each problem id."""
    teacher_lag: OptionalCount = None
    """With ``teacher_model=self``: how many steps the teacher's weights are behind; None for the initial weights."""
    base_url: OptionalText = None
    """Address of a Tinker-compatible service; None for Tinker's own if there is an API key, else the local engine."""
    engine: Literal["auto", "tinker", "local"] = "auto"
    """Where to sample and train: Tinker's service or this machine; ``auto`` uses the service if there is a key."""
    local_device: str = "auto"
    """Local engine: a torch device such as ``cpu`` or ``cuda:0``; ``auto`` takes a GPU if there is one."""
    local_dtype: str = "auto"
    """Local engine: precision, such as ``float32`` or ``bfloat16``; ``auto`` is bfloat16 on a GPU that supports it,
    otherwise float32; on a CPU, smollm2 uses what is faster. In half precision the optimizer updates float32
    copies."""
    local_batch: int = Field(default=16, ge=1)
    """Local engine: maximum number of sequences sampled at once. More is faster and needs more memory."""
    local_batch_tokens: int = Field(default=16_384, ge=1)
    """Local engine: maximum number of tokens, with padding, in one forward pass of training. Less needs less memory."""
    local_gradient_checkpointing: bool = False
    """Local engine: recompute activations instead of keeping them: more time, less memory, the same gradients."""
    prices: OptionalText = "https://tinker-docs.thinkingmachines.ai/tinker/models.json"
    """List of a service's models and prices for the estimate before a run, in the format of Tinker's: an address or a
    file; None for no estimate in dollars."""
    load_checkpoint_path: OptionalText = None
    """Weights to start from: the ``state_path`` of a checkpoint."""

    # Problems and episodes
    problems: str = with_default(ProblemOptions, "problems", "bundled")
    held_out: OptionalText = None
    """Problems to test on and never train on: a fraction such as ``0.2``, ids separated by commas, or another source of
    problems. Evaluated before the first step, every ``eval_every`` steps and at the end: ``test/pass_rate``."""
    extra_held_out: Table = Field(default_factory=dict)
    """More sources only to test on, by names of your choice, as JSON: ``{"other": "family:timers?count=32"}``.
    Evaluated before the first step and after the last: ``test/other/pass_rate``."""
    env: Literal["agentic", "single_turn"] = "agentic"
    """``agentic``: many turns in a shell. ``single_turn``: one completion that contains the files."""
    agent: Literal["none", "mini-swe-agent", "opencode", "claude-code", "codex", "qwen-code", "pi"] = "none"
    """Third-party agent that acts in the episodes, with the student as its model; each conversation that it only
    appends to is one training example. ``none``: the student acts directly, with this package's prompts and tool."""
    renderer_name: OptionalText = None
    """The student's chat format (dialect); None for the model's own."""
    system_prompt: Prompt = None
    """Replaces the system message: a text, or ``@file``; an empty text for none."""
    user_prompt: Prompt = None
    """Replaces the problem's user message: a text, or ``@file``."""
    max_tokens: int = with_default(EpisodeOptions, "max_tokens", 4096)
    max_trajectory_tokens: int = with_default(EpisodeOptions, "max_trajectory_tokens", 32_768)
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the student."""
    eval_temperature: OptionalNonNegative = None
    """Sampling temperature in evaluations; None for ``temperature``. 0: the most likely token, once per problem."""
    reward: str = "default"
    """Reward preset: default, staged, dense, compile or proxy. With proxy, hidden tests run only in evaluations, with
    the default weights: for distillation without a reward, which needs no verdicts during training."""
    reward_weights: Annotated[dict[str, Any], BeforeValidator(from_json)] = Field(default_factory=dict)
    """Weights that replace some of the preset's, as JSON: ``{"tests": 2.0}``."""
    judge: OptionalText = with_default(EpisodeOptions, "judge", None)
    control: Literal["none", "permuted_rewards", "negated_kl", "shuffled_turns"] = "none"
    """For control runs that must not learn: ``permuted_rewards`` gives each episode a reward of another problem's
    episode in its step; ``negated_kl`` reverses the KL's sign. ``shuffled_turns`` shuffles each episode's
    ``turn_rewards``: their total stays, so it still learns, but slower; it tests where the reward is credited."""

    # Advantages
    kl_penalty_coef: float = Field(default=0.7, ge=0)
    """Weight of the KL to the teacher in the advantages; 0 for no teacher."""
    kl_top_k: int = Field(default=0, ge=0, le=100)
    """Number of the teacher's most likely tokens to learn from at each sampled token, by cross-entropy with its
    probabilities; 0 learns from the KL of the sampled token. Cannot be combined with a reward, ``kl_clip``,
    ``kl_discount_factor`` or ``loss_fn``."""
    kl_discount_factor: float = Field(default=0.0, ge=0, le=1)
    """Discount factor for the KL of later tokens, which is added to a token's own KL; 0 uses only the latter."""
    kl_clip: OptionalPositive = None
    """Bound on a token's own KL times its coefficient and weight, before discounting; None for no bound."""
    kl_budget: OptionalPositive = None
    """Sum of |KL| in nats after which the rest of an episode gets no KL; None for no limit."""
    kl_weight_thinking: float = Field(default=1.0, ge=0)
    """Weight of the KL of tokens in the student's thinking."""
    kl_weight_text: float = Field(default=1.0, ge=0)
    """Weight of the KL of tokens outside thinking and calls."""
    kl_weight_call: float = Field(default=1.0, ge=0)
    """Weight of the KL of tokens in calls. Control tokens and headers always have weight 1."""
    reward_coef: float = Field(default=1.0, ge=0)
    """Weight of the episode's reward in the advantages."""
    weak_coef: float = Field(default=1.0, ge=0, le=1)
    """Factor on ``reward_coef`` for rows of CVDP whose tests do not check the main part of the task; 0 leaves only the
    teacher."""
    baseline: BaselineName = "group"
    """What is subtracted from the reward: the mean of the episode's group (group), of all episodes of the step (batch),
    of the problem's episodes in earlier steps (running), or nothing (none)."""

    # Steps
    num_steps: int = Field(default=100, ge=1)
    """Total number of steps, including those done before the run was resumed."""
    batch_size: int = Field(default=1, ge=1)
    """Problems in each step."""
    group_size: int = Field(default=1, ge=1)
    """Episodes of each problem in a step."""
    learning_rate: float = Field(default=1e-4, gt=0, le=1e6)
    """Learning rate of Adam, after the warm-up."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """Learning rate schedule: ``linear`` falls to ``lr_final`` times the learning rate at the last step."""
    lr_final: float = Field(default=0.05, ge=0, le=1)
    """Fraction of the learning rate at which the linear schedule ends."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    lora_rank: int = Field(default=32, ge=0)
    """Rank of the LoRA adapters; 0 trains all weights, on the local engine only."""
    loss_fn: Literal["importance_sampling", "ppo"] = "importance_sampling"
    """The policy-gradient loss: importance-weighted, or clipped as in PPO."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Whether the loss is the sum or the mean over sampled tokens."""
    num_substeps: int = Field(default=1, ge=1)
    """Number of optimizer steps per batch."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """Adam's beta2: decay of its mean of squared gradients."""
    grad_clip_norm: float = Field(default=0.0, ge=0)
    """Bound on the gradient's norm; 0 for none."""
    pipeline: bool = False
    """Sample the next batch while this one is trained on; the same as ``max_lag=1``."""
    max_lag: int = Field(default=0, ge=0)
    """How many steps the sampling weights may be behind the trained ones, so that batches are sampled ahead."""
    curriculum: Literal["none", "difficulty", "pass_rate", "edge"] = "none"
    """Order of the problems: shuffled in each epoch (none), easy ones first (difficulty), preferring those solved only
    sometimes (pass_rate), or those whose pass rate in this run is likely to be near one half (edge)."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Seed for the order of problems, the held-out fraction, sampling and new weights."""
    rollout_retries: int = Field(default=3, ge=0)
    """Maximum retries of an episode after faults of the machine or the service."""
    min_survivors: int = Field(default=1, ge=1)
    """Minimum number of episodes that remain in a group after such faults; a smaller group is dropped and counted."""
    max_concurrent: int = Field(default=64, ge=1)
    """Maximum number of concurrent episodes."""
    service_wait_seconds: float = Field(default=60.0, gt=0)
    """Seconds to wait for a Tinker service that does not answer when the run starts; ten times as long later."""

    # The run
    log_path: str = "runs/train"
    """The run's folder."""
    behavior_if_log_dir_exists: LogDirBehavior = "resume"
    """What to do if that folder already contains a run: resume it, delete it, ask, or end with an error (raise)."""
    eval_every: int = Field(default=20, ge=0)
    """Steps between evaluations; 0 evaluates only before the first step and after the last."""
    eval_episodes: int = Field(default=0, ge=0)
    """New episodes per evaluation, divided among its problems, at least one for each. If not 0, the training problems
    are evaluated, too (``train/pass_rate``)."""
    save_every: int = Field(default=20, ge=0)
    """Steps between checkpoints that are kept; 0 keeps only the last."""
    annotate_transcripts: bool = True
    """Add the sampled tokens, with the student's and the teacher's log-probabilities, to the transcripts."""
    resume_every: int = Field(default=1, ge=1)
    """Steps between the checkpoints for resuming a run; the last two are kept."""
    wandb_project: OptionalText = None
    """Weights & Biases project to log to; None for none."""
    wandb_name: OptionalText = None
    """Name of the run on Weights & Biases."""

    @model_validator(mode="after")
    def _check_combinations(self) -> TrainOptions:
        if not self.log_path:
            raise ValueError("log_path: the path is empty; name a folder for the run")
        tested = self.reward_config().simulate
        if self.curriculum in ("pass_rate", "edge") and not tested:
            raise ValueError(f"curriculum: {self.curriculum} needs the verdicts of hidden tests; choose another reward")
        for name in ("renderer_name", "teacher_renderer_name"):
            value = getattr(self, name)
            if value is not None and not is_renderer_name(value):
                raise ValueError(f"{name}: unknown renderer {value!r}; {near_renderers(value)}")
        if self.harness_feedback and self.env == "single_turn":
            raise ValueError("harness_feedback: env=single_turn has no turns to submit in; choose env=agentic")
        if self.agent != "none":
            self._check_agent()
        without_effect = {"reward_coef": 0, "kl_clip": None, "kl_discount_factor": 0, "loss_fn": "importance_sampling"}
        for name, without in without_effect.items():
            if self.kl_top_k and getattr(self, name) != without:
                given, needed = getattr(self, name), str(without).lower()
                raise ValueError(f"kl_top_k: cannot be combined with {name}={given}; add {name}={needed}")
        for name in self.extra_held_out:
            if not re.fullmatch(r"[A-Za-z][\w-]*", name):
                raise ValueError(f"extra_held_out: {name!r} is not a valid name; use letters, digits, _ and -")
        if self.control == "permuted_rewards" and self.batch_size < 2:
            raise ValueError("control: permuted_rewards needs two problems in each step; choose batch_size=2 or more")
        if self.turn_rewards != "none":
            self._check_turn_rewards()
        elif self.control == "shuffled_turns":
            raise ValueError("control: shuffled_turns needs turn_rewards=submissions or files")
        if self.min_survivors > self.group_size:
            raise ValueError(f"min_survivors: {self.min_survivors} is more than group_size={self.group_size}")
        return self

    def _check_turn_rewards(self) -> None:
        if self.reward_coef == 0:
            raise ValueError("turn_rewards: with reward_coef=0 no reward is used; choose turn_rewards=none")
        if self.control == "permuted_rewards":
            raise ValueError("turn_rewards: control=permuted_rewards permutes whole episodes; choose shuffled_turns")
        if self.env == "single_turn":
            raise ValueError("turn_rewards: env=single_turn has one turn; choose env=agentic")
        if self.agent != "none":
            raise ValueError(f"turn_rewards: cannot be credited to the turns of {self.agent}; choose agent=none")
        if self.turn_rewards == "submissions" and not self.harness_feedback:
            raise ValueError("turn_rewards: submissions needs harness_feedback=1 or more")

    def _check_agent(self) -> None:
        if self.env == "single_turn":
            raise ValueError(f"agent: {self.agent} works in a shell; choose env=agentic")
        if self.harness_feedback and self.agent in INSIDE:
            raise ValueError(f"harness_feedback: {self.agent} works inside the sandbox, so cannot submit; leave it out")
        for name, none in (("system_prompt", None), ("teacher_system_prompt", None), ("teacher_context", "none")):
            if getattr(self, name) != none:
                raise ValueError(
                    f"{name}: {self.agent} has its own prompts, which the teacher also reads; leave this option out"
                )

    @classmethod
    def names(cls) -> list[str]:
        """The options that can be given, those of this class first."""
        own = [name for name in TrainOptions.__annotations__ if name not in EpisodeOptions.model_fields]
        return list(dict.fromkeys([_older_name(name) for name in own] + super().names()))

    @classmethod
    def build(cls, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Self:
        """Build options from values by name, as text or with their type; `defaults` replace the general defaults.

        Raises `UsageError` that names the option if it is unknown or has a wrong value.
        """
        given = with_older_names(given)
        names = cls.names()
        if unknown := next((name for name in given if name not in names), None):
            if unknown in TrainOptions.names():
                raise UsageError(f"{unknown}: does not apply to this recipe; leave it out")
            command = "rtl-agent-gym train sft --options" if cls is SftOptions else "rtl-agent-gym train --options"
            raise UsageError(f"{unknown}: unknown option; {near_matches(unknown, names, f'`{command}` lists them')}")
        return cls(**{**(defaults or {}), **given})

    @property
    def lag(self) -> int:
        """How many steps the sampling weights may be behind."""
        return max(self.max_lag, int(self.pipeline))

    @property
    def distils(self) -> bool:
        """Whether there is a teacher."""
        return self.kl_penalty_coef > 0 and bool(self.named_teachers())

    def named_teachers(self) -> list[tuple[str, str]]:
        """The teachers, each with the option that names it."""
        default = [] if self.teacher_model is None else [("teacher_model", self.teacher_model)]
        return default + [("teachers", model) for model in self.teachers.values()]

    def evaluates_after(self, step: int) -> bool:
        """Whether the weights after a step, counted from 0, are evaluated."""
        return (done := step + 1) == self.num_steps or (self.eval_every > 0 and done % self.eval_every == 0)

    @property
    def evaluation_temperature(self) -> float:
        """The sampling temperature of evaluations."""
        return self.temperature if self.eval_temperature is None else self.eval_temperature

    def evaluated_episodes(self, problems: int) -> int:
        """Episodes per problem in an evaluation of this many problems; 1 at temperature 0, where all would be equal."""
        return max(1, round(self.eval_episodes / problems)) if self.evaluation_temperature else 1

    def local_config(self, checkpoints: Path) -> LocalEngineConfig:
        """The configuration of the local engine, with its checkpoints in a folder."""
        return LocalEngineConfig(
            checkpoint_dir=checkpoints,
            seed=self.seed,
            device=self.local_device,
            dtype=self.local_dtype,
            max_batch=self.local_batch,
            batch_tokens=self.local_batch_tokens,
            gradient_checkpointing=self.local_gradient_checkpointing,
        )

    def reward_config(self) -> RewardWeights:
        """The weights of the reward. Raises `UsageError` that names the option."""
        try:
            weights = RewardWeights.preset(self.reward)
        except UsageError as error:
            raise UsageError(f"reward: {error}") from error
        try:
            return RewardWeights(**(weights.model_dump() | self.reward_weights))
        except ValidationError as error:
            raise UsageError(f"reward_weights: {first_mistake(error, RewardWeights)}") from error

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rate = self.learning_rate * min(1.0, (step + 1) / (self.warmup_steps + 1))
        done = 0.0 if self.lr_schedule == "constant" else step / max(1, self.num_steps - 1)
        return rate * (1 - (1 - self.lr_final) * done)

    def text_of(self, name: str) -> str | None:
        """The value of a text option, read from the file if it is ``@file``. Raises `UsageError`."""
        return text_of_option(name, getattr(self, name))


NOT_APPLICABLE = {
    "teacher_model", "teachers", "teacher_renderer_name", "teacher_system_prompt", "teacher_context", "teacher_lag",
    "control", "turn_rewards", "turn_grading_time", "progress_coef",
    "kl_penalty_coef", "kl_top_k", "kl_discount_factor", "kl_clip", "kl_budget", "kl_weight_thinking", "kl_weight_text",
    "kl_weight_call", "reward_coef", "weak_coef", "baseline", "num_steps", "group_size", "loss_fn", "num_substeps",
    "pipeline", "max_lag", "curriculum", "min_survivors", "annotate_transcripts",
}  # fmt: skip
"""Options only for runs that play their own training episodes."""


class SftOptions(TrainOptions):
    """All options of a supervised run. The options of episodes apply to the evaluations."""

    episodes: Names = ()
    """Episodes to imitate, separated by commas: transcripts, folders of them, runs, evaluations, or files that
    ``rtl-agent-gym export`` wrote as ``sft`` or ``tokens``."""
    passed_only: bool = True
    """Exclude episodes that did not pass."""
    min_reward: Annotated[float | None, BeforeValidator(optional)] = None
    """Exclude episodes with a lower reward; None for no limit."""
    epochs: int = Field(default=1, ge=1)
    """How often each episode is trained on."""
    batch_size: int = Field(default=16, ge=1)
    """Episodes in each step."""
    loss_reduction: Literal["sum", "mean"] = "mean"
    """Whether the loss is the sum or the mean over the trained tokens of a step."""
    teacher_model: OptionalText = None
    """None."""
    kl_penalty_coef: float = 0.0
    """0."""
    log_path: str = "runs/sft"
    """The run's folder."""

    @classmethod
    def names(cls) -> list[str]:
        """The options that can be given, those of this class first."""
        own = ["episodes", "passed_only", "min_reward", "epochs"]
        return own + [name for name in super().names() if name not in NOT_APPLICABLE and name not in own]


def split_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Split ``key=value`` arguments; as in a makefile, ``key?=value`` is used only if there is no ``key=value``.

    Raises `UsageError` if an argument has another form, or an option is given twice.
    """
    given: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        into = defaults if name.endswith("?") else given
        name = _older_name(name.removesuffix("?").strip().replace("-", "_"))
        if not equals:
            raise UsageError(f"{argument!r} is not an option; give options as name=value, such as learning_rate=1e-4")
        if name in into:
            raise UsageError(f"{name}: given twice, as {into[name]!r} and as {value!r}")
        into[name] = value
    return defaults | given


def describe_options(kind: type[TrainOptions] = TrainOptions) -> str:
    """All options with defaults and descriptions, wrapped to the terminal's width, between 40 and 120 columns."""
    columns = max(40, min(shutil.get_terminal_size().columns, 120))
    lines = ["Options, as name=value, with their defaults:", ""]
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    for name in kind.names():
        field = fields[name]
        lines.append(f"  {name}={_default(field.get_default(call_default_factory=True))}")
        lines += textwrap.wrap(
            _description(field.description or "", field.annotation),
            columns,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _description(text: str, annotation: Any) -> str:
    words = " ".join(text.replace("``", "").split())
    if get_origin(annotation) is Literal:
        words += f" One of {', '.join(map(str, get_args(annotation)))}."
    if get_origin(annotation) is tuple:
        words += " Separated by commas."
    return words


def _default(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
