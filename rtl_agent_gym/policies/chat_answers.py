"""Read what chat services send: answers, streamed or not, become turns, and errors are classified.

What litellm reports is not always what the service sent, so the service's own response decides here:

- It turns every stop reason that it does not know into ``stop``, and adds ``stop`` to a stream that broke off. A
  provider that failed in the middle of a turn would then end the episode, as if the model were done.
- It chooses many of its exception classes by words in the message: a 502 whose body says ``invalid_request_error``
  becomes a `BadRequestError`, a refused connection or a missing key an `InternalServerError`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from ..errors import causes
from ..renderers import ModelTurn, ToolCall
from ..renderers.protocol import TOOL_NAME
from ..visible import visible
from .protocol import Usage

WITHHELD = "[the service's content filter withheld this answer]"
"""The text of a refusal if the service gives none."""

_CUT_OFF = {"length", "max_tokens", "MAX_TOKENS", "model_context_window_exceeded", "model_length"}
"""Stop reasons for a limit. ``model_context_window_exceeded`` is Anthropic's (docs.claude.com, handling stop
reasons) and Z.ai's, ``model_length`` Mistral's."""
_FILTERED = {"content_filter", "content_filtered", "refusal", "sensitive", "SAFETY", "guardrail_intervened"}
_BROKEN = {"error", "ERROR", "network_error", "abort", "aborted", "insufficient_system_resource"}
"""The service failed during its answer: OpenRouter, Cohere, Z.ai, vLLM, SGLang and DeepSeek."""

Kind = Literal["busy", "unresolved", "overflow", "filtered", "malformed", "never", "oversized", "refused"]
"""Why a request was not answered:

