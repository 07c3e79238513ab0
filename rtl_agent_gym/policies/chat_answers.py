"""Read the answers of chat services, streamed or not, into turns.

litellm turns every reason to stop that it does not know into ``stop``, and adds ``stop`` to a stream that broke off.
Taken at its word, a provider that failed in the middle of a turn would have ended the episode, as if the model were
done. So the service's own reason decides here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from ..renderers import ModelTurn, ToolCall
from .usage import Usage

WITHHELD = "[the service's content filter withheld this answer]"
"""The text of a refusal for which the service gives no words."""

_CUT_OFF = {"length", "max_tokens", "MAX_TOKENS", "model_context_window_exceeded", "model_length"}
"""Reasons to stop at a limit. ``model_context_window_exceeded`` is Anthropic's (docs.claude.com, handling stop
reasons) and Z.ai's, ``model_length`` Mistral's."""
_FILTERED = {"content_filter", "content_filtered", "refusal", "sensitive", "SAFETY", "guardrail_intervened"}
_BROKEN = {"error", "ERROR", "network_error", "abort", "aborted"}
"""The service failed during its answer: OpenRouter, Cohere, Z.ai, vLLM and SGLang."""


class IncompleteAnswer(Exception):
    """The answer breaks off; a retry may work."""


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    turn: ModelTurn
    cut_off: bool = False
    """Whether a token limit ended it."""
    refused: bool = False
    """Whether the model refused, or a content filter of the service withheld the answer. The turn then has no calls."""
    usage: Usage | None = None
    """None if the service does not report it."""
    reported: Any = None
    """litellm's object for `usage`, which its price list needs."""


@dataclass
class _Call:
    """A call, complete or still growing."""

    id: str | None
    name: str | None
    arguments: str | None


@dataclass
class _Parts:
    """The parts of a message."""

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    calls: list[_Call] = field(default_factory=list)
    _latest: dict[int, _Call] = field(default_factory=dict)

    def add(self, delta: Any) -> None:
        """Add a piece of a streamed message."""
        self.text += getattr(delta, "content", None) or ""
        self.thinking += getattr(delta, "reasoning_content", None) or ""
        for piece in getattr(delta, "tool_calls", None) or []:
            call = self._latest.get(piece.index)
            # Some services number all calls 0, and give each an id of its own.
            if call is None or (piece.id and call.id and piece.id != call.id):
                call = self._latest[piece.index] = _Call(None, None, "")
                self.calls.append(call)
            call.id = call.id or piece.id
            call.name = call.name or piece.function.name
            call.arguments = (call.arguments or "") + (piece.function.arguments or "")


@dataclass
class Received:
    """What has arrived of an answer. If the answer fails, this is what was paid for."""

    parts: _Parts = field(default_factory=_Parts)
    reported: Any = None
    """litellm's object for the usage; None if the service has not reported it."""
    error: Exception | None = None
    """What ended a streamed answer after its beginning, before litellm translated it."""

    @property
    def usage(self) -> Usage | None:
        """The reported tokens. No prompt is empty, so litellm's 0 means that the service reports nothing."""
        prompt = getattr(self.reported, "prompt_tokens", None)
        if not prompt:
            return None
        details = getattr(self.reported, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        return Usage(int(prompt), int(getattr(self.reported, "completion_tokens", None) or 0), int(cached))

    def withheld(self, words: str) -> Answer:
        """The answer of a content filter that ended the request with an error.

        What is not reported counts as 0 here: no service reports the tokens of a prompt that it refuses.

        Args:
            words: The service's message, which is the text if none arrived before.
        """
        turn = ModelTurn(self.parts.thinking, self.parts.text or words or WITHHELD)
        return Answer(turn, usage=self.usage or Usage(0, 0), reported=self.reported, refused=True)

    def answer(self, finish: str) -> Answer:
        """The complete answer, given the service's reason to stop. Raises as `read_answer`."""
        if finish in _BROKEN:
            raise IncompleteAnswer(f"the service stopped in the middle of its answer (finish_reason {finish})")
        parts = self.parts
        if parts.refusal or finish in _FILTERED:
            turn = ModelTurn(parts.thinking, parts.text or parts.refusal or WITHHELD)
            return Answer(turn, refused=True, usage=self.usage, reported=self.reported)
        calls = tuple(ToolCall(call.name or "", call.arguments or "", call.id or "") for call in parts.calls)
        turn = ModelTurn(parts.thinking, parts.text, calls)
        return Answer(turn, cut_off=finish in _CUT_OFF, usage=self.usage, reported=self.reported)


def read_answer(response: Any, received: Received) -> Answer:
    """Read an answer that was not streamed.

    Args:
        response: litellm's response.
        received: Gets what it holds.

    Raises:
        IncompleteAnswer: It holds no turn, or the service says that it failed during the answer.
    """
    received.reported = getattr(response, "usage", None)
    if not getattr(response, "choices", None):
        raise IncompleteAnswer("the response has no choices")
    choice = response.choices[0]
    message = choice.message
    extra = getattr(choice, "provider_specific_fields", None) or {}
    received.parts = _Parts(
        text=message.content or "",
        thinking=getattr(message, "reasoning_content", None) or "",
        refusal=_refusal(message),
        calls=[_Call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []],
    )
    return received.answer(extra.get("native_finish_reason") or choice.finish_reason)


async def collect(stream: Any, received: Received) -> Answer:
    """Read a streamed answer to its end, and close it.

    Args:
        stream: litellm's wrapper of a stream.
        received: Gets what arrives, however this call ends.

    Raises:
        IncompleteAnswer: It ends without the service's reason to stop, or the service failed during the answer.
        OpenAIError: The connection was lost, or the service reports an error in the stream.
    """
    watch = _Watch(received)
    if stream.completion_stream is None:
        await stream.fetch_stream()
    stream.completion_stream = watch.through(stream.completion_stream)
    try:
        async with contextlib.aclosing(stream):
            async for chunk in stream:
                if chunk.choices:
                    received.parts.add(chunk.choices[0].delta)
    finally:
        # litellm estimates a missing usage in what it yields; `chunks` holds what was reported.
        for chunk in stream.chunks:
            received.reported = getattr(chunk, "usage", None) or received.reported
    finish = watch.finish or stream.received_finish_reason
    if not finish:
        raise IncompleteAnswer("the stream ended before the answer was complete")
    return received.answer(finish)


@dataclass
class _Watch:
    """What litellm drops from a stream: the words of a refusal, reasons to stop that it does not know, the usage in
    chunks without text, and the service's own error.
    """

    received: Received
    finish: str = ""

    async def through(self, stream: Any) -> AsyncIterator[Any]:
        """The same stream."""
        try:
            async for chunk in stream:
                self.received.reported = getattr(chunk, "usage", None) or self.received.reported
                if choices := getattr(chunk, "choices", None):
                    self.finish = getattr(choices[0], "finish_reason", None) or self.finish
                    self.received.parts.refusal += _refusal(getattr(choices[0], "delta", None))
                    if getattr(choices[0], "finish_reason", None) == "error":
                        choices[0].finish_reason = "stop"  # litellm would raise here, before the usage that follows
                yield chunk
        except Exception as error:
            self.received.error = error
            raise
        finally:
            close = getattr(stream, "close", None) or getattr(stream, "aclose", None)
            if close is not None:
                await close()


def _refusal(message: Any) -> str:
    extra = getattr(message, "provider_specific_fields", None) or {}
    found = getattr(message, "refusal", None) or extra.get("refusal")
    return found if isinstance(found, str) else ""
