"""How agents that work inside sandboxes are started: their programs, arguments, variables and configuration.

Each one is told to use the one address that a sandbox has (`sandboxes/gateway.py`), to ask nobody, and to send nothing
else: no telemetry, no updates, no lists of models. What still tries gets no network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, Field, StrictStr, ValidationError

from ..errors import UsageError
from ..sandboxes import WORK_DIR
from ..sandboxes.programs import PLACE
from .apis import NAME

HOME = "/home/agent"
MODULES = f"{PLACE}/node_modules"
TASK_FILE = f"{HOME}/task.md"
"""Where the task is, for programs that read it from a file."""
_NO_PATH = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Address:
    """An episode's address as the programs of its sandbox see it."""

    openai: str
    """As agents of OpenAI's APIs take it: it ends in ``/v1``."""
    context: int
    """Tokens of the model's context."""
    most: int
    """Tokens of one answer."""

    @property
    def anthropic(self) -> str:
        """As agents of Anthropic's API take it."""
        return self.openai.removesuffix("/v1")


class _Plain(BaseModel, extra="forbid"):
    """The fields of `Program` that plain data may have."""

    argv: tuple[StrictStr, ...] = Field(min_length=1)
    env: dict[StrictStr, StrictStr] = {}
    files: dict[StrictStr, StrictStr] = {}
    stdin: StrictStr = ""
    name: StrictStr = ""


@dataclass(frozen=True)
class Program:
    """A program that works in a sandbox as an agent.

    In texts, ``{url}`` is the address of the model as OpenAI's clients take it, and ``{anthropic_url}`` as Anthropic's
    do. ``{task}`` is the task, but not in `files`, which may be programs with braces of their own.
    """

    argv: tuple[str, ...]
    """The command, looked up in PATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables besides the sandbox's."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that exist before it starts, by absolute path; the task is in `TASK_FILE` in any case. Their folders must
    be ones that the sandbox may write in, such as `HOME`."""
    name: str = "program"
    """Its name in results."""
    stdin: str = ""

    def __post_init__(self) -> None:
        for path in self.files:
            if not path.startswith("/") or {"", ".", ".."} & set(path[1:].split("/")) or _NO_PATH.search(path):
                raise UsageError(f"files: {path!r} is not an absolute path of a file, such as {HOME}/agent.py")

    @classmethod
    def read(cls, found: Mapping[str, object]) -> Program:
        """A program from plain data: ``argv`` and, if need be, ``env``, ``files``, ``stdin``, ``name``.

        Raises:
            UsageError: Something is missing or of the wrong type, or the path of a file is not absolute.
        """
        try:
            plain = _Plain.model_validate(dict(found))
        except ValidationError as error:
            raise UsageError(
                "an agent is a name, or {argv: [WORD, …], env: {NAME: VALUE}, files: {PATH: TEXT}, stdin: TEXT, "
                f"name: NAME}}; got {dict(found)!r:.200}"
            ) from error
        return cls(plain.argv, plain.env, plain.files, plain.name or "program", stdin=plain.stdin)

    def filled(self, address: Address, task: str) -> Program:
        """The same with the address and the task in place of their names."""
        addresses = {"url": address.openai, "anthropic_url": address.anthropic}

        def fill(text: str, values: Mapping[str, str] = addresses | {"task": task}) -> str:
            return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)

        files = {TASK_FILE: task} | {path: fill(text, addresses) for path, text in self.files.items()}
        env = {key: fill(text) for key, text in self.env.items()}
        return replace(self, argv=tuple(map(fill, self.argv)), env=env, files=files, stdin=fill(self.stdin))


def _shell(command: str) -> tuple[str, ...]:
    """The words that run a command below `MODULES` in a shell, which expands its patterns and opens its input."""
    return "sh", "-c", f"exec {MODULES}/{command}"


def _opencode(address: Address) -> Program:
    limit = {"context": address.context, "output": address.most}
    model = {"name": NAME, "tool_call": True, "limit": limit}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # part of the program
        "options": {"baseURL": address.openai, "apiKey": "none", "timeout": False},
        "models": {NAME: model},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "model": f"endpoint/{NAME}",
        "small_model": f"endpoint/{NAME}",
        "provider": {"endpoint": provider},
        "enabled_providers": ["endpoint"],
        "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny"},
        "agent": {"title": {"disable": True}},
        "lsp": False,
        "formatter": False,
    }
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "EXTERNAL_SKILLS")
    return Program(
        _shell(f"opencode-linux-*/bin/opencode run --title task --format json < {TASK_FILE}"),
        {f"OPENCODE_DISABLE_{name}": "1" for name in off},
        {f"{HOME}/.config/opencode/opencode.json": json.dumps(config)},
    )


