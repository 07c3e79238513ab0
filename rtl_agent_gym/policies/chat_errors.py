"""Classify the errors of a chat service.

litellm's exception classes are unreliable, since it often chooses them by words in the message: a 502 whose body says
``invalid_request_error`` becomes a `BadRequestError`, a refused connection an `InternalServerError`, a missing key
either. So errors are classified here by status and message:

- ``busy``: a retry may work (408, 409, 425, 429, 5xx, no connection, timeout);
- ``overflow``: the conversation does not fit into the model's context;
- ``never``: no request with these options will be answered (wrong key, no such model, no credit);
- ``refused``: the service refuses this request;
- ``conversation``: the service refuses the content of the conversation (a content filter).
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from ..visible import visible

Kind = Literal["busy", "overflow", "never", "refused", "conversation"]

MAX_WORDS = 400
"""Maximum characters of a service's message in ours."""

_BUSY = {408, 409, 425, 429}
_NEVER = {401, 402, 404}

_OVERFLOW = re.compile(
    "|".join(
        (
            r"maximum context length",  # OpenAI, vLLM, SGLang, Mistral, DeepSeek, Fireworks
            r"model'?s context (?:length|window|limit)",  # SGLang, vLLM, Together
            r"context_length_exceeded|context_window_exceeded|exceed_context_size",
            r"exceeds? (?:the |this )?(?:model'?s? )?(?:available )?context (?:length|limit|size|window)",
            r"maximum model length|maximum input length|maximum allowed (?:input )?length",  # vLLM, SGLang
            r"should not exceed max_(?:num_tokens|seq_len)",  # TensorRT-LLM
            r"prompt\b.{0,40}\bis too long|input is too long for",  # Anthropic, old vLLM, Bedrock
            r"input token count.{0,60}exceeds|maximum number of tokens allowed",  # Gemini
            r"prompt token count of \d+ exceeds|maximum prompt length is",  # Copilot, xAI
            r"input tokens exceed the configured limit|exceeded model token limit",  # OpenAI, Moonshot
            r"`inputs` tokens \+ `max_new_tokens` must be",  # TGI
            r"reduce the length of the (?:messages|input)",  # Groq, vLLM
            r"range of input length should be|prompt exceeds max length",  # DashScope, Z.ai
            r"max_(?:completion_)?tokens must be at least 1, got -",  # old vLLM: nothing is left for an answer
        )
    ),
    re.IGNORECASE,
)
_NO_KEY = re.compile(r"missing credentials|missing [\w ]{0,30}api key|llm provider not provided|pip install", re.I)
_NO_CREDIT = re.compile(
    r"insufficient[_ ](?:quota|balance|credits?|funds)|credit balance is too low|payment required", re.I
)
_QUOTA = re.compile(r"exceeded your current quota", re.I)
_TOO_LARGE_FOR_ACCOUNT = re.compile(r"request too large for .{0,200}(?:tokens per min|TPM)", re.I | re.S)
_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)(?: \w+Error)?(?::| -)\s*)+")
_STATUS = re.compile(r"^Error code: \d+ - ")
_TAG = re.compile(r"<[^<>]{0,500}>")


@dataclass(frozen=True)
class Failure:
    """Why a request was not answered."""

    kind: Kind
    words: str
    """The service's message, on one line and safe to print."""
    retry_after: float | None = None
    """Seconds after which to retry, if the service requests a time."""


def read_failure(library: Any, error: Exception) -> Failure:
    """Classify an exception of litellm.

    Args:
        library: The module ``litellm``.
        error: The exception.
    """
    words = _words(error)
    return Failure(_kind(library, error, words), words, _retry_after(error))


def _kind(library: Any, error: Exception, words: str) -> Kind:
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    if isinstance(error, library.ContentPolicyViolationError):
        return "conversation"
    overflowed = isinstance(error, library.ContextWindowExceededError) or _OVERFLOW.search(words)
    if overflowed and status not in _NEVER | {403, 429}:
        return "overflow"
    if status in _NEVER or _NO_KEY.search(words) or _NO_CREDIT.search(words):
        return "never"
    if _QUOTA.search(words) and _retry_after(error) is None and "retry" not in words.lower():
        return "never"  # limits per minute have the same words, but also a time to retry
    if _TOO_LARGE_FOR_ACCOUNT.search(words):
        return "refused"
    return "busy" if status is None or status in _BUSY or status >= 500 else "refused"


def _retry_after(error: Exception) -> float | None:
    """Seconds from the header ``retry-after-ms``, or ``retry-after``, which holds seconds or a date."""
    headers: dict[str, str] = {}
    response = getattr(error, "response", None)
    for found in (getattr(response, "headers", None), getattr(error, "litellm_response_headers", None)):
        headers |= {str(name).lower(): str(value) for name, value in dict(found or {}).items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    except (KeyError, ValueError):
        return None


def _words(error: Exception) -> str:
    text = _PREFIX.sub("", str(error).strip())
    text = _STATUS.sub("", text)
    if re.fullmatch(r"(?:connection error\.?)?", text, re.IGNORECASE):
        text = _root(error)
    elif text.startswith("Request timed out"):
        text = "no answer in time"
    text = _message_in(text).split("\nTraceback", 1)[0]
    if "<" in text:
        text = _TAG.sub(" ", text)
    text = visible(" ".join(text.split()))
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"


def _root(error: BaseException) -> str:
    """The operating system's message, at the end of the chain of causes."""
    seen: set[int] = set()
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    return f"no connection: {error}" if str(error) else f"no connection ({type(error).__name__})"


def _message_in(text: str) -> str:
    """The message in a JSON body; other text unchanged."""
    start = text.find("{")
    if start < 0 or text[:start].strip() not in ("", "b'"):
        return text
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
    except ValueError:
        return text
    while isinstance(found, dict):
        inner = found.get("error") or found.get("message") or found.get("detail")
        if inner is None:
            return text
        found = inner
    return found if isinstance(found, str) else json.dumps(found)