- ``busy``: a retry may work (408, 409, 425, 429, 5xx, no connection, timeout, an answer that breaks off);
- ``overflow``: the conversation does not fit into the model's context;
- ``filtered``: a content filter of the service withheld the answer, which then counts as a refusal;
- ``malformed``: the service cannot parse a call that the model wrote, which then counts as a malformed turn;
- ``unresolved``: its host name has no address, or no name server answers; a usage error unless it has answered before;
- ``never``: no request with these options will be answered (wrong key or no right to use it, no such model, no credit);
- ``oversized``: the request exceeds the size limit of, for example, a proxy in front of the service (413, but not the
  account's limit), to which a conversation may grow;
- ``refused``: the service refuses this request.

An error inside a streamed answer is ``malformed``, ``filtered`` or ``overflow`` by its code and message, otherwise
``busy``, since the service had begun to answer.
"""


class Failure(Exception):
    """A request was not answered. Its text is the service's message, on one line and safe to print."""

    def __init__(self, kind: Kind, words: str, retry_after: float | None = None, advice: str = "") -> None:
        super().__init__(words)
        self.kind: Kind = kind
        self.retry_after = retry_after
        """Seconds after which to retry, if the service requests a time."""
        self.advice = advice
        """What the caller can do about it."""


@dataclass(frozen=True)
class ChatAnswer:
    """A complete answer."""

    turn: ModelTurn
    cut_off: bool = False
    """Whether a token limit ended it."""
    refused: bool = False
    """Whether the model refused, or a content filter of the service withheld the answer. The turn then has no calls."""
    usage: Usage | None = None
    """None if the service does not report it."""


# ---- answers


@dataclass
class _Call:
    id: str | None
    name: str | None
    arguments: str | None


@dataclass
class Received:
    """The part of an answer that has arrived. If the answer fails, this part is still charged."""

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    calls: list[_Call] = field(default_factory=list)
    finish: str = ""
    """The service's stop reason."""
    reported: Any = None
    """litellm's object for the usage; None if the service has not reported it."""
    error: Exception | None = None
    """The exception that ended a streamed answer after its beginning, before litellm translated it."""
    _latest: dict[int, _Call] = field(default_factory=dict)

    def add(self, delta: Any) -> None:
        """Add a piece of a streamed message."""
        self.text += getattr(delta, "content", None) or ""
        self.thinking += getattr(delta, "reasoning_content", None) or ""
        for piece in getattr(delta, "tool_calls", None) or []:
            call = self._latest.get(piece.index)
            # Some services number all calls 0, but give each a different id.
            if call is None or (piece.id and call.id and piece.id != call.id):
                call = self._latest[piece.index] = _Call(None, None, "")
                self.calls.append(call)
            name, arguments = _function(piece)
            call.id = call.id or piece.id
            call.name = call.name or name
            call.arguments = (call.arguments or "") + (arguments or "")

    async def watch(self, stream: Any) -> AsyncIterator[Any]:
        """The same stream, recording what litellm drops: the text of a refusal, stop reasons that it does not know,
        the usage in chunks without text, and the service's own error.
        """
        try:
            async for chunk in stream:
                self.reported = getattr(chunk, "usage", None) or self.reported
                if choices := getattr(chunk, "choices", None):
                    self.finish = getattr(choices[0], "finish_reason", None) or self.finish
                    self.refusal += _refusal(getattr(choices[0], "delta", None))
                    if getattr(choices[0], "finish_reason", None) in _BROKEN:
                        choices[0].finish_reason = "stop"  # litellm would raise here, before the usage that follows
                yield chunk
        except Exception as error:
            if self.finish:
                return  # a connection that is lost after the reason to stop: the answer is complete
            self.error = error
            raise
        finally:
            # `close` is a coroutine function only in OpenAI's streams.
            close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
            if close is not None and inspect.isawaitable(closing := close()):
                await closing

    @property
    def usage(self) -> Usage | None:
        """The reported tokens. No prompt is empty, so litellm's 0 means that the service reports nothing."""
        prompt = getattr(self.reported, "prompt_tokens", None)
        if not prompt:
            return None
        details = getattr(self.reported, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        output = getattr(self.reported, "completion_tokens", None) or 0
        details = getattr(self.reported, "completion_tokens_details", None)
        thought = getattr(details, "reasoning_tokens", None) or 0
        if getattr(self.reported, "total_tokens", None) == prompt + output + thought:
            output += thought  # xAI and Vertex AI count thinking separately
        return Usage(int(prompt), int(output), int(cached), self.reported)

    def withheld(self, words: str) -> ChatAnswer:
        """The answer if a content filter ended the request with an error; `words` is its text if none arrived.

        Unreported tokens count as 0 here: services do not report the tokens of a prompt that they refuse.
        """
        turn = ModelTurn(self.thinking, self.text or words or WITHHELD)
        return ChatAnswer(turn, usage=self.usage or Usage(0, 0), refused=True)

    def malformed(self, words: str) -> ChatAnswer:
        """The answer if the service reports a call as an error. Tokens are counted as in `withheld`.

        The service's message replaces the call's arguments: it is not JSON, so nothing is run.
        """
        turn = ModelTurn(self.thinking, self.text, (ToolCall(TOOL_NAME, words),))
        return ChatAnswer(turn, usage=self.usage or Usage(0, 0))

    def answer(self) -> ChatAnswer:
        """The complete answer. Raises `Failure` if the service says that it failed during the answer."""
        if self.finish in _BROKEN:
            raise Failure("busy", f"the service stopped in the middle of its answer (finish_reason {self.finish})")
        if self.refusal or self.finish in _FILTERED:
            turn = ModelTurn(self.thinking, self.text or self.refusal or WITHHELD)
            return ChatAnswer(turn, refused=True, usage=self.usage)
        calls = tuple(ToolCall(call.name or "", call.arguments or "", call.id or "") for call in self.calls)
        turn = ModelTurn(self.thinking, self.text, calls)
        return ChatAnswer(turn, cut_off=self.finish in _CUT_OFF, usage=self.usage)


def read_answer(response: Any, received: Received) -> ChatAnswer:
    """Read an answer that was not streamed: litellm's response, into `received`.

    Raises:
        Failure: It contains no turn, or the service says that it failed during the answer.
    """
    received.reported = getattr(response, "usage", None)
    if not getattr(response, "choices", None):
        raise Failure("busy", "the response has no choices")
    choice = response.choices[0]
    message = choice.message
    extra = getattr(choice, "provider_specific_fields", None) or {}
    received.text = message.content or ""
    received.thinking = getattr(message, "reasoning_content", None) or ""
    received.refusal = _refusal(message)
    received.calls = [_Call(call.id, *_function(call)) for call in message.tool_calls or []]
    native = str(extra.get("native_finish_reason"))
    received.finish = native if native in _CUT_OFF | _FILTERED | _BROKEN else choice.finish_reason or ""
    return received.answer()


async def collect(stream: Any, received: Received) -> ChatAnswer:
    """Read a streamed answer to its end, and close it.

    Args:
        stream: litellm's wrapper of a stream.
        received: Receives what arrives, however this call ends.

    Raises:
        Failure: It ends without a stop reason of the service, or the service failed during the answer.
        OpenAIError: The connection was lost, or the service reports an error in the stream.
    """
    from litellm.litellm_core_utils.prompt_templates.common_utils import parse_content_for_reasoning

    if stream.completion_stream is not None:
        stream.completion_stream = received.watch(stream.completion_stream)
    else:  # not sent yet: litellm sends the request for the first chunk, and translates errors only there
        send = stream.make_call

        async def watched(**options: Any) -> AsyncIterator[Any]:
            return received.watch(await send(**options))

        stream.make_call = watched
    try:
        async with contextlib.aclosing(stream):
            async for chunk in stream:
                if chunk.choices:
                    received.add(chunk.choices[0].delta)
    finally:
        # litellm estimates a missing usage in what it yields; `chunks` contains the reported one.
        for chunk in stream.chunks:
            received.reported = getattr(chunk, "usage", None) or received.reported
    received.finish = received.finish or stream.received_finish_reason or ""
    if not received.finish:
        raise Failure("busy", "the stream ended before the answer was complete")
    if not received.thinking:  # for answers that are not streamed, litellm has already split the text
        thinking, text = parse_content_for_reasoning(received.text)
        received.thinking, received.text = thinking or "", text or ""
    return received.answer()


def _function(call: Any) -> tuple[str | None, str | None]:
    """Name and arguments of a call; a call of a custom tool, though none is declared, has an input instead."""
    function = getattr(call, "function", None) or getattr(call, "custom", None)
    arguments = getattr(function, "arguments", None) or getattr(function, "input", None)
    return getattr(function, "name", None), arguments


def _refusal(message: Any) -> str:
    extra = getattr(message, "provider_specific_fields", None) or {}
    found = getattr(message, "refusal", None) or extra.get("refusal")
    return found if isinstance(found, str) else ""


# ---- errors

MAX_WORDS = 400
"""Maximum characters of a service's message in ours."""

OVERFLOWS = (
    r"model'?s context (?:length|window|limit)|maximum (?:model|input) length",  # vLLM
    r"max_(?:completion_)?tokens must be at least 1, got -",  # vLLM, if nothing remains for an answer
    r"maximum context length|maximum allowed (?:input )?length",  # SGLang
    r"context_length_exceeded|context_window_exceeded|exceed_context_size",  # codes of OpenAI, OpenRouter, llama.cpp
    r"exceeds? (?:the |this )?(?:model'?s? )?(?:available )?context (?:length|limit|size|window)",  # OpenAI
    r"context size has been exceeded",  # llama.cpp, with status 500
    r"prompt\b.{0,40}\bis too long|input is too long for",  # Anthropic; Bedrock
    r"request exceeds the maximum (?:allowed number of bytes|size)|request_too_large",  # Anthropic, 413 above 32 MB
    r"ContextWindowExceededError",  # litellm's proxy, which puts its own class before the provider's message
    r"exceeded model token limit",  # Moonshot
    r"reduce the length of the (?:messages|input)",  # Groq
    r"prompt token count of \d+ exceeds|maximum prompt length is",  # GitHub Copilot; xAI
    r"should not exceed max_(?:num_tokens|seq_len)",  # TensorRT-LLM
    r"range of input length should be|prompt exceeds max length",  # DashScope; Z.ai
    r"prompt tokens \(\d+\) exceed model maximum",  # Bedrock Mantle
    r"prompt is greater than the context length|with context length of only|n_keep \(\d+\) >= n_ctx",  # LM Studio
    r"context window exceeds limit|prompt too long; exceeded",  # MiniMax; Ollama
)
"""Services' messages for a conversation that does not fit into the model's context, which litellm does not recognise,
or only with some statuses. Few services give a code, each a different one. The tests contain messages and sources."""

FILTERS = (
    # Azure OpenAI: 400 with code content_filter and innererror.code ResponsibleAIPolicyViolation
    # (github.com/openai/openai-agents-python/issues/806)
    r"content_filter|ResponsibleAIPolicyViolation|content management policy",
    r"content_policy_violation",  # OpenAI and OpenRouter, as a code
    r"flagged as potentially violating our usage policy",  # OpenAI, 400 with code invalid_prompt
    r"blocked by content filtering policy",  # Anthropic, 400 (github.com/anthropics/claude-code/issues/58367)
    r"requires moderation|input was flagged|flagged_input",  # OpenRouter, 403 (openrouter.ai/docs/errors)
    r"data_?inspection_?failed",  # DashScope, 400
)
"""Services' messages for an answer that a content filter withheld, each with its source."""

_BUSY = {408, 409, 425, 429}
_NEVER = {401, 402, 403, 404}
_FILTER_STATUSES = {400, 403, 422, 451}
_OVERFLOW = re.compile("|".join(OVERFLOWS), re.I)
_FILTER = re.compile("|".join(FILTERS), re.I)
_MALFORMED = re.compile(
    r"error parsing tool call"  # Ollama, 500 (github.com/ollama/ollama/issues/17638)
    r"|Failed to parse input at pos \d"  # llama.cpp, 500 (github.com/ggml-org/llama.cpp/issues/20761)
    r"|tool_use_failed|Failed to call a function"  # Groq, 400 (github.com/groq/groq-typescript/issues/28)
)
_NO_KEY = re.compile(r"missing credentials|missing [\w ]{0,30}api key|llm provider not provided|pip install", re.I)
_NO_CREDIT = re.compile(
    r"insufficient[_ ](?:quota|balance|credits?|funds)|credit balance is too low|payment required", re.I
)
_QUOTA = re.compile(r"exceeded your current quota", re.I)
_TOO_LARGE_FOR_ACCOUNT = re.compile(r"request too large for .{0,200}(?:tokens per min|TPM)", re.I | re.S)
_NO_TOOLS = re.compile(r"support.{0,20}\btools?\b|\btools?\b.{0,40}support", re.I)
_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)(?: \w+Error)?(?::| -)\s*)+")
_STATUS = re.compile(r"^Error code: \d+ - ")
_TAG = re.compile(r"<[^<>]{0,500}>")


