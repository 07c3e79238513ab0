"""Episodes for verifiers 0.4 and prime-rl: a taskset, its task, the harness that plays it, and their environment.

``vf-eval rtl_agent_gym_verifiers`` runs them; that module exists because an id in verifiers cannot contain dots.

::

    Task.setup ──► ToolSession ──► Harness.launch ──► Task.finalize ──► rewards, metrics ──► Harness.cleanup
                   starts          plays the turns    grades                                 closes

The session is in the trace's `CVDPState`. The harness requests each turn from verifiers' own endpoint, so traces,
tokens, limits and retries work as usual in verifiers. Messages are only appended, and the tool is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from pydantic import Field, PrivateAttr
from verifiers.v1.harnesses.utils.compaction import is_context_overflow

from ..episodes.prompt import tool_opening
from ..episodes.rules import EpisodeConfig
from ..episodes.turns import StopReason
from ..errors import SandboxError, UsageError
from ..policies.chat_answers import WITHHELD
from ..problems.notes import Rows
from ..renderers import ToolCall
from ..renderers.protocol import TOOL
from .session import ToolSession, choose_problems, find_problem


class CVDPState(vf.State):
    """State shared by a rollout's hooks."""

    numbers: dict[str, float] = Field(default_factory=dict)
    """See `result_numbers`; empty until graded."""
    _session: ToolSession | None = PrivateAttr(None)

    @property
    def session(self) -> ToolSession:
        """The episode. Raises `UsageError` before the task's setup."""
        if self._session is None:
            raise UsageError("the task has not been set up: this harness plays the tasks of rtl_agent_gym only")
        return self._session


@contextmanager
def machine_faults() -> Iterator[None]:
    """Raise a machine fault as verifiers' own error: recorded on the trace, without a reward, retried if configured."""
    try:
        yield
    except SandboxError as error:
        raise vf.SandboxError(f"{type(error).__name__}: {error}") from error


class CVDPHarnessConfig(vf.HarnessConfig):
    """Only the options that every harness has."""


class CVDPHarness(vf.Harness[CVDPHarnessConfig]):
    """Plays the turns in this process. Commands run in the episode's container, never in verifiers' runtime."""

    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        session: ToolSession = trace.state.session
        system, user = self.resolve_text_prompt(data)
        tools: list[Any] = [TOOL]
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
            while not session.over:
                try:
                    answer = await client.chat.completions.create(model=ctx.model, messages=messages, tools=tools)
                except APIStatusError as error:
                    if trace.stop_condition is None and is_context_overflow(error):
                        trace.stop("max_total_tokens")
                        break
                    raise  # from verifiers' own endpoint, which knows the cause
                choice = answer.choices[0]
                with machine_faults():
                    replies = await play_turn(session, choice)
                message = {"content": "", **choice.message.model_dump(exclude_none=True)}  # services require content
                messages += [message, *replies]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    async def cleanup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if trace.state._session is not None:
            await trace.state._session.close()


async def play_turn(session: ToolSession, choice: Any) -> list[dict[str, str]]:
    """Play the choice of a chat completion, and return the messages that reply to it.

    A refusal, or an answer that a content filter withheld, is a final answer.
    """
    message = choice.message
    refused = message.refusal or (WITHHELD if choice.finish_reason == "content_filter" else "")
    made = [] if refused else message.tool_calls or []
    calls = [ToolCall(call.function.name, call.function.arguments) for call in made]
    turn = await session.act(refused or calls or message.content or "", cut_off=choice.finish_reason == "length")
    texts = turn.replies(len(calls))
    if not calls:
        return [] if session.over else [{"role": "user", "content": texts[0]}]
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(made, texts, strict=True)]


class CVDPData(vf.TaskData):
    """A problem as traces and environment servers see it: without hidden tests and solution."""

    problems: str = "bundled"
    """The source that contains `id`; see `load_problems`."""


DEFAULTS = EpisodeConfig()


