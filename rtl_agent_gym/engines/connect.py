"""Connects to Tinker's service, or to a compatible one.

Before anything is created there: does it answer and accept the key, is the account's billing in order, and which models
does it have?
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import tinker
from tinker._client import AsyncTinker  # the public clients retry failures for minutes without reporting them
from tinker.types.client_config_request import ClientConfigRequest

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError
from .guarded import Requests
from .threads import in_thread
from .translation import Request, first_line, translate
from .watch import Notices, ShowLine, Watch

PROBE_TIMEOUT = 5.0
"""Seconds to wait for the answer to a small request."""


@dataclass
class Connection:
    """A service that has answered."""

    service: Any
    """A ``tinker.ServiceClient``. Its methods may block: call them in a thread."""
    requests: Requests
    contexts: Mapping[str, int | None] = field(default_factory=dict)
    """The service's models with their context lengths in tokens; empty if it does not list them."""
    base_url: str | None = None

    def check_model(self, option: str, model: str) -> None:
        """Raise `UsageError` if the service does not have the model."""
        if self.contexts and model not in self.contexts:
            near = difflib.get_close_matches(model, self.contexts, n=3, cutoff=0.3) or sorted(self.contexts)[:5]
            raise UsageError(f"{option}: the service has no model {model!r}; it has {', '.join(near)}, …")


class Probe:
    """Checks with one small request whether a service works. Calling it raises our exceptions."""

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url
        self.name = base_url or os.environ.get("TINKER_BASE_URL") or "Tinker's service"
        self.last_error: RTLGymError | None = None
        self.service: Any = None
        """The SDK's client, once there is one; it can check the account's billing too."""
        self._account_check: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Raises `UsageError`, `ServiceError` or `ServiceDown`."""
        try:
            await self._check_service()
            # The SDK's own check of the account: unlike its other requests, it is not retried on a billing problem.
            check = getattr(self.service, "_check_accessible", None)
            if check is not None:
                await self._check_account(check)
        except RTLGymError as error:
            self.last_error = error
            raise
        except Exception as error:
            self.last_error = self._translated(error)
            raise self.last_error from error

    def _translated(self, error: Exception) -> RTLGymError:
        if isinstance(error, tinker.NotFoundError):
            return UsageError(f"base_url: there is no Tinker service at {self.name}: {first_line(error)}")
        translated = translate(error, Request(f"base_url: {self.name}", "base_url", self.name), remote=True)
        # Not all are the SDK's own exceptions: while it connects, it turns a 402 into an AttributeError.
        return translated or ServiceError(f"base_url: {self.name}: {type(error).__name__}: {first_line(error)}")

    async def _check_service(self) -> None:
        timeout = httpx.Timeout(PROBE_TIMEOUT)
        async with (
            httpx.AsyncClient(timeout=timeout) as http,
            AsyncTinker(base_url=self._base_url, max_retries=0, timeout=timeout, http_client=http) as client,
        ):
            await client.service.client_config(request=ClientConfigRequest(sdk_version=tinker.__version__))

    async def _check_account(self, check: Callable[[], None]) -> None:
        if self._account_check is None or self._account_check.done():
            self._account_check = asyncio.ensure_future(in_thread(check))
        try:
            await asyncio.wait_for(asyncio.shield(self._account_check), PROBE_TIMEOUT)
        except TimeoutError:
            message = f"base_url: {self.name} did not answer within {PROBE_TIMEOUT:.0f} s"
            raise ServiceError(message) from None
        except tinker.NotFoundError:
            return  # the service does not offer this check


async def connect(base_url: str | None, show: ShowLine | None, patience: float) -> Connection:
    """Connect to the service.

    Args:
        base_url: Its address; None for Tinker's own.
        show: Shows the user that the service does not answer.
        patience: Seconds to keep trying.

    Raises:
        UsageError: The key is wrong, or there is no such service.
        ServiceDown: It does not answer, or the account has a billing problem.
    """
    notices, probe = Notices(show), Probe(base_url)
    requests = Requests(notices, Watch(probe, notices, patience), starting=True)
    request = Request("connecting", "base_url", probe.name)
    try:
        async with asyncio.timeout(patience):
            await requests.with_retries(request, probe)
            service: Any = tinker.ServiceClient(base_url=base_url)
            probe.service = service
            await requests.with_retries(request, probe)
    except TimeoutError:
        reason = probe.last_error or f"base_url: {probe.name} does not answer"
        raise ServiceDown(f"{reason}; given up after {patience:.0f} s") from None
    return Connection(service, requests, await _models(base_url, requests), base_url)


async def _models(base_url: str | None, requests: Requests) -> dict[str, int | None]:
    async def get_capabilities() -> Any:
        client = await in_thread(lambda: tinker.RestClient(base_url=base_url))
        return await client.get_server_capabilities()

    try:
        found = await requests.with_retries(Request("listing the service's models"), get_capabilities)
    except ServiceError as error:
        if isinstance(error.__cause__, tinker.NotFoundError):
            return {}
        raise
    return {one.model_name: one.max_context_length for one in found.supported_models if one.model_name}
