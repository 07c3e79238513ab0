"""Episodes for inspect_ai: ``inspect eval rtl_agent_gym/cvdp``; a task, its sandbox, its solver and its scorer.

The sandbox of a sample is its episode: `ToolSession` starts with the sample and ends with it. `shell_agent` plays the
turns, so that limits, submissions and malformed calls are those of `EpisodeConfig`; other solvers can use the sandbox,
too. `hidden_tests` grades the files that are there.

A `SandboxError` passes through unchanged: the sample has an error and no score; ``--retry-on-error`` begins it anew.
"""

from __future__ import annotations

import json
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, accuracy, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo
from inspect_ai.util import sandbox

from ..episodes.rules import EpisodeConfig
from ..episodes.tools import tool_opening
from ..policies.chat_answers import WITHHELD
from ..problems import Problem
from ..problems.cvdp_notes import Rows
from ..renderers import ToolCall
from ..renderers.protocol import TOOL
from .inspect_sandbox import NAME, EpisodeSandbox
from .lookup import choose_problems
from .session import ToolSession, require_shell


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
        ids: Of these, all by default.
        categories: Of these, all by default.
        difficulties: Of these, all by default.
        rows: ``"fair"``, ``"partial"`` or ``"sound"`` for rows of CVDP that are known to be so, or better.
        rules: Options of `EpisodeConfig`, such as ``max_turns`` and ``command_timeout``.
    """
    config = require_shell(EpisodeConfig().with_options(**rules))
    chosen = {"ids": ids, "categories": categories, "difficulties": difficulties}
    several = {name: _several(value) for name, value in chosen.items()}
    source, found = choose_problems(problems, rows=rows, options=config.grading, **several)
    return Task(
        dataset=MemoryDataset([_sample(problem, config, source, rules) for problem in found], name=source),
        solver=shell_agent(),
        scorer=hidden_tests(),
        sandbox=NAME,
    )


def _several(value: str | list[str] | None) -> list[str] | None:
    return [value] if isinstance(value, str) else value


def _sample(problem: Problem, config: EpisodeConfig, source: str, rules: dict[str, Any]) -> Sample:
    """A problem as logs hold it: without hidden tests and solution."""
    kinds: dict[str, type[ChatMessage]] = {"system": ChatMessageSystem, "user": ChatMessageUser}
    messages: list[ChatMessage] = [
        kinds[message["role"]](content=message["content"]) for message in tool_opening(problem, config).messages
    ]
    about = {"category": problem.category, "difficulty": problem.difficulty}
    return Sample(id=problem.id, input=messages, metadata={**about, "problems": source, "rules": rules})


def _session() -> ToolSession:
    """The episode of the current sample."""
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
    """The official verdict as ``passed`` (0 or 1), and the reward; all other numbers are in the score's metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        result = await _session().finish("max_turns")
        return Score(
            value={"passed": float(result.score.passed), "reward": result.reward},
            explanation=result.score.reason or "all tests passed",
            metadata={"stop_reason": result.stop_reason, **result.numbers},
        )

    return score
