"""Episodes for inspect_ai: ``inspect eval rtl_agent_gym/cvdp``; a task, its sandbox, its solver and its scorer.

A sample's sandbox is its episode: a `ToolSession` that starts and ends with the sample. `shell_agent` plays the turns
by the rules of `EpisodeConfig` for limits, submissions and malformed calls; other solvers can use the sandbox too.
`hidden_tests` grades the current files.

A `SandboxError` passes through unchanged: the sample has an error and no score; ``--retry-on-error`` repeats it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageTool, ChatMessageUser, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandbox,
    sandboxenv,
)

from ..episodes.prompt import tool_opening
from ..episodes.rules import EpisodeConfig
from ..errors import SandboxBroken
from ..policies.chat_answers import WITHHELD
from ..problems import Problem
from ..problems.notes import Rows
from ..renderers import ToolCall
from ..renderers.protocol import TOOL
from ..sandboxes.results import WORK_DIR, CommandResult
from .session import ToolSession, choose_problems, find_problem, require_shell

NAME = "rtl_agent_gym"
"""The sandbox's name in a task."""
LONGEST = 600
"""Time limit of a process whose caller sets none, in seconds."""
READ = 'set -o pipefail; head -c "$2" -- "$1" | base64 -w0'
"""Prints the beginning of a file; the size is not checked first, since a device has none and may be endless."""


@task
def cvdp(
    problems: str = "bundled",
    ids: str | list[str] | None = None,
    categories: str | list[str] | None = None,
    difficulties: str | list[str] | None = None,
    rows: Rows = "all",
    **rules: Any,
) -> Task:
    """Problems to solve in a shell.

    Args:
        problems: A path, a Hugging Face id, or ``"bundled"``.
        ids: The ids to play; all by default.
        categories: The categories to play; all by default.
        difficulties: The difficulties to play; all by default.
        rows: ``"fair"``, ``"partial"`` or ``"sound"`` keeps only rows of CVDP known to be at least that good.
        rules: Options of `EpisodeConfig`, such as ``max_turns`` and ``command_timeout``.
    """
    source, found, config = choose_problems(
        problems, ids=ids, categories=categories, difficulties=difficulties, rows=rows, **rules
    )
    require_shell(config)
    return Task(
        dataset=MemoryDataset([_sample(problem, config, source, rules) for problem in found], name=source),
        solver=shell_agent(),
        scorer=hidden_tests(),
        sandbox=NAME,
    )


def _sample(problem: Problem, config: EpisodeConfig, source: str, rules: dict[str, Any]) -> Sample:
    """A problem as it appears in logs: without hidden tests and solution."""
    kinds: dict[str, type[ChatMessage]] = {"system": ChatMessageSystem, "user": ChatMessageUser}
    messages: list[ChatMessage] = [
        kinds[message["role"]](content=message["content"]) for message in tool_opening(problem, config).messages
    ]
    about = {"category": problem.category, "difficulty": problem.difficulty}
    return Sample(id=problem.id, input=messages, metadata={**about, "problems": source, "rules": rules})


def _session() -> ToolSession:
    session: ToolSession = sandbox().as_type(EpisodeSandbox).session
    return session


@solver
def shell_agent() -> Solver:
    """Calls the model until the episode ends, with the shell as its only tool."""
    function: Any = TOOL["function"]
    tool = ToolInfo(name=function["name"], description=function["description"], parameters=function["parameters"])

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        session = _session()
        while not session.over:
            state.output = await get_model().generate(state.messages, tools=[tool])
            state.messages.append(state.output.message)
            if state.output.stop_reason == "model_length":
                await session.finish("max_tokens")
            else:
                state.messages += await _play_turn(session, state.output)
        state.completed = True
        return state

    return solve


