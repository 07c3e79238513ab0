"""Classify the errors of a chat service.

litellm's exception classes are unreliable, since it often chooses them by words in the message: a 502 whose body says
``invalid_request_error`` becomes a `BadRequestError`, a refused connection an `InternalServerError`, a missing key
either. So errors are classified here by status and message:

- ``busy``: a retry may work (408, 409, 425, 429, 5xx, no connection, timeout);
- ``overflow``: the conversation does not fit into the model's context (`chat_overflow`);
- ``filtered``: a content filter of the service withheld the answer, which is then its refusal;
- ``unresolved``: its host name has no address, or no name server answers; wrong usage unless it has answered before;
- ``never``: no request with these options will be answered (wrong key or no right to use it, no such model, no credit);
- ``oversized``: the request is larger than something in front of the service lets through (413, not by its account's
  limit), which a conversation that was short enough before may become;
- ``refused``: the service refuses this request.

An error inside a streamed answer has no status, since the answer began with 200. It is ``filtered`` or ``overflow`` by
its code and message, otherwise ``busy``, as the service answered until then.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from ..visible import visible
from .chat_overflow import says_overflow
from .chat_waits import requested_wait

Kind = Literal["busy", "unresolved", "overflow", "filtered", "never", "oversized", "refused"]

MAX_WORDS = 400
"""Maximum characters of a service's message in ours."""

_BUSY = {408, 409, 425, 429}
_NEVER = {401, 402, 403, 404}

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
"""How services word that a content filter withheld the answer, each with its source."""

_FILTER = re.compile("|".join(FILTERS), re.I)
_FILTER_STATUSES = {400, 403, 422, 451}
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


@dataclass(frozen=True)
class Failure:
    """Why a request was not answered."""

    kind: Kind
    words: str
    """The service's message, on one line and safe to print."""
    retry_after: float | None = None
    """Seconds after which to retry, if the service requests a time."""
    advice: str = ""
    """What the caller can do about it."""


def read_failure(library: Any, error: Exception, *, in_stream: Exception | None = None) -> Failure:
    """Classify an exception of litellm.

    Args:
        library: The module ``litellm``.
        error: The exception.
        in_stream: What it was before litellm translated it, if it ended a streamed answer after its beginning.
    """
    if in_stream is not None:
        error = getattr(error, "original_exception", None) or error  # litellm's wrapper writes every message twice
        return Failure(_kind_in_stream(library, error, in_stream), _words(error))
    if (unresolved := _unresolved(error)) is not None:
        return Failure("unresolved", unresolved, advice="check --base-url, and this machine's network")
    words, wait = _words(error), requested_wait(_headers(error), limited=_status(error) == 429)
    kind = _kind(library, error, words, waits=wait is not None)
    return Failure(kind, words, wait, _advice(_status(error), words))


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _kind(library: Any, error: Exception, words: str, *, waits: bool) -> Kind:
    status, page = _status(error), "<html" in str(error).lower()
    told = f"{words} {_codes(error)}"
    by_filter = status in _FILTER_STATUSES and _FILTER.search(told)
    if by_filter or isinstance(error, library.ContentPolicyViolationError):
        return "filtered"
    overflowed = isinstance(error, library.ContextWindowExceededError) or says_overflow(told)
    if overflowed and status not in _NEVER | {429}:
        return "overflow"
    if status == 403 and page:
        return "refused"  # a firewall in front of the service, which may dislike one conversation only
    if status in _NEVER or _NO_KEY.search(words) or _NO_CREDIT.search(words):
        return "never"
    if _QUOTA.search(words) and not waits and "retry" not in words.lower():
        return "never"  # limits per minute have the same words, but also a time to retry
    if _TOO_LARGE_FOR_ACCOUNT.search(words):
        return "refused"
    if status == 413:
        return "oversized"
    return "busy" if status is None or status in _BUSY or status >= 500 else "refused"


def _kind_in_stream(library: Any, error: Exception, raw: Exception) -> Kind:
    told = f"{_words(error)} {_codes(error)} {_codes(raw)}"
    body = getattr(raw, "body", None)
    code = body.get("code") if isinstance(body, dict) else None
    by_filter = _FILTER.search(told) or isinstance(error, library.ContentPolicyViolationError)
    if by_filter and (not isinstance(code, int) or code in _FILTER_STATUSES):
        return "filtered"
    overflowed = isinstance(error, library.ContextWindowExceededError) or says_overflow(told)
    return "overflow" if overflowed else "busy"


def _codes(error: Exception) -> str:
    """The codes and types of an error, and the class that a litellm proxy puts before its message.

    Not the whole body: some services repeat the conversation in it, which may hold any words.
    """
    found = [str(error)[:200]]
    body = getattr(error, "body", None)
    while isinstance(body, dict):
        found += [str(body[name]) for name in ("code", "type") if isinstance(body.get(name), str)]
        body = body.get("error") or body.get("innererror") or body.get("inner_error")
    return " ".join(found)


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


def _headers(error: Exception) -> dict[str, str]:
    """The headers of the answer, with names in lower case."""
    headers: dict[str, str] = {}
    response = getattr(error, "response", None)
    for found in (getattr(response, "headers", None), getattr(error, "litellm_response_headers", None)):
        headers |= {str(name).lower(): str(value) for name, value in dict(found or {}).items()}
    return headers


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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, down to the operating system's."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _root(error: BaseException) -> str:
    *_, error = _causes(error)
    return f"no connection: {error}" if str(error) else f"no connection ({type(error).__name__})"


def _unresolved(error: BaseException) -> str | None:
    """Which host could not be resolved, and why; None if that was not the fault."""
    host = "of the service"
    for cause in _causes(error):
        if isinstance(cause, httpx.ConnectError):
            host = cause.request.url.host
        elif isinstance(cause, socket.gaierror):
            return f"the host {visible(host)} cannot be resolved ({cause.strerror})"
    return None


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
