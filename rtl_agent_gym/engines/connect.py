"""The engine of a run: the local one, or Tinker's service once it has answered.

Before anything is created at a service, it is checked that the service answers and accepts the key and that the
account's billing is in order; then the service's models are listed.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
import tinker
from tinker._client import AsyncTinker  # the public clients retry failures for minutes without reporting them
from tinker.types.client_config_request import ClientConfigRequest

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError
from ..visible import without_secrets
from .config import LocalEngineConfig
from .protocol import Sampler, Service, Trainer
from .requests import GuardedSampler, GuardedTrainer, Purpose, Requests, ShowLine, context_length, first_line, translate
from .threads import in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")
Status = Literal["success", "errored", "interrupted"]
"""How a session with a service ended, in the SDK's terms."""

PROBE_TIMEOUT = 5.0
"""Seconds to wait for the answer to a small request."""
CLOSE_TIMEOUT: dict[Status, float] = {"success": 30.0, "errored": 10.0, "interrupted": 0.5}
"""Seconds to wait for an engine to close, by how the run ended."""
DELETE_TIMEOUT = 30.0
"""Seconds to wait for a service to delete a checkpoint."""
RUNNING_PATIENCE = 10.0
"""Factor on the time to wait for a silent service once a run has begun."""


@dataclass
class Engine:
    """An engine behind guarded clients, with the few operations that differ between the local engine and a service."""

    service: Service
    kind: Literal["local", "tinker"]
    """With ``tinker``, methods of the service may block until it is connected, so they are called in a thread."""
    requests: Requests = field(default_factory=Requests)
    contexts: Mapping[str, int | None] = field(default_factory=dict)
    """A service's models with their context lengths in tokens; empty if it does not list them."""
    base_url: str | None = None
    _closed: bool = False

    async def close(self, status: Status) -> None:
        """End the session, and the engine's thread in this process. Idempotent.

        If that takes longer than `CLOSE_TIMEOUT`, it returns: the thread ends with the process, and the service ends
        sessions of silent clients by itself. Raises `ServiceError` if the service did not end the session.
        """
        end: Any = getattr(self.service, "close", None)
        if end is None or self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT[status]):
                with self.requests.translating(Purpose("closing the session")):
                    # This may block: the SDK holds a lock while it connects, and the local engine finishes its work.
                    ended = await in_thread(end if self.kind == "local" else lambda: end(status))
                    if ended is not None:
                        await ended
        except TimeoutError:
            logger.warning("the engine did not close within %.0f s", CLOSE_TIMEOUT[status])

    async def trainer(self, model: str, rank: int, seed: int, state: str | None, *, optimizer: bool) -> Trainer:
        """Create a trainer: new, or from a saved state, with the saved optimizer if requested.

        Once the run has begun, there is only one attempt: the call then belongs to a step, which is retried as a whole.
        Raises like `Requests.with_retries`; `UsageError` if there is no such model or state.
        """
        service, option = self.service, "load_checkpoint_path"
        if state is None:
            option = "student_model"
            self._check_model(option, model)
            create = partial(service.create_lora_training_client, model, rank, seed)
        elif optimizer:  # saved by the run in this folder
            option = "log_path"
            create = partial(service.create_training_client_from_state_with_optimizer, state)
        else:
            create = partial(service.create_training_client_from_state, state)
        purpose = Purpose("creating the trainer", option, state or model)
        client = await self._create(purpose, create, again=False)
        if state is not None and not optimizer:  # given by the user, not saved by this run
            with self.requests.translating(purpose):
                info = await in_thread(client.get_info)
            if (known := info.model_data.model_name) is not None and _comparable(known) != _comparable(model):
                raise UsageError(f"load_checkpoint_path: {state} is of the model {known}, but student_model is {model}")
            if self.kind == "local" and info.lora_rank != rank:
                raise UsageError(f"lora_rank: {rank} is not that of {state}; give lora_rank={info.lora_rank}")
        return GuardedTrainer(client, self.requests, self._context(client, model))

    async def sampler(self, path: str) -> Sampler:
        """Create a sampler of saved weights. Raises like `trainer`."""
        return await self._sampler(Purpose("creating a sampler", "checkpoint", path), None, model_path=path)

    async def published(self, option: str, model: str) -> Sampler:
        """Create a sampler of the model that an option names; of saved weights if `model` is a ``tinker://`` path."""
        purpose = Purpose(f"creating a sampler of {model}", option, model)
        if model.startswith("tinker://"):
            return await self._sampler(purpose, model, model_path=model)
        self._check_model(option, model)
        return await self._sampler(purpose, model, base_model=model)

    async def delete(self, path: str) -> None:
        """Delete saved weights that are no longer needed. A failure is only logged."""
        if self.kind == "local":
            shutil.rmtree(path, ignore_errors=True)
            return
        try:
            async with asyncio.timeout(DELETE_TIMEOUT):
                with self.requests.translating(Purpose("deleting a checkpoint")):
                    client = await in_thread(lambda: tinker.RestClient(base_url=self.base_url))
                    await client.delete_checkpoint_from_tinker_path(path)
        except (RTLGymError, TimeoutError) as error:
            logger.warning("%s was not deleted: %s", path, error)

    async def _sampler(self, purpose: Purpose, model: str | None, **place: str) -> Sampler:
        client = await self._create(purpose, partial(self.service.create_sampling_client, **place))
        return GuardedSampler(client, self.requests, self._context(client, model))

    def _check_model(self, option: str, model: str) -> None:
        if self.contexts and model not in self.contexts:
            near = difflib.get_close_matches(model, self.contexts, n=3, cutoff=0.3) or sorted(self.contexts)[:5]
            raise UsageError(f"{option}: the service has no model {model!r}; it has {', '.join(near)}, …")

    def _context(self, client: Any, model: str | None) -> int | None:
        if not self.contexts:
            return context_length(client)
        name = client.get_base_model() if hasattr(client, "get_base_model") else model
        return self.contexts.get(name or "")

    async def _create(self, purpose: Purpose, create: Callable[[], Awaitable[T]], *, again: bool = True) -> T:
        async def send() -> T:
            return await (create() if self.kind == "local" else await in_thread(create))

        return await self.requests.with_retries(purpose, send, again=again)


