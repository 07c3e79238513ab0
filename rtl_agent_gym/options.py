"""The tree of options. Each option is defined once, here: its name, type, default, bounds and meaning.

::

    ProblemOptions       which problems
    EpisodeOptions       the rules of an episode that every interface has
    └── EpisodeRules         its other rules: sandboxes, grading, recording
    SandboxOptions       the kind of sandbox, and limits on all sandboxes
    PolicyOptions        sampling, and the service that has the model
    EvaluationOptions    how many episodes, where, with which limits
    ClusterOptions       the Ray cluster, and the port with metrics

The interfaces are generated from these fields: the command line (`cli.options`), the trainers' ``name=value``
(`training.options`), the dataset builder of tinker-cookbook (`envs.tinker_data`) and the rules of ``gym.make``
(`episodes.rules`). Options that only one of them has are fields of its class.
"""

from __future__ import annotations

from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from . import strict_json
from .errors import UsageError
from .retries import EPISODE, START

LONGEST_TIMEOUT = 7 * 24 * 3600.0
"""Upper bound on every time-out, in seconds; much longer ones overflow the operating system's timers."""

SandboxKind = Literal["auto", "docker", "podman", "namespaces", "apptainer"]
SANDBOXES = get_args(SandboxKind)
"""The kinds of sandboxes."""
WITHOUT_DAEMON = ("namespaces", "apptainer")
"""The kinds that need no daemon."""
WORKSPACES: dict[str, Literal["shell", "answer"]] = {"agentic": "shell", "single_turn": "answer"}
"""Workspaces by their names in the trainers' option ``env`` and the command line's ``--env``."""


class Options(BaseModel):
    """Options that are checked when they are created, and then immutable.

    Raises `UsageError` if a value has a wrong type or is out of range; the message names the option.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        populate_by_name=True,
        serialize_by_alias=True,
    )
    kind: ClassVar[str] = "the options"
    """What error messages call these options."""

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - set(type(self).names()) - type(self).model_fields.keys()
        if unknown:
            raise UsageError(f"unknown option {min(unknown)!r}; {self.kind} are {', '.join(type(self).names())}")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(first_mistake(error, type(self))) from error

    @field_validator("*", mode="before")
    @classmethod
    def _plain_number(cls, value: object) -> object:
        """Convert NumPy numbers to Python's, which can be written as JSON."""
        if isinstance(value, (int, float)) or not isinstance(value, Real):
            return value
        return int(value) if isinstance(value, Integral) else float(value)

    @classmethod
    def names(cls) -> list[str]:
        """The options' names, as users write them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    def with_options(self, **options: Any) -> Self:
        """A copy with the given options replaced. Raises `UsageError` like the constructor."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | options)


