"""Plays scripts with inspect_ai's ``eval`` and its mock model; runs where inspect_ai is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalSample
from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput, get_model
from inspect_ai.model._call_tools import parse_tool_call
from inspect_ai.scorer import Score
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandbox,
)

from rtl_agent_gym.errors import SandboxLost
from rtl_agent_gym.integrations import inspect as adapter
from rtl_agent_gym.integrations.inspect import cvdp
from tests.integrations.conformance import Played, Script, gray, in_short, rules_of, told
from tests.integrations.started import episodes, start_faults
from tests.sandboxes.providers import kill


def output(turn: Any) -> ModelOutput:
    """A turn of a script as a provider of inspect_ai returns it."""
    if isinstance(turn, str):
        return ModelOutput.from_content("mockllm", turn)
    calls = [parse_tool_call(f"call_{number}", call.name, call.arguments) for number, call in enumerate(turn)]
    message = ChatMessageAssistant(content="", tool_calls=calls, source="generate")
    return ModelOutput(model="mockllm", choices=[ChatCompletionChoice(message=message, stop_reason="tool_calls")])


def evaluate(
    script: Script, folder: Path, *, faults: int = 1, more: dict[str, Any] | None = None, **options: Any
) -> EvalSample:
    """The sample of an evaluation, with more rules; the fault of a script happens in its first `faults` attempts."""
    left = faults

    def model(input: Any, tools: Any, choice: Any, config: Any) -> ModelOutput:
        nonlocal left
        assert [tool.name for tool in tools] == ["execute_bash"]
        number = 1 + sum(message.role == "assistant" for message in input)
        if number == script.fault_in and left > 0:
            left -= 1
            kill(episodes[-1].sandbox)
        return output(script.turns[number - 1])

    with tempfile.TemporaryDirectory() as logs:
        (log,) = inspect_eval(
            "rtl_agent_gym/cvdp",
            model=get_model("mockllm/model", custom_outputs=model, memoize=False),
            task_args={"ids": gray().id, **rules_of(script, folder), **(more or {})},
            log_dir=logs,
            display="none",
            fail_on_error=False,
            **options,
        )
        assert log.samples is not None
        (sample,) = list(log.samples)  # which are read from the log
    return sample


def play(script: Script, folder: Path) -> Played:
    sample = evaluate(script, folder)
    seen = observations(sample)
    if sample.error is not None:
        assert "SandboxLost" in sample.error.traceback, sample.error.traceback
        assert not sample.scores
        return Played(None, None, seen)
    score = score_of(sample)
    value = score.as_dict()
    numbers = {name: number for name, number in (score.metadata or {}).items() if name != "stop_reason"}
    return Played(float(str(value["reward"])), bool(value["passed"]), seen, numbers)


def observations(sample: EvalSample) -> tuple[str, ...]:
    """The replies to each turn with calls."""
    runs = groupby(sample.messages, key=lambda message: message.role)
    return tuple(in_short("\n".join(reply.text for reply in run)) for role, run in runs if role == "tool")


def retried(script: Script, folder: Path) -> dict[str, Any]:
    """The sample of a script with two retries, whose first attempt fails at its start and whose second has a fault."""
    start_faults.append(SandboxLost("no sandbox starts"))
    sample = evaluate(script, folder, retry_on_error=2)
    return {
        "error": sample.error and sample.error.message,
        "attempts": len(sample.error_retries or []) + 1,
        "passed": score_of(sample).as_dict()["passed"],
    }


def scored_on_error(script: Script, folder: Path) -> dict[str, Any]:
    """What a sample with a fault shows if errors are to be scored."""
    sample = evaluate(script, folder, score_on_error=True)
    return {
        "error": sample.error is not None,
        "scores": sample.scores or {},
        "last read": sample.messages[-1].role,
    }


def limited(script: Script, folder: Path, limit: str, value: int) -> dict[str, Any]:
    """The score of a sample that a limit of inspect_ai cuts off."""
    limits: dict[str, Any] = {f"{limit}_limit": value}
    sample = evaluate(script, folder, **limits)
    score = score_of(sample)
    return {"limit": sample.limit and sample.limit.type, "value": score.value, "metadata": score.metadata}


def rewarded_turns(script: Script, folder: Path) -> Any:
    """What the score says that each turn earned."""
    sample = evaluate(script, folder, more={"turn_rewards": "files", "turn_grading_time": None})
    return (score_of(sample).metadata or {}).get("turn_rewards")


def score_of(sample: EvalSample) -> Score:
    assert sample.error is None, sample.error.traceback
    assert sample.scores is not None
    return sample.scores["hidden_tests"]


def sandbox_methods(folder: Path) -> dict[str, Any]:
    """What a solver that knows only inspect_ai's sandboxes sees, and the verdict on the solution that it writes."""
    seen: dict[str, Any] = {}

    async def outcome(work: Awaitable[Any]) -> Any:
        try:
            result = await work
        except (OSError, OutputLimitExceededError, SandboxUserUnsupportedError) as error:
            return type(error).__name__
        return [result.success, result.returncode, result.stdout]

    @solver
    def prober() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            box = sandbox()
            seen["pwd"] = await outcome(box.exec(["pwd"]))
            seen["stdin, folder and variable"] = await outcome(
                box.exec(["sh", "-c", 'echo -n "$PWD $SEVEN $(cat)"'], input="given", cwd="rtl", env={"SEVEN": "seven"})
            )
            seen["status"] = await outcome(box.exec(["sh", "-c", "echo both; echo streams >&2; exit 3"]))
            seen["timeout"] = await outcome(box.exec(["sleep", "20"], timeout=1))
            with patch.object(adapter, "LONGEST", 2):
                try:
                    await box.as_type(adapter.EpisodeSandbox).exec(["sleep", "20"])
                except TimeoutError as error:
                    seen["no timeout"] = str(error)
            seen["user"] = await outcome(box.exec(["true"], user="root"))
            data = bytes(range(256)) * 5000
            await box.write_file("docs/deep/er.bin", data)
            seen["round trip"] = await box.read_file("/code/docs/deep/er.bin", text=False) == data
            seen["missing"] = await outcome(box.read_file("docs/none"))
            seen["folder"] = await outcome(box.read_file("docs"))
            with patch.object(SandboxEnvironmentLimits, "MAX_READ_FILE_SIZE", 10_000):  # its own takes seconds
                await box.write_file("docs/large", b"x" * 10_001)
                seen["large"] = await outcome(box.read_file("docs/large"))
                seen["endless"] = await outcome(box.read_file("/dev/zero"))
                await box.write_file("docs/large", b"x" * 10_000)
                seen["largest"] = len(await box.read_file("docs/large"))
            seen["forbidden"] = await outcome(box.write_file("/etc/passwd", "root"))
            for path, text in (gray().golden or {}).items():
                await box.write_file(path, text)
            return state

        return solve

    sample = evaluate(Script("probe", ()), folder, solver=prober())
    return seen | {"passed": score_of(sample).as_dict()["passed"]}


def refusals(several: list[dict[str, Any]]) -> list[str]:
    """What the task says to each of several arguments."""
    return [told(partial(cvdp, **arguments)) for arguments in several]
