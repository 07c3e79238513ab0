"""Reaching Tinker's service, or one that speaks its language.

Three questions before anything is made there: does it answer and know the key, does the account's billing allow work,
and which models are there.
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
from tinker._client import AsyncTinker  # the public clients repeat what fails for minutes, without a word
from tinker.types.client_config_request import ClientConfigRequest

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError
from .guarded import Requests
from .threads import in_thread
from .translation import Request, first_line, translate
from .watch import Notices, Tell, Watch

PROBE_TIMEOUT = 5.0
"""Seconds that a service has for the answer to a small request."""


@dataclass
class Connection:
    """A service that has answered."""

    service: Any
    """A ``tinker.ServiceClient``. Its methods may block: call them in a thread."""
    requests: Requests
    contexts: Mapping[str, int | None] = field(default_factory=dict)
    """The models that it has, and how many tokens each takes; empty where it does not say."""
    base_url: str | None = None

    def check_model(self, option: str, model: str) -> None:
        """Raises `UsageError` for a model that the service does not have."""
        if self.contexts and model not in self.contexts:
            near = difflib.get_close_matches(model, self.contexts, n=3, cutoff=0.3) or sorted(self.contexts)[:5]
            raise UsageError(f"{option}: the service has no model {model!r}; it has {', '.join(near)}, …")


class Probe:
    """Asks a service for something small, once. Calling it raises what is wrong, in our exceptions."""

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url
        self.name = base_url or os.environ.get("TINKER_BASE_URL") or "Tinker's service"
        self.last: RTLGymError | None = None
        """What was wrong the last time."""
        self.service: Any = None
        """The client to ask about billing as well, once there is one."""
        self._account: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Raises `UsageError`, `ServiceError` or `ServiceDown`."""
        try:
            await self._reach()
            # The SDK's own check of the account, which unlike its other requests is not repeated on a billing problem.
            check = getattr(self.service, "_check_accessible", None)
            if check is not None:
                await self._check_account(check)
        except RTLGymError as error:
            self.last = error
            raise
        except Exception as error:
            self.last = self._translated(error)
            raise self.last from error

    def _translated(self, error: Exception) -> RTLGymError:
        if isinstance(error, tinker.NotFoundError):
            return UsageError(f"base_url: there is no Tinker service at {self.name}: {first_line(error)}")
        translated = translate(error, Request(f"base_url: {self.name}", "base_url", self.name), remote=True)
        # Not all are the SDK's own: while it connects, it turns a 402 into an AttributeError.
        return translated or ServiceError(f"base_url: {self.name}: {type(error).__name__}: {first_line(error)}")

    async def _reach(self) -> None:
        timeout = httpx.Timeout(PROBE_TIMEOUT)
        async with (
            httpx.AsyncClient(timeout=timeout) as http,
            AsyncTinker(base_url=self._base_url, max_retries=0, timeout=timeout, http_client=http) as client,
        ):
            await client.service.client_config(request=ClientConfigRequest(sdk_version=tinker.__version__))

    async def _check_account(self, check: Callable[[], None]) -> None:
        if self._account is None or self._account.done():
            self._account = asyncio.ensure_future(in_thread(check))
        try:
            await asyncio.wait_for(asyncio.shield(self._account), PROBE_TIMEOUT)
        except TimeoutError:
            message = f"base_url: {self.name} does not say within {PROBE_TIMEOUT:.0f} s what it can do"
            raise ServiceError(message) from None
        except tinker.NotFoundError:
            return  # a service without that question


async def connect(base_url: str | None, tell: Tell | None, patience: float) -> Connection:
    """Reach the service.

    Args:
        base_url: Where it is; None for Tinker's own.
        tell: Shows a person that it does not answer.
        patience: Seconds to go on trying.

    Raises:
        UsageError: The key is wrong, or there is no such service.
        ServiceDown: It does not answer, or the account's billing does not allow work.
    """
    notices, probe = Notices(tell), Probe(base_url)
    requests = Requests(notices, Watch(probe, notices, patience), starting=True)
    asked = Request("connecting", "base_url", probe.name)
    try:
        async with asyncio.timeout(patience):
            await requests.ask(asked, probe)
            service: Any = tinker.ServiceClient(base_url=base_url)
            probe.service = service
            await requests.ask(asked, probe)
    except TimeoutError:
        found = probe.last or f"base_url: {probe.name} does not answer"
        raise ServiceDown(f"{found}; given up after {patience:.0f} s") from None
    return Connection(service, requests, await _models(base_url, requests), base_url)


async def _models(base_url: str | None, requests: Requests) -> dict[str, int | None]:
    async def ask() -> Any:
        client = await in_thread(lambda: tinker.RestClient(base_url=base_url))
        return await client.get_server_capabilities()

    try:
        found = await requests.ask(Request("asking for the service's models"), ask)
    except ServiceError as error:
        if isinstance(error.__cause__, tinker.NotFoundError):
            return {}
        raise
    return {one.model_name: one.max_context_length for one in found.supported_models if one.model_name}
