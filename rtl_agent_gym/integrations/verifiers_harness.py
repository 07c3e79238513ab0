"""The harness that plays an episode for verifiers, in its process, and the state that it shares with the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from pydantic import Field, PrivateAttr
from verifiers.v1.harnesses.utils.compaction import is_context_overflow

from ..errors import SandboxError, UsageError
from ..policies.chat_answers import WITHHELD
from ..renderers import ToolCall
from ..renderers.protocol import TOOL
from .session import ToolSession


class CVDPState(vf.State):
    """What a rollout's hooks share."""

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
    """Machine faults as verifiers knows them: on the trace, without a reward, and retried if retries are asked for."""
    try:
        yield
    except SandboxError as error:
        raise vf.SandboxError(f"{type(error).__name__}: {error}") from error


class CVDPHarnessConfig(vf.HarnessConfig):
    """The options that every harness has."""


class CVDPHarness(vf.Harness[CVDPHarnessConfig]):
    """Plays the turns, in this process. The model's commands run in the episode's container, never in the runtime."""

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
                    raise  # verifiers knows why
                choice = answer.choices[0]
                with machine_faults():
                    replies = await play_turn(session, choice)
                said = {"content": "", **choice.message.model_dump(exclude_none=True)}  # services want it in each turn
                messages += [said, *replies]
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
    ids = [call.id for call in made]
    calls = [ToolCall(call.function.name, call.function.arguments) for call in made]
    turn = await session.act(refused or calls or message.content or "", cut_off=choice.finish_reason == "length")
    texts = turn.replies(len(calls))
    if not calls:
        return [] if session.over else [{"role": "user", "content": texts[0]}]
    return [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in zip(ids, texts, strict=True)]
