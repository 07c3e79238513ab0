"""A third-party agent's conversations with a model, as append-only token streams.

An agent sends its whole history with each request. As long as the history is the previous request, the model's answer
and new messages, the token stream continues: sampled tokens stay unchanged, and only new messages are rendered. So a
conversation that only grows is one training example. If the history differs, by compaction, by repaired calls or by a
sub-agent with another system prompt, another stream of the same episode begins, and the reason is counted.
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
"""Why a stream after the first began, in this order: different tools; a different first message, such as a new system
prompt or a sub-agent's; an answer of the model was changed or left out; another message was; a request was repeated
after its answer; the family's template cannot continue the turn; another request was still being answered."""
BREAKS: tuple[Break, ...] = get_args(Break)
Finish = Literal["stop", "tool_calls", "length"]
Message = Mapping[str, Any]
_LONGEST_TOKEN = 32
"""Upper bound on the average number of characters per token in a long text."""
_ESCAPED = 6
"""Maximum bytes of a character in JSON."""
_MOST_FIELDS = 4
"""Maximum number of object fields in a request, per token of the context."""


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
    """All messages so far, including the model's answers."""
    turn: str = ""
    """The last sampled turn, coded; empty until it is sampled."""
    reason: Break | None = None
    """Why the stream began; None for the first stream."""
    busy: bool = False

    @property
    def sampled(self) -> bool:
        """Whether it contains an answer of the model."""
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
        """The answer as OpenAI's assistant message."""
        return assistant_message(self.turn)


@dataclass
class TokenStreams:
    """The streams of one episode."""

    policy: TokenSamplerPolicy
    dialect: ChatDialect
    seed: int | None = None
    """The episode's seed, from which each turn's is derived; None for no seed."""
    streams: list[Stream] = field(default_factory=list)
    """In the order of their first requests."""
    breaks: Counter[Break] = field(default_factory=Counter)
    turns: int = 0
    last: Answer | None = None
    read: int = 0
    """Total tokens of all prompts."""
    written: int = 0
    """Total tokens sampled."""
    failure: Exception | None = None
    """The model's last exception; all other exceptions of `answer` have other causes."""
    rendering: float = 0.0
    """CPU seconds spent on rendering the last request; meanwhile no other episode's request is read."""

    async def answer(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), most: int | None = None
    ) -> Answer:
        """Sample the answer to OpenAI's messages and tools, with at most `most` tokens and within the policy's limit.

        Raises:
            ContextFull: There is no room for another turn.
            UsageError: The messages do not have this form, or contain something other than text.
            Exception: As `TokenSamplerPolicy.request`; also stored in `failure`.
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
        stream.transcript.add_action(ids, logprobs)  # after parsing: only what became a turn is trained on
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
        """The stream that a request continues, extended by its new messages; or a new stream."""
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
        """The result of `_place`, and the new tokens. Raises `ContextFull` if the context has no room for these and
        `room` more (None for no check); nothing of the request is then kept.
        """
        limit = self.policy.options.max_context
        began = time.thread_time()
        try:
            stream, text, reason = self._place(messages, tools)
            if len(text) > _LONGEST_TOKEN * limit:  # encoding it would only waste time
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
        return ContextFull(  # begins like OpenAI's message, from which agents learn to shorten the conversation
            f"This model's maximum context length is {limit} tokens: there is no room for another turn. "
            "Please reduce the length of the messages."
        )

    def check_length(self, body: bytes) -> None:
        """Raise `ContextFull` for a request body that is far too long: reading it would delay all episodes."""
        if len(body) > _ESCAPED * _LONGEST_TOKEN * self.policy.options.max_context:
            raise self._full()

    def check_entries(self, body: Mapping[str, Any]) -> None:
        """Raise `ContextFull` for a request with more messages, items and parts than the context has tokens.

        Each takes at least one token. Reading so many, or more than `_MOST_FIELDS` per token, would delay all episodes.
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
        """Raise `ContextFull` for a request that is far too long: rendering it would delay all episodes."""
        most = _LONGEST_TOKEN * self.policy.options.max_context
        found = sum(_LONGEST_TOKEN + len(text_of(message)) for message in messages)  # each takes a token
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
        """The stream that a request continues, its new messages, coded, and None.

        If no stream continues: None, the whole prompt, coded, and the reason (None for the first stream).
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
        """Why no stream continues: the difference from the stream with the longest common beginning."""
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
    """The parts by which messages are compared; not thinking, which agents leave out, nor the ids of calls."""
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
    """A transcript without the tokens after the last answer, which the model never read."""
    data = transcript.to_json()
    return TokenTranscript.from_json(data if data[-1]["sampled"] else data[:-1])