def first_mistake(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first mistake in making an object of `kind`, as a sentence that begins with the option's name."""
    first = error.errors()[0]
    name, bounds = ".".join(str(part) for part in first["loc"]), first.get("ctx", {})
    match first["type"]:
        case "value_error" | "assertion_error":
            message = first["msg"].partition(", ")[2]
            return f"{name}: {message}" if name and not message.startswith(name) else message
        case "int_type" | "int_from_float" | "int_parsing":
            expected = "a whole number"
        case "float_type" | "float_parsing" | "finite_number":
            expected = "a finite number"
        case "greater_than":
            expected = f"greater than {bounds['gt']:g}"
        case "greater_than_equal":
            expected = "0 or more" if bounds["ge"] == 0 else f"at least {bounds['ge']:g}"
        case "less_than" | "less_than_equal":
            expected = f"less than {bounds['lt']:g}" if "lt" in bounds else f"at most {bounds['le']:g}"
        case "literal_error":
            expected = bounds["expected"]
        case _:
            return f"{name}: {first['msg']}, got {first['input']!r}"
    field = kind.model_fields.get(name)
    if field is not None and type(None) in get_args(field.annotation):
        expected += ", or None for no limit"
    return f"{name} must be {expected}, got {first['input']!r}"


def bounds(field: FieldInfo) -> dict[str, Any]:
    """The bounds of a numeric option: those of ``gt``, ``ge``, ``lt`` and ``le`` that it has."""
    names = ("gt", "ge", "lt", "le")
    return {name: getattr(part, name) for part in field.metadata for name in names if hasattr(part, name)}


def with_default(kind: type[Options], name: str, default: Any) -> Any:
    """An option of the tree with another default, for a class that inherits it."""
    field = kind.model_fields[name]
    return Field(default, description=field.description, title=field.title, alias=field.alias, **bounds(field))


def _list(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return () if value is None else value


def from_json(value: object) -> object:
    """Parse a string as JSON; return other values unchanged."""
    return strict_json.loads(value) if isinstance(value, str) else value


def optional(value: object) -> object:
    """None for the strings ``none``, ``null`` and the empty string; return other values unchanged."""
    return None if isinstance(value, str) and value.lower() in ("none", "null", "") else value


Names = Annotated[tuple[str, ...], BeforeValidator(_list), Field(strict=False)]
"""Several names, as a list or separated by commas."""
Table = Annotated[dict[str, str], BeforeValidator(from_json)]
"""A JSON object of strings."""
OptionalText = Annotated[str | None, BeforeValidator(optional)]
OptionalPath = Annotated[Path | None, Field(strict=False)]
OptionalPositive = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(optional)]
OptionalNonNegative = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(optional)]
OptionalCount = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(optional)]
"""Numbers that may be None. The bound is inside the union: outside it, pydantic would compare None with the bound."""


class ProblemOptions(Options):
    """Which problems are used."""

    problems: Any = Field(default="bundled", title="SOURCE")
    """Source of the problems: bundled, a .jsonl file or a folder of them, cvdp (CVDP's newest agentic rows), another
    data set on the Hugging Face Hub as owner/name:file or owner/name@revision:file, family:NAME (generated problems),
    verilog-eval:FOLDER, rtllm:FOLDER or notsotiny:FILE. SOURCE+mutants: debugging problems from SOURCE's designs."""
    ids: Names = Field(default=(), title="ID")
    """Only the problems with these ids; empty for all."""
    categories: Names = Field(default=(), title="CID")
    """Only problems of these categories, such as 3 or cid003; empty for all."""
    difficulties: Names = ()
    """Only easy, medium or hard problems; empty for all."""
    rows: Literal["all", "fair", "partial", "sound"] = "all"
    """Only rows of CVDP known to be ``fair`` (a correct design passes; the tests demand nothing unstated); ``partial``:
    fair, and tested at least in the main part of the task; ``sound``: fair, and no blind spot of the tests is known."""


class EpisodeOptions(Options):
    """The rules of an episode that every interface has."""

    max_turns: int = Field(default=50, gt=0)
    """Turns after which an episode in a shell ends and is graded."""
    command_timeout: float = Field(default=30.0, gt=0, le=LONGEST_TIMEOUT)
    """Seconds that one shell command may run."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Tokens that one turn may sample; None leaves the limit to the policy. Your own policy object, and a framework
    that samples (except tinker-cookbook and verl), uses its own limit instead."""
    max_trajectory_tokens: int | None = Field(default=None, gt=0)
    """Tokens of the whole episode: prompt, sampled tokens and command outputs. When too few are left for a turn, the
    episode ends and is graded. Counted for policies that sample tokens; None for no limit."""
    system_prompt: str | None = None
    """Replaces the package's system message; an empty text gives none. On the command line a text, or @FILE."""
    user_prompt: str | None = None
    """Replaces the problem's user message. On the command line a text, or @FILE."""
    harness_feedback: int = Field(default=0, ge=0)
    """How often the agent may submit its files during an episode and read which checks fail; 0 for never."""
    progress_coef: float = Field(default=0.5, ge=0)
    """Total reward of submissions when all tests pass, paid in proportion to increases of the passed share."""
    turn_rewards: Literal["none", "submissions", "files"] = "none"
    """Divide the episode's reward among its turns, by how much each raised the score of the files: measured at
    submissions, or (``files``) in the background after each turn that changed files. See docs/training.md."""
    turn_grading_time: OptionalNonNegative = 0.2
    """With ``turn_rewards=files``: maximum time for these gradings, as a share of the time that final gradings took so
    far; turns beyond it are not graded. None for no limit."""
    judge: Any = Field(default=None, title="JUDGE")
    """Judge of answers that are text: chat:MODEL, or chat:MODEL@URL for your own server. None excludes problems that
    need one."""


