"""Translates the exceptions of tinker's SDK to ours.

=============================================  ==============================================  =========
the service reports                            becomes                                         exit code
=============================================  ==============================================  =========
401, 403, a malformed key                      `UsageError` that names ``TINKER_API_KEY``      2
400, 404, 422 when a model is requested        `UsageError` that names the option              2
400, 404, 422, a failure in category "user"    `RequestRefused`: costs one episode             –
402                                            `ServiceDown`                                   3
408, 409, 410, 429, 5xx, no connection, …      `ServiceError`: retried, then a fault           –
no answer within the run's waiting time        `ServiceDown`                                   3
=============================================  ==============================================  =========
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import httpx
import tinker
from tinker.types import RequestErrorCategory

from ..errors import RequestRefused, RTLGymError, ServiceDown, ServiceError, UsageError

REFUSALS = (400, 404, 405, 413, 422)
"""HTTP statuses that the same request would get again."""


@dataclass(frozen=True)
class Request:
    """Describes a request in error messages."""

    doing: str
    """Such as ``sampling``."""
    option: str | None = None
    """The option that names the requested thing; if the service refuses it, the option is wrong."""
    value: str = ""
    """The option's value."""
    refusable: bool = False
    """Whether it belongs to one episode. Then wrong usage, such as a too long prompt, costs only the episode."""


def translate(error: Exception, request: Request, *, remote: bool) -> RTLGymError | None:
    """Our exception for one that a request raised; None if it does not come from the service.

    Args:
        error: The exception.
        request: The request that raised it.
        remote: Whether it comes from the SDK, whose futures also raise plain `ValueError` and `RuntimeError`.
    """
    if isinstance(error, RTLGymError):
        return error if remote else _translate_local(error, request)
    if not remote and type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
        return UsageError(
            f"local_batch, local_batch_tokens: {request.doing}: the device has too little memory; choose smaller ones, "
            f"or local_gradient_checkpointing=true ({first_line(error)})"
        )
    failed = ServiceError(f"{request.doing}: {first_line(error)}")
    if isinstance(error, tinker.RequestFailedError):
        return _refused(error, request) if error.category is RequestErrorCategory.User else failed
    status = _status(error)
    if status in (401, 403) and (status == 401 or request.option is None):
        return UsageError(f"TINKER_API_KEY: the service does not accept the key: {first_line(error)}")
    if status == 402:
        return ServiceDown(f"{request.doing}: the account has a billing problem: {first_line(error)}")
    if status in REFUSALS or status == 403:
        return _refused(error, request)
    if status is not None or isinstance(error, (tinker.APIConnectionError, httpx.HTTPError, TimeoutError)):
        return failed
    if isinstance(error, tinker.APIResponseValidationError):
        return ServiceError(f"{request.doing}: the answer is not in Tinker's format: {first_line(error)}")
    if isinstance(error, tinker.TinkerError) and any(word in str(error).lower() for word in ("api_key", "credential")):
        return UsageError(f"TINKER_API_KEY: {first_line(error)}")
    if type(error).__module__.partition(".")[0] == "tinker":
        return failed
    if remote and isinstance(error, ValueError) and request.option is not None:
        return _refused(error, request)
    return failed if remote and isinstance(error, (ValueError, RuntimeError, AssertionError, OSError)) else None


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, with the operating system's reason if there is one."""
    text = str(error).strip().split("\n")[0].partition(" for self.request_id=")[0] or type(error).__name__
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.errno:
            reason = os.strerror(below.errno)
            return text if reason in text else f"{text.rstrip('.')} ({reason})"
        below = below.__cause__ or below.__context__
    return text


def _translate_local(error: RTLGymError, request: Request) -> RTLGymError:
    if isinstance(error, UsageError) and request.refusable:
        return RequestRefused(f"{request.doing}: {error}")
    if type(error) is UsageError and request.option is not None:
        return UsageError(f"{request.option}: {error}")
    return error


def _refused(error: Exception, request: Request) -> RTLGymError:
    if request.option is not None:
        return UsageError(f"{request.option}: the service refuses {request.value!r}: {first_line(error)}")
    return RequestRefused(f"{request.doing}: the service refuses the request: {first_line(error)}")


def _status(error: BaseException) -> int | None:
    """The HTTP status of an exception or of its cause."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, tinker.APIStatusError):
            return below.status_code
        below = below.__cause__
    return None