def read_failure(library: Any, error: Exception, *, in_stream: Exception | None = None) -> Failure:
    """Classify an exception of litellm, the module `library`.

    `in_stream` is the exception before litellm translated it, if it ended a streamed answer after its beginning.
    """
    # litellm wraps errors of streamed answers in one that repeats every message and has no headers.
    error = getattr(error, "original_exception", None) or error
    if in_stream is not None:
        body = getattr(in_stream, "body", None)
        status = body.get("code") if isinstance(body, dict) else None
    elif (unresolved := _unresolved(error)) is not None:
        return Failure("unresolved", unresolved, advice="check --base-url, and this machine's network")
    else:
        status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    text = _text(error)
    words = _words(text, error)
    told = " ".join([words, *_codes(error), *_codes(in_stream)])
    if _MALFORMED.search(told):
        return Failure("malformed", words)
    # The answer began with 200, so an error in a stream may have no status.
    may_filter = status in _FILTER_STATUSES or (in_stream is not None and status is None)
    if may_filter and (_FILTER.search(told) or isinstance(error, library.ContentPolicyViolationError)):
        return Failure("filtered", words)
    from litellm.litellm_core_utils.exception_mapping_utils import ExceptionCheckers

    overflows = _OVERFLOW.search(told) or ExceptionCheckers.is_error_str_context_window_exceeded(told)
    if (overflows or isinstance(error, library.ContextWindowExceededError)) and status not in _NEVER | {429}:
        return Failure("overflow", words)
    if in_stream is not None:
        return Failure("busy", words)
    wait = requested_wait(_headers(error), limited=status == 429)
    kind = _kind(status, words, waits=wait is not None, page="<html" in text.lower())
    return Failure(kind, words, wait, _advice(status, words))