class EpisodeRules(EpisodeOptions):
    """All rules of an episode that are plain values."""

    workspace: Literal["shell", "answer"] = "shell"
    """``shell``: the agent works in a sandbox for several turns, and the files it leaves there are graded. ``answer``:
    it answers once, without any tool, and the files in its answer are graded."""
    max_malformed: int = Field(default=3, gt=0)
    """Malformed turns in a row that end a shell episode."""
    max_output: int = Field(default=16_000, gt=0)
    """Characters of one command's output that the model reads; longer output is cut in the middle."""
    scoring_timeout: float = Field(default=600.0, gt=0, le=LONGEST_TIMEOUT)
    """Seconds that each service of the hidden tests may run, in each grading."""
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    """Tokens of the prompt. A longer task is shortened, with a note at each cut. Needs a renderer with a vocabulary;
    None for no limit."""
    teach_dialect: bool = True
    """Whether the prompt teaches the dialect's form of tool calls. False for a chat service that declares tools."""
    harness_images: Names = Field(default=(), title="NAME=IMAGE")
    """Your images for commercial simulators, such as VERIF_EDA_IMAGE=my/simulator:24.03. Problems that need a missing
    one are excluded."""
    harness_env: OptionalPath = Field(default=None, title="FILE")
    """File of NAME=value lines: environment variables for the tests in your image, such as its licence server. It is
    read when a grader is created, and never recorded."""
    harness_network: str = Field(default="", title="NETWORK")
    """Docker network that your image's tests join, such as a licence server's; empty for none."""
    start_attempts: int = Field(default=START.attempts, gt=0)
    """Attempts to start a sandbox before `SandboxError` is raised."""
    transcript_dir: OptionalPath = None
    """Folder for the transcript; None writes none."""
    record_files: bool = True
    """Whether the transcript records the text files that each turn changed; takes about a millisecond a turn."""


class SandboxOptions(Options):
    """The kind of sandbox, and limits on what all sandboxes may use."""

    sandbox: SandboxKind = "auto"
    """How sandboxes are made: as containers of docker or podman, or with namespaces or apptainer, which need neither a
    daemon nor root. auto takes the variable RTL_GYM_SANDBOX, else Docker if a daemon answers, else namespaces, else
    apptainer."""
    sandbox_limits: str = Field(default="", title="LIMITS")
    """What sandboxes may use, such as memory=16G,cpus=4,starts=8: total memory, concurrent gradings, concurrent
    container starts. The defaults depend on the Docker daemon's machine."""


class ClusterOptions(Options):
    """The Ray cluster for sandboxes and grading, and the port for metrics."""

    ray_address: str = Field(default="", title="ADDRESS")
    """Ray cluster whose nodes run sandboxes and gradings, such as 10.0.0.1:6379, or auto for this machine's; empty for
    none."""
    ray_slots: int = Field(default=0, ge=0)
    """On a cluster: maximum slots that this run reserves on each node, which leaves the rest to other runs; 0: as many
    as there are concurrent episodes."""
    canary_seconds: float = Field(default=15.0, ge=0, le=3600)
    """On a cluster: maximum seconds that a verdict waits until its node has graded two known designs correctly. More
    seconds mean fewer such gradings, but later ends of episodes; 0 checks at once."""
    metrics_port: int = Field(default=0, ge=-1, le=65535)
    """Port on this machine (127.0.0.1) that serves metrics for Prometheus; 0 for none, -1 for any free port."""


