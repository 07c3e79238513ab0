"""How agents inside sandboxes are started: their programs, arguments, environment variables and configuration.

Each agent is configured to use the only address that a sandbox can reach (`sandboxes/gateway.py`), never to ask
the user, and to send nothing else: no telemetry, updates or lists of models. The sandbox has no other network.
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
"""The file with the task, for programs that read it from a file."""
_NO_PATH = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Address:
    """The model's address for one episode, as seen inside its sandbox, and the model's limits."""

    openai: str
    """The base address for OpenAI's APIs, which ends in ``/v1``."""
    context: int
    """Context length of the model, in tokens."""
    most: int
    """Maximum tokens of one answer."""

    @property
    def anthropic(self) -> str:
        """The base address for Anthropic's API."""
        return self.openai.removesuffix("/v1")


class _Plain(BaseModel, extra="forbid"):
    """`Program` as plain data."""

    argv: tuple[StrictStr, ...] = Field(min_length=1)
    env: dict[StrictStr, StrictStr] = {}
    files: dict[StrictStr, StrictStr] = {}
    stdin: StrictStr = ""
    name: StrictStr = ""


@dataclass(frozen=True)
class Program:
    """A program that runs in a sandbox as an agent.

    In its texts, ``{url}`` is replaced by the model's address for OpenAI's clients, and ``{anthropic_url}`` by that for
    Anthropic's. ``{task}`` is replaced by the task, except in `files`, which may be programs that contain braces.
    """

    argv: tuple[str, ...]
    """The command, looked up in PATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to the sandbox's."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write before it starts, by absolute path, in folders that are writable in the sandbox, such as `HOME`.
    The task is always in `TASK_FILE`."""
    name: str = "program"
    """Its name in results."""
    stdin: str = ""

    def __post_init__(self) -> None:
        for path in self.files:
            if not path.startswith("/") or {"", ".", ".."} & set(path[1:].split("/")) or _NO_PATH.search(path):
                raise UsageError(f"files: {path!r} is not an absolute path of a file, such as {HOME}/agent.py")

    @classmethod
    def read(cls, found: Mapping[str, object]) -> Program:
        """A program from plain data: ``argv`` and, optionally, ``env``, ``files``, ``stdin``, ``name``.

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
        """A copy with the placeholders replaced by the address and the task."""
        addresses = {"url": address.openai, "anthropic_url": address.anthropic}

        def fill(text: str, values: Mapping[str, str] = addresses | {"task": task}) -> str:
            return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)

        files = {TASK_FILE: task} | {path: fill(text, addresses) for path, text in self.files.items()}
        env = {key: fill(text) for key, text in self.env.items()}
        return replace(self, argv=tuple(map(fill, self.argv)), env=env, files=files, stdin=fill(self.stdin))


def _shell(command: str) -> tuple[str, ...]:
    """The argv that runs a command below `MODULES` in a shell, which expands glob patterns and redirects its input."""
    return "sh", "-c", f"exec {MODULES}/{command}"


def _opencode(address: Address) -> Program:
    limit = {"context": address.context, "output": address.most}
    model = {"name": NAME, "tool_call": True, "limit": limit}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # bundled with OpenCode
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
    # A name that it knows: for others it assumes the newest model, and sends system messages within a conversation.
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
    # pi keeps this many tokens free, since it only estimates the length of a prompt; the endpoint counts exactly.
    margin = 4096
    model = {"id": NAME, "contextWindow": address.context + margin, "maxTokens": address.most}
    provider = {"baseUrl": address.openai, "api": "openai-completions", "apiKey": "none", "models": [model]}
    settings = {
        # pi's defaults, 16,384 and 20,000, are for large context windows.
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
