"""The options of a training run, given as ``key=value`` on the command line.

Nothing heavy is imported here, so a wrong option is reported before a model or a daemon is touched.
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

LogDirBehavior = Literal["ask", "resume", "delete", "raise"]
BaselineName = Literal["group", "batch", "running", "none"]


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
    """All options of a run, passed whole to whatever needs one. Each docstring is the option's help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    # Who learns from whom
    student_model: str = "Qwen/Qwen3-8B"
    """A model of the service, a folder or Hugging Face name for the local engine, or ``tiny``."""
    teacher_model: OptionalText = "Qwen/Qwen3-32B"
    """The model whose log-probabilities the student learns from, named like ``student_model``; None for no teacher."""
    teachers: Table = Field(default_factory=dict)
    """Other teachers for some problems: ``{"problem id or category": "model"}`` as JSON."""
    teacher_renderer_name: OptionalText = None
    """The teacher's dialect, if it is of another model family; None for the one that fits the model."""
    teacher_system_prompt: OptionalText = None
    """A system prompt for the teacher alone: a text, or ``@file``."""
    base_url: OptionalText = None
    """Address of a Tinker-compatible service; None for Tinker's own with an API key, and the local engine without."""
    engine: Literal["auto", "tinker", "local"] = "auto"
    """Where to sample and train: Tinker's service or this machine; ``auto`` takes the service if there is a key."""
    load_checkpoint_path: OptionalText = None
    """Weights to start from: the ``state_path`` of a checkpoint."""

    # Problems and episodes
    cvdp_jsonl_path: str = "bundled"
    """Problems to train on: ``bundled``, a JSONL file, or a Hugging Face data set id."""
    problem_ids: Names = ()
    """Only these problems, with commas between them; empty for all."""
    categories: Names = ()
    """Only these categories, as ``3`` or ``cid003``; empty for all."""
    difficulties: Names = ()
    """Only these of ``easy``, ``medium`` and ``hard``; empty for all."""
    held_out: OptionalText = None
    """Problems to test on and never train on: a share such as ``0.2``, ids with commas between them, or another source
    of problems. They are evaluated before the first step, every ``eval_every`` steps and at the end."""
    env: Literal["agentic", "single_turn"] = "agentic"
    """``agentic``: many turns in a shell. ``single_turn``: one completion with the files in it."""
    renderer_name: OptionalText = None
    """The student's chat format (dialect); None for the one that fits the model."""
    system_prompt: OptionalText = None
    """Replaces the agent's system message: a text, or ``@file``."""
    user_prompt: OptionalText = None
    """Replaces the problem's user message: a text, or ``@file``."""
    max_turns: int = Field(50, ge=1)
    """Turns after which an episode is cut off and graded."""
    max_tokens: int = Field(4096, ge=1)
    """Maximum number of tokens sampled in one turn."""
    max_trajectory_tokens: int = Field(32_768, ge=1)
    """Maximum number of tokens in an episode, including the prompt and the commands' output."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the student."""
    timeout_seconds: float = Field(30.0, gt=0, le=7 * 24 * 3600)
    """Seconds a command may run."""
    reward: str = "default"
    """A reward preset: default, staged, dense, compile or proxy."""
    reward_weights: Annotated[dict[str, Any], BeforeValidator(_json)] = Field(default_factory=dict)
    """Weights that replace some of the preset's, as JSON: ``{"tests": 2.0}``."""
    harness_feedback: int = Field(0, ge=0)
    """How often the agent may submit its files within an episode, to learn which checks fail; progress is rewarded."""
    progress_coef: float = Field(0.5, ge=0)
    """Total reward for progress between submissions, from no test passed to all."""
    constant_reward: OptionalNumber = None
    """Gives every episode this reward, for a control run that must not learn."""

    # Credit
    kl_penalty_coef: float = Field(0.7, ge=0)
    """Weight of the KL to the teacher in the advantages; 0 uses no teacher."""
    kl_discount_factor: float = Field(0.0, ge=0, le=1)
    """Discount with which a token is also charged for the KL of later tokens; 0 charges it for its own KL only."""
    kl_clip: Annotated[float | None, BeforeValidator(_none), Field(gt=0)] = None
    """Bound on the advantage that a token gets from the KL; None for no bound."""
    kl_budget: Annotated[float | None, BeforeValidator(_none), Field(gt=0)] = None
    """Nats of |KL| after which the rest of an episode gets no KL; None for no limit."""
    kl_weight_thinking: float = Field(1.0, ge=0)
    """Weight of the KL of tokens in the student's thinking."""
    kl_weight_text: float = Field(1.0, ge=0)
    """Weight of the KL of tokens outside thinking and calls."""
    kl_weight_call: float = Field(1.0, ge=0)
    """Weight of the KL of tokens in calls. Control tokens and headers always have weight 1."""
    reward_coef: float = Field(1.0, ge=0)
    """Weight of the episode's reward in the advantages."""
    baseline: BaselineName = "group"
    """What is subtracted from the reward: the mean of the problem's episodes in this step (group), of all its episodes
    (batch), of the problem's earlier episodes (running), or nothing (none)."""

    # Steps
    num_steps: int = Field(100, ge=1)
    """Steps in the whole run, including those done before it was resumed."""
    batch_size: int = Field(1, ge=1)
    """Problems in each step."""
    group_size: int = Field(1, ge=1)
    """Episodes of each problem in a step."""
    learning_rate: float = Field(1e-4, gt=0)
    """Learning rate of Adam, after the warm-up."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """Learning rate schedule: ``linear`` falls to ``lr_final`` of the learning rate at the last step."""
    lr_final: float = Field(0.05, ge=0, le=1)
    """Share of the learning rate at which the linear schedule ends."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0."""
    lora_rank: int = Field(32, ge=0)
    """Rank of the LoRA adapters; 0 trains all weights, on the local engine only."""
    loss_fn: Literal["importance_sampling", "ppo"] = "importance_sampling"
    """The policy-gradient loss: importance-weighted, or clipped as in PPO."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Whether the loss is the sum or the mean over sampled tokens."""
    num_substeps: int = Field(1, ge=1)
    """Optimizer steps into which a batch is divided."""
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of Adam's mean of squared gradients."""
    grad_clip_norm: float = Field(0.0, ge=0)
    """Bound on the gradient's norm; 0 for none."""
    pipeline: bool = False
    """Sample the next batch while this one is trained on; the same as ``max_lag=1``."""
    max_lag: int = Field(0, ge=0)
    """How many steps the weights that sample may be behind the trained ones, so that batches are sampled ahead."""
    curriculum: Literal["none", "difficulty", "pass_rate"] = "none"
    """How problems are chosen: shuffled in each epoch, easy ones first, or preferring those solved only sometimes."""
    seed: int = Field(0, ge=0)
    """Seed of the order of problems, the held-out share, the samples and new weights."""
    rollout_retries: int = Field(3, ge=0)
    """How often an episode is played again after a fault of the machine or the service."""
    min_survivors: int = Field(1, ge=1)
    """Episodes that must survive such faults, or the group is dropped and counted."""
    max_concurrent: int = Field(64, ge=1)
    """Maximum number of episodes at the same time."""
    service_wait_seconds: float = Field(60.0, gt=0)
    """How long to wait for a Tinker service that does not answer when the run starts; later ten times as long."""

    # The run
    log_path: str = "runs/train"
    """The run's folder."""
    behavior_if_log_dir_exists: LogDirBehavior = "resume"
    """What to do if that folder already holds a run: resume it, delete it, ask, or refuse."""
    eval_every: int = Field(20, ge=0)
    """Steps between evaluations; 0 for none."""
    eval_episodes: int = Field(0, ge=0)
    """Fresh episodes in each evaluation, split over its problems; 0 for none, but one of each held-out problem."""
    save_every: int = Field(20, ge=0)
    """Steps between checkpoints that are kept; 0 keeps only the last."""
    annotate_transcripts: bool = True
    """Add the sampled tokens, with the student's and the teacher's log-probabilities, to the transcripts."""
    resume_every: int = Field(1, ge=1)
    """Steps between the checkpoints for resuming a run, of which the last two are kept."""
    wandb_project: OptionalText = None
    """Weights & Biases project to log to; None for no logging there."""
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
    def lag(self) -> int:
        """How many steps the weights that sample may be behind."""
        return max(self.max_lag, int(self.pipeline))

    @property
    def distils(self) -> bool:
        """Whether there is a teacher."""
        return self.kl_penalty_coef > 0 and (self.teacher_model is not None or bool(self.teachers))

    def kl_weights(self) -> dict[Kind, float]:
        """The weight of the KL, by the kind of token."""
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
        """The learning rate of a step; the first step is 0."""
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
    """The options from a table of values; otherwise like `parse_options`."""
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
