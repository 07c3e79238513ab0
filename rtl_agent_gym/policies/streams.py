"""The conversations that somebody else's agent holds with a model, as streams of tokens that are only extended.

An agent sends its whole history with each request. As long as that is what it sent before, the model's own answer,
and something new, the stream of tokens is continued: what was sampled stays, and only what is new is rendered. So a
conversation that only grows is one training example. Whatever an agent rewrites, by compaction, by repairing calls or
by a sub-agent with another system prompt, begins another stream of the same episode, and the reason is counted.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, get_args

from ..errors import UsageError
from ..renderers import ModelTurn
from ..renderers.chat import ChatDialect, assistant_message, text_of
from ..renderers.transcript import TokenTranscript
from .protocol import InStream, smallest_turn
from .sampler import TokenSamplerPolicy

Break = Literal["tools", "conversation", "answer", "history", "repeated", "template", "parallel"]
"""Why a stream after the first began: other tools; another first message, as of a sub-agent or a new system prompt; an
answer of the model that was changed or left out; another message that was; a request that was sent again after its
answer; a turn that the family's template cannot continue; a request beside one that is still being answered."""
BREAKS: tuple[Break, ...] = get_args(Break)
Finish = Literal["stop", "tool_calls", "length"]
Message = Mapping[str, Any]
_LONGEST_TOKEN = 32
"""Characters of a token, on average over a long text, that no text reaches."""
_ESCAPED = 6
"""Bytes of a character in JSON, at most."""
_MOST_FIELDS = 4
"""Fields of objects for each token of the context, at most."""


class ContextFull(UsageError):
    """The model's context has no room for another turn."""


@dataclass(eq=False)
class Stream:
    """One conversation."""

    tools: Sequence[Message]
    prompt: str
    """The coded prompt of the last turn."""
    transcript: TokenTranscript
    messages: list[Message]
    """All messages so far, with the model's answers."""
    turn: str = ""
    """The last sampled turn, coded; empty until it is sampled."""
    reason: Break | None = None
    """Why it began; None for the first one."""
    busy: bool = False

    @property
    def sampled(self) -> bool:
        """Whether the model has answered in it."""
        return any(segment.sampled for segment in self.transcript.segments)


@dataclass(frozen=True)
class Answer:
    """An answer of the model."""

    turn: ModelTurn
    finish: Finish
    prompt_tokens: int
    output_tokens: int
    stream: InStream

    @property
    def message(self) -> dict[str, Any]:
        """OpenAI's message of the assistant."""
        return assistant_message(self.turn)


