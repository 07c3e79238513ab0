"""The options of a training run, as ``key=value`` on the command line, and all that can be wrong with them at once.

Nothing heavy is imported here, so a mistake is told before a model or a daemon is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .. import strict_json
from ..errors import UsageError
from ..renderers import RENDERER_NAMES
from ..renderers.turns import Kind
from ..scoring import RewardWeights
from .advantages import BaselineName, CreditConfig

LogDirBehavior = Literal["ask", "resume", "delete", "raise"]
TINY = "tiny"
"""The name of the models that are made on the spot."""


def _list(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _json(value: object) -> object:
    return strict_json.loads(value) if isinstance(value, str) else value


def _none(value: object) -> object:
    return None if isinstance(value, str) and value.lower() in ("none", "null", "") else value


Names = Annotated[tuple[str, ...], BeforeValidator(_list)]
"""Several names, with commas between them."""
Table = Annotated[dict[str, str], BeforeValidator(_json)]
"""A JSON object of texts."""
OptionalText = Annotated[str | None, BeforeValidator(_none)]
OptionalNumber = Annotated[float | None, BeforeValidator(_none)]


class TrainOptions(BaseModel):
    """Everything that decides a run. What stands below an option is its description on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    # Who learns from whom
    student_model: str = "Qwen/Qwen3-8B"
    """A model of the service, a folder or Hugging Face name for the local engine, or ``tiny``."""
    teacher_model: OptionalText = "Qwen/Qwen3-32B"
    """Whose log-probabilities the student learns from, named as ``student_model`` is; None for no teacher."""
    teachers: Table = Field(default_factory=dict)
    """Other teachers for some problems: ``{"problem id or category": "model"}`` as JSON."""
    teacher_renderer_name: OptionalText = None
    """The teacher's dialect where it is another family's; None for the one that fits the model."""
    teacher_system_prompt: OptionalText = None
    """A system prompt for the teacher alone: a text, or ``@file``."""
    base_url: OptionalText = None
    """A Tinker-compatible service; None for Tinker's own where there is a key, otherwise the local engine."""
    engine: Literal["auto", "tinker", "local"] = "auto"
    """Who samples and trains: Tinker's service, or this machine; ``auto`` takes the service where there is a key."""
    load_checkpoint_path: OptionalText = None
    """Weights to start from, as a checkpoint's ``state_path`` names them."""

    # Problems and episodes
    cvdp_jsonl_path: str = "bundled"
    """``bundled``, a JSONL file, or a Hugging Face data set id."""
    problem_ids: Names = ()
    """Only these problems, with commas between them; empty for all."""
    categories: Names = ()
    """Only these categories, as ``3`` or ``cid003``; empty for all."""
    difficulties: Names = ()
    """Only these of ``easy``, ``medium`` and ``hard``; empty for all."""
    env: Literal["agentic", "single_turn"] = "agentic"
    """``agentic``: many turns in a shell. ``single_turn``: one completion with the files in it."""
    renderer_name: OptionalText = None
    """The student's dialect; None for the one that fits the model."""
    system_prompt: OptionalText = None
    """Replaces the agent's system message: a text, or ``@file``."""
    user_prompt: OptionalText = None
    """Replaces the problem's user message: a text, or ``@file``."""
    max_turns: int = Field(50, ge=1)
    """Turns before an episode is cut off and graded as it stands."""
    max_tokens: int = Field(4096, ge=1)
    """Tokens sampled in one turn, at most."""
    max_trajectory_tokens: int = Field(32_768, ge=1)
    """Tokens of a whole episode, prompt and results included."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the student."""
    timeout_seconds: float = Field(30.0, gt=0, le=7 * 24 * 3600)
    """Seconds a command may run."""
    reward: str = "default"
    """A reward preset: default, staged, dense, compile or proxy."""
    reward_weights: Annotated[dict[str, Any], BeforeValidator(_json)] = Field(default_factory=dict)
    """Single weights on top of the preset, as JSON: ``{"tests": 2.0}``."""
    harness_feedback: int = Field(0, ge=0)
    """How often the agent may submit within an episode; it is told which checks fail, and progress earns reward."""
    progress_coef: float = Field(0.5, ge=0)
    """Reward for the whole way to all tests passed, paid as submissions come nearer."""
    constant_reward: OptionalNumber = None
    """Gives every episode this reward. For the control that must not learn."""

    # Credit
    kl_penalty_coef: float = Field(0.7, ge=0)
    """Weight of the teacher KL in the advantages; 0 for none, and then no teacher is asked."""
    kl_discount_factor: float = Field(0.0, ge=0, le=1)
    """How much of the KL of later tokens counts for a token too; 0 for its own alone."""
    kl_clip: Annotated[float | None, BeforeValidator(_none), Field(gt=0)] = None
    """Bound on the advantage that the KL gives a token."""
    kl_budget: Annotated[float | None, BeforeValidator(_none), Field(gt=0)] = None
    """Nats of |KL| after which the rest of an episode is not judged any more."""
    kl_weight_thinking: float = Field(1.0, ge=0)
    """What the KL of a token in the student's thinking counts for, whichever teacher it is from."""
    kl_weight_text: float = Field(1.0, ge=0)
    """The same for what it says outside its thinking and its calls."""
    kl_weight_call: float = Field(1.0, ge=0)
    """The same for its calls. Control tokens and headers, which take the decisions, always count fully."""
    reward_coef: float = Field(1.0, ge=0)
    """Weight of the episode's reward in the advantages."""
    baseline: BaselineName = "group"
    """What the reward is compared with: ``group`` is the mean of the problem's episodes in the step."""

    # Steps
    num_steps: int = Field(100, ge=1)
    """Steps of the whole run, those of earlier sittings included."""
    batch_size: int = Field(1, ge=1)
    """Problems a step."""
    group_size: int = Field(1, ge=1)
    """Episodes of each problem in a step."""
    learning_rate: float = Field(1e-4, gt=0)
    """Learning rate of Adam, after the warm-up."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """How the learning rate goes on: ``linear`` falls to ``lr_final`` of it at the last step."""
    lr_final: float = Field(0.05, ge=0, le=1)
    """The share of the learning rate that the linear schedule ends at."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate comes up from nothing."""
    lora_rank: int = Field(32, ge=0)
    """0 trains all weights; the local engine alone can."""
    loss_fn: Literal["importance_sampling", "ppo"] = "importance_sampling"
    """The policy-gradient loss: importance-weighted, or clipped as in PPO."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Whether the loss is summed over sampled tokens, or averaged; then ``grad_clip_norm`` bounds outliers alone."""
    num_substeps: int = Field(1, ge=1)
    """Optimizer steps that a batch is divided into."""
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of Adam's mean of squared gradients."""
    grad_clip_norm: float = Field(0.0, ge=0)
    """Bound on the gradient's norm; 0 for none."""
    pipeline: bool = False
    """Sample the next batch while this one is trained on; its episodes are then one step off the policy."""
    curriculum: Literal["none", "difficulty", "pass_rate"] = "none"
    """Order of the problems: as they come, easy ones first, or more of those that pass sometimes."""
    seed: int = Field(0, ge=0)
    """What the order of problems, the samples and new weights are drawn from."""
    rollout_retries: int = Field(3, ge=0)
    """How often an episode is played anew after a machine's fault."""
    min_survivors: int = Field(1, ge=1)
    """Episodes a group must keep, or it is dropped and counted."""
    max_concurrent: int = Field(64, ge=1)
    """Episodes under way at once."""
    service_wait_seconds: float = Field(60.0, gt=0)
    """How long a Tinker service that does not answer is waited for at the start; ten times as long later on."""

    # The run
    log_path: str = "runs/train"
    """The run's folder."""
    behavior_if_log_dir_exists: LogDirBehavior = "resume"
    """What to do where that folder holds a run already: go on, remove it, ask, or refuse."""
    eval_every: int = Field(20, ge=0)
    """Steps between evaluations; 0 for none."""
    eval_episodes: int = Field(0, ge=0)
    """Fresh episodes an evaluation plays; 0 for none."""
    save_every: int = Field(20, ge=0)
    """Steps between checkpoints that are kept; 0 for the last alone."""
    annotate_transcripts: bool = True
    """Add each sampled token and its log-probabilities, the teacher's too, to the transcripts, for the viewer."""
    resume_every: int = Field(1, ge=1)
    """Steps between the checkpoints that only a resumed run needs; the last two are kept."""
    wandb_project: OptionalText = None
    """Weights & Biases project to log to; None for none."""
    wandb_name: OptionalText = None
    """Name of the run there."""

    @model_validator(mode="after")
    def _together(self) -> TrainOptions:
        self.reward_config()
        for name in ("renderer_name", "teacher_renderer_name"):
            value = getattr(self, name)
            if value is not None and value not in RENDERER_NAMES:
                raise ValueError(f"{name}: no renderer {value!r}; there are {', '.join(RENDERER_NAMES)}")
        if self.harness_feedback and self.env == "single_turn":
            raise ValueError("harness_feedback: an episode of one completion has no turn to submit in; env=agentic has")
        if self.min_survivors > self.group_size:
            raise ValueError(f"min_survivors: {self.min_survivors} is more than group_size={self.group_size}")
        return self

    @property
    def distils(self) -> bool:
        """Whether a teacher is asked."""
        return self.kl_penalty_coef > 0 and (self.teacher_model is not None or bool(self.teachers))

    def credit(self) -> CreditConfig:
        """The part that decides on advantages."""
        return CreditConfig(
            reward_coef=self.reward_coef,
            kl_penalty_coef=self.kl_penalty_coef if self.distils else 0.0,
            kl_discount_factor=self.kl_discount_factor,
            kl_clip=self.kl_clip,
            kl_budget=self.kl_budget,
            baseline=self.baseline,
        )

    def kl_weights(self) -> dict[Kind, float]:
        """What the KL counts for by the kind of token."""
        return {"thinking": self.kl_weight_thinking, "text": self.kl_weight_text, "call": self.kl_weight_call}

    def reward_config(self) -> RewardWeights:
        """The reward's weights. Raises `UsageError` that names the option."""
        try:
            weights = RewardWeights.preset(self.reward)
        except UsageError as error:
            raise UsageError(f"reward: {error}") from error
        try:
            return RewardWeights(**(weights.model_dump() | self.reward_weights))
        except ValidationError as error:
            raise UsageError(f"reward_weights: {_first(error)}") from error

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rate = self.learning_rate * min(1.0, (step + 1) / (self.warmup_steps + 1))
        if self.lr_schedule == "constant":
            return rate
        done = step / max(1, self.num_steps - 1)
        return rate * (1 - (1 - self.lr_final) * done)

    def text_of(self, name: str) -> str | None:
        """A text option, read from its file where it is given as ``@file``. Raises `UsageError`."""
        value = getattr(self, name)
        if value is None or not value.startswith("@"):
            return value if value is None else str(value)
        try:
            return Path(value[1:]).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{name}: {value[1:]} cannot be read: {error}") from error


def parse_options(arguments: Sequence[str], defaults: Mapping[str, Any] | None = None) -> TrainOptions:
    """The options of a command line.

    Args:
        arguments: ``key=value`` each.
        defaults: Values to take for what is not given, instead of the general ones.

    Raises:
        UsageError: An option that is unknown, given twice or has a wrong value; its name is in the message.
    """
    return build_options(split_arguments(arguments), defaults)


def split_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """``key=value`` texts as a table. Raises `UsageError`."""
    given: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"{argument!r} is no option; options are given as name=value, such as learning_rate=1e-4")
        if name in given:
            raise UsageError(f"{name}: given twice, as {given[name]!r} and as {value!r}")
        given[name] = value
    return given


def build_options(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> TrainOptions:
    """The same of a table of values. Raises `UsageError`."""
    unknown = [name for name in given if name not in TrainOptions.model_fields]
    if unknown:
        import difflib

        near = difflib.get_close_matches(unknown[0], TrainOptions.model_fields, n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"{unknown[0]}: there is no such option{hint}")
    try:
        return TrainOptions(**{**(defaults or {}), **given})
    except ValidationError as error:
        raise UsageError(_first(error)) from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{name}: {message}, got {first['input']!r}" if name else message