def _kind(status: int | None, words: str, *, waits: bool, page: bool) -> Kind:
    if status == 403 and page:
        return "refused"  # a firewall in front of the service, which may reject only this conversation
    if status in _NEVER or _NO_KEY.search(words) or _NO_CREDIT.search(words):
        return "never"
    if _QUOTA.search(words) and not waits and "retry" not in words.lower():
        return "never"  # limits per minute have the same message, but also a time to retry
    if _TOO_LARGE_FOR_ACCOUNT.search(words):
        return "refused"
    if status == 413:
        return "oversized"
    return "busy" if status is None or status in _BUSY or status >= 500 else "refused"


def _codes(error: Exception | None) -> Iterator[str]:
    """The codes and types of an error, and the class that a litellm proxy puts before its message.

    Not the whole body: some services repeat the conversation in it, which may contain any text.
    """
    yield str(error or "")[:200]
    body = getattr(error, "body", None)
    while isinstance(body, dict):
        yield from (body[name] for name in ("code", "type") if isinstance(body.get(name), str))
        body = body.get("error") or body.get("innererror") or body.get("inner_error")


def _advice(status: int | None, words: str) -> str:
    if "enable-auto-tool-choice" in words:
        return "start the server with these options, or use --no-tools"
    if _NO_TOOLS.search(words):
        return "use --no-tools if the model has no tools"
    return {
        401: "check --api-key, or the provider's environment variable",
        403: "the key has no right to use this model",
        404: "check the model's name and --base-url",
    }.get(status or 0, "")