@dataclass
class TokenStreams:
    """The streams of one episode."""

    policy: TokenSamplerPolicy
    dialect: ChatDialect
    seed: int | None = None
    """Of the first turn; each turn has its own. None for any."""
    streams: list[Stream] = field(default_factory=list)
    """In the order of their first requests."""
    breaks: Counter[Break] = field(default_factory=Counter)
    turns: int = 0
    last: Answer | None = None
    read: int = 0
    """Tokens of all prompts."""
    written: int = 0
    """Tokens that were sampled."""
    failure: Exception | None = None
    """What the model raised last; nothing else that `answer` raises is its."""
    rendering: float = 0.0
    """Seconds of the processor that rendering the last request took, in which no other episode's request is read."""

    async def answer(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), most: int | None = None
    ) -> Answer:
        """Sample the answer to OpenAI's messages and tools: `most` tokens at most, besides the policy's own limit.

        Raises:
            ContextFull: There is no room for another turn.
            UsageError: The messages are not of this form, or something else than text.
            Exception: As `TokenSamplerPolicy.request`; it is `failure` then.
        """
        if not messages or messages[-1].get("role") == "assistant":
            raise UsageError("messages: the last message must be of the user or a tool")
        options = self.policy.options
        stream = self._continued(messages, tools)
        prompt_tokens = len(stream.transcript)
        room = options.max_context - prompt_tokens
        self.turns += 1
        seed = self.policy.seed_of(self.turns, self.seed)
        stream.busy = True
        try:
            limit = min(options.max_tokens, room, most or room)
            sequence = await self.policy.request(stream.transcript, self.dialect.stop, limit, seed)
        except Exception as error:
            self.failure = error
            raise
        finally:
            stream.busy = False
        ids = [int(token) for token in sequence.tokens]
        logprobs = None if sequence.logprobs is None else [float(value) for value in sequence.logprobs]
        coded = self.dialect.coded(ids)
        turn, complete = self.dialect.parse(stream.prompt, coded, tools)
        stream.transcript.add_action(ids, logprobs)  # not before: what is trained on has been a turn
        stream.turn = coded
        self.read, self.written = self.read + prompt_tokens, self.written + len(ids)
        id_ = f"call_{len(self.streams)}_{self.turns}_"
        calls = tuple(replace(call, id=f"{id_}{number}") for number, call in enumerate(turn.calls))
        place = InStream(self.streams.index(stream) + 1, stream.reason or "")
        finish: Finish = "length" if not complete else "tool_calls" if calls else "stop"
        self.last = Answer(replace(turn, calls=calls), finish, prompt_tokens, len(ids), place)
        stream.messages = [*messages, self.last.message]
        return self.last

    def transcripts(self) -> list[TokenTranscript]:
        """The tokens of each stream in which the model answered; each is one training example."""
        return [_without_end(stream.transcript) for stream in self.streams if stream.sampled]

    def numbers(self) -> dict[str, float]:
        """How many streams there are, and how many began for each reason."""
        broken = {f"tokens/breaks/{reason}": float(self.breaks[reason]) for reason in BREAKS if self.breaks[reason]}
        return {"tokens/streams": float(len(self.streams)), "tokens/breaks": float(self.breaks.total()), **broken}

    def count(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> int:
        """Number of tokens of a request's prompt. Raises like `answer`."""
        stream, _, _, ids = self._rendered(messages, tools, None)
        return len(ids) + (len(stream.transcript) if stream is not None and stream.sampled else 0)

    def _continued(self, messages: Sequence[Message], tools: Sequence[Message]) -> Stream:
        """The stream of a request, extended by what is new in it; or a new one."""
        least = smallest_turn(self.policy.options.max_tokens)
        stream, text, reason, ids = self._rendered(messages, tools, least)
        if stream is None:
            transcript = TokenTranscript(ids)
            self.streams.append(Stream(list(tools), text, transcript, list(messages), reason=reason))
            if reason is not None:
                self.breaks[reason] += 1
            return self.streams[-1]
        if not stream.sampled:
            stream.transcript, stream.prompt, stream.messages = TokenTranscript(ids), text, list(messages)
        elif len(messages) > len(stream.messages):
            stream.transcript.append(ids)
            stream.prompt, stream.turn = stream.prompt + stream.turn + text, ""
            stream.messages = list(messages)
        return stream

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Message], room: int | None
    ) -> tuple[Stream | None, str, Break | None, list[int]]:
        """What `_place` finds, and the tokens of what is new. Raises `ContextFull` if the context has no room for these
        and `room` others (None for no check). Nothing of the request is kept then.
        """
        limit = self.policy.options.max_context
        began = time.thread_time()
        try:
            stream, text, reason = self._place(messages, tools)
            if len(text) > _LONGEST_TOKEN * limit:  # encoding it would only take time
                raise self._full()
            ids = self.dialect.ids(text)
            before = len(stream.transcript) if stream is not None and stream.sampled else 0
            if room is not None and before + len(ids) + room > limit:
                raise self._full()
            return stream, text, reason, ids
        finally:
            self.rendering = time.thread_time() - began

    def _full(self) -> ContextFull:
        limit = self.policy.options.max_context
        return ContextFull(  # its beginning is OpenAI's, by which agents know that they must shorten the conversation
            f"This model's maximum context length is {limit} tokens: there is no room for another turn. "
            "Please reduce the length of the messages."
        )

    def check_length(self, body: bytes) -> None:
        """Raise `ContextFull` for the body of a request that is far too long: it would hold up all episodes."""
        if len(body) > _ESCAPED * _LONGEST_TOKEN * self.policy.options.max_context:
            raise self._full()

    def check_entries(self, body: Mapping[str, Any]) -> None:
        """Raise `ContextFull` for a request with more messages, items and parts than the context has tokens.

        Each takes at least one. Reading so many, or as many fields, would hold up all episodes.
        """
        left, rest = _MOST_FIELDS * self.policy.options.max_context, [body]
        while rest:
            value: Any = rest.pop()
            if isinstance(value, dict | list):
                left -= len(value) * (_MOST_FIELDS if isinstance(value, list) else 1)
                if left < 0:
                    raise self._full()
                rest += value.values() if isinstance(value, dict) else value

    def _check_size(self, messages: Sequence[Message], tools: Sequence[Message]) -> None:
        """Raise `ContextFull` for a request that is far too long: rendering it would hold up all episodes."""
        most = _LONGEST_TOKEN * self.policy.options.max_context
        found = sum(_LONGEST_TOKEN + len(text_of(message)) for message in messages)  # each has a token of its own
        names = ("reasoning_content", "tool_calls")
        rest = [*tools, *(message[name] for message in messages for name in names if message.get(name))]
        while rest and found <= most:
            value = rest.pop()
            found += 1 + (len(value) if isinstance(value, str) else 0)
            if isinstance(value, Mapping):
                rest += [*value, *value.values()]
            elif isinstance(value, list | tuple):
                rest += value
        if found > most:
            raise self._full()

    def _place(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[Stream | None, str, Break | None]:
        """The stream that a request continues, and what is new in it, coded.

        Or None, a whole prompt, and why no stream continues; None for the first.
        """
        self._check_size(messages, tools)
        normal = list(map(normalized, messages))
        for stream in reversed(self.streams):
            known = list(map(normalized, stream.messages))
            if stream.busy or known != normal[: len(known)] or list(stream.tools) != list(tools):
                continue
            new = messages[len(known) :]
            if not stream.sampled:
                return stream, self.dialect.opening(messages, tools), None  # its first request failed
            answered = stream.transcript.segments[-1].sampled
            if not answered and not new:
                return stream, "", None  # its last request failed
            if not (answered and new) or any(message["role"] == "assistant" for message in new):
                continue
            extension = self.dialect.extension(stream.prompt, stream.turn, new, tools, messages[: len(known)])
            if extension is None:
                return None, self.dialect.opening(messages, tools), "template"
            return stream, extension, None
        reason = self._reason(normal, tools) if self.streams else None
        return None, self.dialect.opening(messages, tools), reason

    def _reason(self, normal: Sequence[tuple[Any, ...]], tools: Sequence[Message]) -> Break:
        """Why no stream continues: what differs from the stream that agrees longest."""
        last = max(self.streams, key=lambda stream: _agreeing(list(map(normalized, stream.messages)), normal))
        known = list(map(normalized, last.messages))
        agreeing = _agreeing(known, normal)
        if not agreeing:
            return "conversation"
        if list(last.tools) != list(tools):
            return "tools"
        if last.busy:
            return "parallel"
        if agreeing == len(normal):
            return "repeated"
        of_model = agreeing < len(known) and last.messages[agreeing]["role"] == "assistant"
        return "answer" if of_model or agreeing == len(known) else "history"


def normalized(message: Message) -> tuple[Any, ...]:
    """What two messages are compared by. Thinking is no part of it, as agents leave it out, nor are a call's ids."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        with contextlib.suppress(RecursionError, ValueError):
            arguments = json.dumps(json.loads(arguments), sort_keys=True) if isinstance(arguments, str) else arguments
        calls.append((function.get("name"), arguments))
    return message.get("role"), text_of(message), tuple(calls), message.get("tool_call_id")


def _agreeing(one: Sequence[Any], other: Sequence[Any]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _without_end(transcript: TokenTranscript) -> TokenTranscript:
    """A transcript without what was appended after the last answer, which the model never read."""
    data = transcript.to_json()
    return TokenTranscript.from_json(data if data[-1]["sampled"] else data[:-1])