class PolicyOptions(Options):
    """Options of policies that use a model."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature, for model policies; 0 always chooses the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling, for model policies: the share of the probability to sample from."""
    max_tokens: int = Field(default=4096, ge=1)
    """Token limit of one turn, for model policies."""
    max_context: int = Field(default=32_768, ge=1)
    """Context length of the model in tokens, prompt and turn together; an episode that reaches it ends and is graded.
    For policies that sample tokens; chat services have their own limit."""
    base_url: str | None = Field(default=None, title="URL")
    """Address of the model service, such as http://HOST:PORT/v1; None for the provider's default."""
    api_key: str | None = Field(default=None, title="KEY", repr=False)
    """API key of the model service; safer in the environment variable that the provider documents."""
    tools: bool = True
    """For chat: declare the shell as a tool. If not, the model writes its calls as text in the renderer's dialect."""
    stream: bool = False
    """For chat: request streamed answers. Some proxies close a connection that is silent for a minute."""
    price_input: float | None = Field(default=None, ge=0, title="USD")
    """For chat: price of a million tokens read; None for litellm's price list."""
    price_output: float | None = Field(default=None, ge=0, title="USD")
    """For chat: price of a million tokens written."""
    price_cached: float | None = Field(default=None, ge=0, title="USD")
    """For chat: price of a million tokens read from the service's prompt cache; None for `price_input`."""
    attempts: int = Field(default=8, ge=1)
    """Maximum attempts of a request while the service is busy or unreachable."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Maximum seconds of one request."""


class EvaluationOptions(Options):
    """How many episodes an evaluation plays, with which policy, and where results go."""

    policy: str = Field(default="golden", title="POLICY")
    """What plays the episodes: golden, scripted FILE, chat:MODEL or chat:MODEL@URL, tinker:MODEL_OR_CHECKPOINT,
    local:PATH, vllm:MODEL@URL, sglang:MODEL@URL, harness:AGENT MODEL, human or random."""
    renderer: Any = Field(default="qwen3", title="NAME")
    """Chat format (dialect) of the model, such as qwen3, qwen3_instruct or gpt_oss."""
    reward: Any = Field(default="default", title="PRESET")
    """How the reward is computed: default, staged, dense, compile or proxy."""
    samples: int = Field(default=1, ge=1)
    """Episodes to play of each problem."""
    seed: int = 0
    """Random seed, from which each episode's is derived. With equal seeds, run plays the first episode of eval."""
    keep: bool = True
    """Whether results and transcripts are saved in `folder`. If not, results are only in memory, and transcripts go to
    `EpisodeConfig.transcript_dir` if that is set."""
    folder: Path | None = None
    """Folder for results and transcripts; by default one below runs/eval/, named by the configuration."""
    resume: bool = True
    """Play only the episodes without a verdict in the folder. False refuses a folder that contains results."""
    concurrency: int = Field(default=8, ge=1)
    """Episodes to play at the same time."""
    attempts: int = Field(default=EPISODE.attempts, ge=1)
    """Attempts at an episode after machine faults, before it is left without a verdict."""
    longest_pause: float = Field(default=EPISODE.longest, ge=0)
    """Upper bound on the seconds between two attempts."""
    max_cost: float | None = Field(default=None, gt=0, title="USD")
    """Stop when the model has cost this much, including earlier runs in the folder: no further requests are made,
    finished results are kept, and unfinished episodes get none. Requests in flight may exceed the limit."""
    max_tokens_total: int | None = Field(default=None, gt=0)
    """Stop when the model has read and written this many tokens, including earlier runs in the folder."""
    longest_outage: float = Field(default=1800.0, ge=0)
    """Once an episode has a result: seconds of an outage, in which the Docker daemon or the model does not answer and
    no episode gets a result; attempts are not counted. An attempt that fails after more than this begins a new outage,
    up to `attempts` in all."""
    cache: bool = True
    """Cache gradings on disk and reuse them for equal files."""