def local_engine(config: LocalEngineConfig) -> Engine:
    """The local engine. Raises `UsageError` if this machine does not have the device."""
    from .local import LocalServiceClient  # needs torch

    return Engine(LocalServiceClient(config), "local")


async def tinker_engine(base_url: str | None, show: ShowLine | None = None, patience: float = 60.0) -> Engine:
    """Connect to Tinker's service, or to a compatible one at `base_url`; try for `patience` seconds.

    Raises:
        UsageError: The key is wrong, or there is no such service at this address.
        ServiceDown: The service does not answer, or the account has a billing problem.
    """
    probe = Probe(base_url)
    requests = Requests(show, probe, patience, starting=True)
    purpose = Purpose("connecting", "base_url", probe.name)
    try:
        async with asyncio.timeout(patience):
            await requests.with_retries(purpose, probe)
            probe.service = tinker.ServiceClient(base_url=base_url)
            await requests.with_retries(purpose, probe)
    except TimeoutError:
        reason = probe.last_error or f"base_url: {probe.name} does not answer"
        raise ServiceDown(f"{reason}; given up after {patience:.0f} s") from None
    return Engine(probe.service, "tinker", requests, await _contexts(base_url, requests), base_url)


async def _contexts(base_url: str | None, requests: Requests) -> dict[str, int | None]:
    async def get_capabilities() -> Any:
        client = await in_thread(lambda: tinker.RestClient(base_url=base_url))
        return await client.get_server_capabilities()

    try:
        found = await requests.with_retries(Purpose("listing the service's models"), get_capabilities)
    except ServiceError as error:
        if isinstance(error.__cause__, tinker.NotFoundError):
            return {}
        raise
    return {model.model_name: model.max_context_length for model in found.supported_models if model.model_name}


class Probe:
    """Checks with one small request whether a service works. Calling it raises this package's exceptions."""

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url
        self.name = without_secrets(base_url or os.environ.get("TINKER_BASE_URL") or "Tinker's service")
        self.last_error: RTLGymError | None = None
        self.service: Any = None
        """The SDK's client, once it exists; it can also check the account's billing."""
        self._account_check: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Raises `UsageError`, `ServiceError` or `ServiceDown`."""
        # The SDK's own account check: unlike its other requests, the SDK does not retry it after a billing problem.
        check = getattr(self.service, "_check_accessible", None)
        try:
            # A new client would run the user's credential command each time; the check uses the SDK's present token.
            if check is None or not os.environ.get("TINKER_CREDENTIAL_CMD"):
                timeout = httpx.Timeout(PROBE_TIMEOUT)
                async with (
                    httpx.AsyncClient(timeout=timeout) as http,
                    AsyncTinker(base_url=self._base_url, max_retries=0, timeout=timeout, http_client=http) as client,
                ):
                    await client.service.client_config(request=ClientConfigRequest(sdk_version=tinker.__version__))
            if check is not None:
                await self._check_account(check)
        except RTLGymError as error:
            self.last_error = error
            raise
        except Exception as error:
            self.last_error = self._translated(error)
            raise self.last_error from error

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

    def _translated(self, error: Exception) -> RTLGymError:
        if isinstance(error, tinker.NotFoundError):
            return UsageError(f"base_url: there is no Tinker service at {self.name}: {first_line(error)}")
        translated = translate(error, Purpose(f"base_url: {self.name}", "base_url", self.name), remote=True)
        # Not all are the SDK's own exceptions: while it connects, it turns a 402 into an AttributeError.
        return translated or ServiceError(f"base_url: {self.name}: {type(error).__name__}: {first_line(error)}")


def _comparable(model: str) -> str:
    """A model's name, or its folder's real path."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