class CVDPTaskConfig(vf.TaskConfig):
    """Rules of an episode, ``--env.taskset.task.…``; see `EpisodeConfig`."""

    max_turns: int = DEFAULTS.max_turns
    max_malformed: int = DEFAULTS.max_malformed
    command_timeout: float = DEFAULTS.command_timeout
    max_output: int = DEFAULTS.max_output
    scoring_timeout: float = DEFAULTS.scoring_timeout
    harness_feedback: int = DEFAULTS.harness_feedback
    progress_coef: float = DEFAULTS.progress_coef
    turn_rewards: Literal["none", "submissions", "files"] = "none"
    """Records the reward of each turn in the trace's ``info["turn_rewards"]``."""
    turn_grading_time: float | None = DEFAULTS.turn_grading_time
    transcript_dir: Path | None = None

    def rules(self) -> EpisodeConfig:
        """The rules. Raises `UsageError` if a value is out of range."""
        turns = {"turn_rewards": self.turn_rewards, "turn_grading_time": self.turn_grading_time}
        return EpisodeConfig.from_record(self.model_dump(), transcript_dir=self.transcript_dir, **turns)


class CVDPTasksetConfig(vf.TasksetConfig):
    """Which problems to load, ``--env.taskset.…``. ``--select.include.ids`` selects by id."""

    problems: str = "bundled"
    """A path, a Hugging Face id, or ``"bundled"``."""
    categories: list[str] | None = None
    difficulties: list[str] | None = None
    rows: Rows = "all"
    """``fair``, ``partial`` or ``sound`` keeps only rows of CVDP that are known to be at least that good."""
    task: CVDPTaskConfig = CVDPTaskConfig()


class CVDPTask(vf.Task[CVDPData, CVDPState, CVDPTaskConfig]):
    """A problem: its setup, its grading, its reward."""

    @property
    def key(self) -> str:
        return str(self.data.id)

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if not isinstance(trace.agent.config.harness, CVDPHarnessConfig):
            raise UsageError("these tasks are played by their own harness; leave out --env.agent.harness.id")
        problem = await asyncio.to_thread(find_problem, self.data.problems, self.key)
        trace.state._session = session = ToolSession(problem, self.config.rules())
        with machine_faults():
            await session.start()

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Grade the current files. A limit or time-out of verifiers may have ended the episode."""
        reason: StopReason = "max_tokens" if "token" in str(trace.stop_condition) else "max_turns"
        with machine_faults():
            result = await trace.state.session.finish(reason)
        trace.state.numbers = result.numbers
        trace.info |= {"stop_reason": result.stop_reason, "score": result.score.model_dump(mode="json")}
        if result.turn_rewards:
            trace.info["turn_rewards"] = list(result.turn_rewards)

    @vf.reward
    async def hidden_tests(self, trace: vf.Trace) -> float:
        """The reward of the episode."""
        return float(trace.state.numbers["reward"])

    @vf.metric
    async def outcome(self, trace: vf.Trace) -> dict[str, float]:
        """All numbers of the episode except the reward."""
        return {name: value for name, value in trace.state.numbers.items() if name != "reward"}


class CVDPTaskset(vf.Taskset[CVDPTask, CVDPTasksetConfig]):
    """The problems that can be scored here."""

    def load(self) -> Iterator[CVDPTask]:
        config = self.config
        chosen = {"categories": config.categories, "difficulties": config.difficulties}
        rules = config.task.rules()
        source, found, _ = choose_problems(config.problems, rows=config.rows, **chosen)
        for problem in found:
            *system, user = (message["content"] for message in tool_opening(problem, rules).messages)
            data = CVDPData(
                id=problem.id,
                name=problem.id,
                description=f"{problem.category}, {problem.difficulty}",
                prompt=user,
                system_prompt=system[0] if system else None,
                problems=source,
            )
            yield CVDPTask(data, config.task)


class CVDPEnvironmentConfig(vf.EnvConfig):
    """One agent. Nothing runs in its runtime, which is a local folder here; verifiers' default is a cloud service."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class CVDPEnvironment(vf.Env[CVDPEnvironmentConfig]):
    """One agent plays each task once."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