async def _play_turn(session: ToolSession, output: ModelOutput) -> list[ChatMessage]:
    """Play a turn, and return the messages that reply to it. A refusal is a final answer."""
    refused = output.stop_reason == "content_filter"
    calls = [] if refused else output.message.tool_calls or []
    read = [ToolCall(call.function, json.dumps(call.arguments) if call.parse_error is None else "{") for call in calls]
    text = WITHHELD if refused else output.message.text
    turn = await session.act(read or text, cut_off=output.stop_reason == "max_tokens")
    texts = turn.replies(len(calls))
    if calls:
        return [
            ChatMessageTool(content=text, tool_call_id=call.id, function=call.function)
            for call, text in zip(calls, texts, strict=True)
        ]
    return [] if session.over else [ChatMessageUser(content=texts[0])]


@scorer(metrics={"passed": [accuracy(), stderr()], "reward": [mean(), stderr()]})
def hidden_tests() -> Scorer:
    """The official verdict as ``passed`` (0 or 1), and the reward; all other numbers are in the score's metadata.

    With the rule ``turn_rewards``, the metadata also has the reward of each turn.
    """

    async def score(state: TaskState, target: Target) -> Score:
        result = await _session().finish("max_turns")
        turns = {"turn_rewards": list(result.turn_rewards)} if result.turn_rewards else {}
        return Score(
            value={"passed": float(result.score.passed), "reward": result.reward},
            explanation=result.score.reason or "all tests passed",
            metadata={"stop_reason": result.stop_reason, **result.numbers, **turns},
        )

    return score


@sandboxenv(name=NAME)
class EpisodeSandbox(SandboxEnvironment):
    """The container of an episode. It has one user, and paths are relative to its work folder."""

    def __init__(self, session: ToolSession) -> None:
        super().__init__()
        self.session = session

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, Any]) -> dict[str, SandboxEnvironment]:
        problem = await asyncio.to_thread(find_problem, metadata["problems"], metadata["__sample_id__"])
        session = ToolSession(problem, EpisodeConfig().with_options(**metadata["rules"]))
        await session.start()
        return {"default": cls(session)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).session.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a process beside the shell. Its stdout and stderr are returned together, in the order of writing."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"the sandbox has one user, so nothing can run as {user}")
        stdin = input.encode() if isinstance(input, str) else input or b""
        folder, limit = str(Path(WORK_DIR, cwd or "")), SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        result = await self._run(cmd, cwd=folder, env=env, stdin=stdin, timeout=timeout, max_output=limit)
        if result.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.output)
        if result.timed_out:
            raise TimeoutError(f"the command ran for more than {timeout or LONGEST} s")
        code = 1 if result.exit_code is None else result.exit_code
        return ExecResult(code == 0, code, result.output, "")

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        path = str(Path(WORK_DIR, file))
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
        _check_file(path, await self._run(["/bin/sh", "-c", script, "sh", path], stdin=data))

    async def read_file(self, file: str, text: bool = True) -> Any:
        path = str(Path(WORK_DIR, file))
        largest = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        script = ["/bin/bash", "-c", READ, "bash", path, str(largest + 1)]
        result = await self._run(script, max_output=4 * (largest // 3 + 2))
        data = base64.b64decode(_check_file(path, result))
        if len(data) > largest:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def _run(self, argv: list[str], *, timeout: float | None = None, **options: Any) -> CommandResult:
        try:
            return await self.session.episode.sandbox.exec(argv, timeout=timeout or LONGEST, **options)
        except SandboxBroken as error:  # caused by the agent, so its score shows it
            return CommandResult(str(error), 137)


def _check_file(path: str, result: CommandResult) -> str:
    """The output of a program that read or wrote a file, or the exception that inspect_ai expects."""
    if result.exit_code == 0:
        return result.output
    kinds = {"No such file": FileNotFoundError, "Is a directory": IsADirectoryError}
    kind = next((kind for words, kind in kinds.items() if words in result.output), PermissionError)
    raise kind(f"{path}: {result.output.strip()[-400:]}")