def _qwen_code(address: Address) -> Program:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "checkpointing": {"enabled": False}},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": NAME, "generationConfig": {"timeout": 86_400_000, "contextWindowSize": address.context}},
    }
    return Program(
        _shell(
            f"node-linux-*/bin/node {MODULES}/@qwen-code/qwen-code/cli-entry.js "
            f'--yolo --auth-type openai --output-format stream-json --prompt "$(cat {TASK_FILE})"'
        ),
        {"OPENAI_BASE_URL": address.openai, "OPENAI_API_KEY": "none", "OPENAI_MODEL": NAME, "NO_COLOR": "1"},
        {f"{HOME}/.qwen/settings.json": json.dumps(settings)},
    )


def _claude_code(address: Address) -> Program:
    off = (
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS",
        "CLAUDE_CODE_DISABLE_TERMINAL_TITLE",
        "DISABLE_AUTOUPDATER",
        "DISABLE_TELEMETRY",
        "DISABLE_ERROR_REPORTING",
        "IS_SANDBOX",
    )
    # A name that it knows: it takes others for the newest model, and sends system messages amid a conversation.
    models = dict.fromkeys(
        (
            "ANTHROPIC_MODEL",
            "ANTHROPIC_DEFAULT_OPUS_MODEL",
            "ANTHROPIC_DEFAULT_SONNET_MODEL",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL",
            "CLAUDE_CODE_SUBAGENT_MODEL",
        ),
        "claude-sonnet-4-5",
    )
    env = {
        "ANTHROPIC_BASE_URL": address.anthropic,
        "ANTHROPIC_API_KEY": "none",
        "API_TIMEOUT_MS": "86400000",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(address.most),
    }
    return Program(
        _shell(
            f"@anthropic-ai/claude-code-linux-*/claude --print --output-format stream-json --verbose "
            f"--dangerously-skip-permissions --tools Bash,Read,Edit,Write,Glob,Grep < {TASK_FILE}"
        ),
        dict.fromkeys(off, "1") | models | env,
    )


def _codex(address: Address) -> Program:
    config = f"""\
model = "{NAME}"
model_provider = "endpoint"
model_context_window = {address.context}
web_search = "disabled"
check_for_update_on_startup = false
agents.enabled = false
features.multi_agent = false
features.goals = false
analytics.enabled = false
feedback.enabled = false

[model_providers.endpoint]
name = "endpoint"
base_url = "{address.openai}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 86400000
"""
    return Program(
        _shell(
            f"@openai/codex-linux-*/vendor/*/bin/codex exec --json --skip-git-repo-check "
            f"--dangerously-bypass-approvals-and-sandbox --cd {WORK_DIR} - < {TASK_FILE}"
        ),
        {"CODEX_HOME": f"{HOME}/.codex"},
        {f"{HOME}/.codex/config.toml": config},
    )


def _pi(address: Address) -> Program:
    # It keeps this much of the window free, as it only estimates what a prompt takes; the endpoint counts.
    margin = 4096
    model = {"id": NAME, "contextWindow": address.context + margin, "maxTokens": address.most}
    provider = {"baseUrl": address.openai, "api": "openai-completions", "apiKey": "none", "models": [model]}
    settings = {
        # Its defaults are for large windows: 16,384 and 20,000.
        "compaction": {
            "reserveTokens": margin + min(address.most, address.context // 2),
            "keepRecentTokens": min(20_000, address.context // 4),
        },
        "enableInstallTelemetry": False,
        "httpIdleTimeoutMs": "disabled",
        "retry": {"enabled": False},
    }
    bare = " ".join(f"--no-{name}" for name in ("session", "extensions", "skills", "prompt-templates", "approve"))
    return Program(
        _shell(
            f"node-linux-*/bin/node {MODULES}/@earendil-works/pi-coding-agent/dist/bundle/cli.js "
            f"--mode json --offline {bare} --model endpoint/{NAME} < {TASK_FILE}"
        ),
        {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"},
        {
            f"{HOME}/.pi/agent/models.json": json.dumps({"providers": {"endpoint": provider}}),
            f"{HOME}/.pi/agent/settings.json": json.dumps(settings),
        },
    )


INSIDE: dict[str, Callable[[Address], Program]] = {
    "opencode": _opencode,
    "claude-code": _claude_code,
    "codex": _codex,
    "qwen-code": _qwen_code,
    "pi": _pi,
}
"""The agents whose programs run in the sandbox, by name."""