def _text(error: Exception) -> str:
    """The service's words: the exception's message, or the whole body if it has none.

    openai 3 puts a body's words into its message only if the body is a JSON object with a text `message`.
    """
    text = _STATUS.sub("", _PREFIX.sub("", str(error).strip()))
    if re.fullmatch(r"Error code: \d+", text):
        body = next((body for cause in causes(error) if (body := getattr(cause, "body", None))), text)
        return body if isinstance(body, str) else json.dumps(body)
    return text


def _words(text: str, error: Exception) -> str:
    """The same in one short line without tags."""
    if re.fullmatch(r"(?:connection error\.?)?", text, re.IGNORECASE):
        *_, root = causes(error)
        text = f"no connection: {root}" if str(root) else f"no connection ({type(root).__name__})"
    elif text.startswith("Request timed out"):
        text = "no answer in time"
    text = _TAG.sub(" ", _message_in(text).split("\nTraceback", 1)[0])
    text = visible(" ".join(text.split()))
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"


def _message_in(text: str) -> str:
    """The message in a JSON body; other text unchanged."""
    start = text.find("{")
    if start < 0 or text[:start].strip() not in ("", "b'"):
        return text
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (RecursionError, ValueError):
        return text
    while isinstance(found, dict):
        inner = found.get("error") or found.get("message") or found.get("detail")
        if inner is None:
            return text
        found = inner
    return found if isinstance(found, str) else json.dumps(found)


def _unresolved(error: BaseException) -> str | None:
    """A message with the host that could not be resolved, and why; None if the error has another cause."""
    host = "of the service"
    for cause in causes(error):
        if type(cause).__name__ == "ConnectError" and hasattr(cause, "request"):  # of httpx or httpx2
            host = cause.request.url.host
        elif isinstance(cause, socket.gaierror):
            return f"the host {visible(host)} cannot be resolved ({cause.strerror})"
    return None


# ---- waits that services ask for

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_RESET = re.compile(r"(?:x-|anthropic-)?ratelimit-(?:reset(?:-[\w-]+)?|[\w-]+-reset)")
_LATER = 1e9
"""A number above this is a Unix time in seconds, or in milliseconds if it is above 1000 times this."""


def requested_wait(headers: Mapping[str, str], *, limited: bool, now: float | None = None) -> float | None:
    """Seconds after which a service asks for a retry; None if it gives no time.

    In this order: ``retry-after-ms``; ``retry-after``, in seconds or as an HTTP date (RFC 9110, section 10.2.3); the
    resets of rate limits: ``x-ratelimit-reset-requests`` and ``-tokens`` of OpenAI, Groq and Azure (durations such as
    ``6m0s`` and ``12ms``), ``anthropic-ratelimit-*-reset`` (RFC 3339), ``x-ratelimit-reset`` of OpenRouter
    (milliseconds since 1970) and ``ratelimit-reset`` (seconds). Of several resets, the latest of those whose
    ``remaining`` is 0 counts; if no ``remaining`` is given, the soonest. litellm reads only ``retry-after``.

    Args:
        headers: The headers of an answer, with names in lower case.
        limited: Whether the answer is a 429. Other answers also have the headers of rate limits, which do not tell when
            a failed service is back.
        now: The Unix time in seconds; None for the current time.
    """
    now = time.time() if now is None else now
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    if (found := _seconds(headers.get("retry-after", ""), now)) is not None:
        return found
    used_up: list[float] = []
    unknown: list[float] = []
    for name, value in headers.items() if limited else ():
        if _RESET.fullmatch(name) is None or (seconds := _seconds(value, now)) is None:
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is None:
            unknown.append(seconds)
        elif _number(remaining) == 0:
            used_up.append(seconds)
    return max(used_up) if used_up else min(unknown, default=None)


def _headers(error: Exception) -> dict[str, str]:
    response = getattr(error, "response", None)
    all_found = (getattr(response, "headers", None), getattr(error, "litellm_response_headers", None))
    return {str(name).lower(): str(value) for found in all_found for name, value in dict(found or {}).items()}


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(?:\.\d{0,9})?", text.strip()) else None


def _seconds(text: str, now: float) -> float | None:
    """The seconds from `now` to the time in a header's value; None if its form is unknown."""
    text = text.strip()
    if (number := _number(text)) is not None:
        if number > 1000 * _LATER:
            number /= 1000
        return max(0.0, number - now) if number > _LATER else number
    if text and (match := _DURATION.fullmatch(text)) is not None:
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
        return 3600 * hours + 60 * minutes + seconds + milliseconds / 1000
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            return max(0.0, read(text).timestamp() - now)
        except (ValueError, OverflowError):
            continue
    return None
