"""The engine of a run: the local one or Tinker's service."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import tinker

from ..engines.config import LocalEngineConfig
from ..engines.connect import Connection, connect
from ..engines.guarded import GuardedSampler, GuardedTrainer, Requests, context_length
from ..engines.protocol import Pending, Sampler, Service, Trainer
from ..engines.threads import in_thread
from ..engines.translation import Request
from ..engines.watch import ShowLine
from ..errors import RTLGymError, UsageError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Status = Literal["success", "errored", "interrupted"]
"""How a session with a service ended, in the SDK's terms."""

CLOSE_TIMEOUT: dict[Status, float] = {"success": 30.0, "errored": 10.0, "interrupted": 0.5}
"""Seconds to wait for an engine to close, by how the run ended."""
DELETE_TIMEOUT = 30.0
"""Seconds to wait for a service to delete a checkpoint."""
RUNNING_PATIENCE = 10.0
"""Once a run has begun, it waits this many times longer for a service that does not answer."""


@dataclass
class Engine:
    """An engine behind guards, with the few operations that differ between the local engine and a service."""

    service: Service
    kind: Literal["local", "tinker"]
    requests: Requests = field(default_factory=Requests)
    connection: Connection | None = None
    _closed: bool = False

    async def close(self, status: Status) -> None:
        """End the session, and the engine's thread in this process. Idempotent.

        If that takes longer than `CLOSE_TIMEOUT`, it returns: the thread ends with the process, and the service ends
        sessions of silent clients by itself.

        Raises:
            ServiceError: The service did not end the session.
        """
        end: Any = getattr(self.service, "close", None)
        if end is None or self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT[status]):
                with self.requests.translating(Request("closing the session")):
                    # It may block: the SDK holds a lock while it connects, and the local engine finishes its work.
                    ended = await in_thread(end if self.kind == "local" else lambda: end(status))
                    if ended is not None:
                        await ended
        except TimeoutError:
            logger.warning("the engine did not close within %.0f s", CLOSE_TIMEOUT[status])

    async def trainer(self, model: str, rank: int, seed: int, state: str | None, *, optimizer: bool) -> Trainer:
        """Create a trainer: new, or from a saved state, with the saved optimizer if requested.

        Raises:
            UsageError: There is no such model or state.
            ServiceError: The service failed to create it.
            ServiceDown: The service cannot be used.
        """
        service, option = self.service, "student_model" if state is None else "load_checkpoint_path"
        if state is None:
            self._check_model(option, model)
            create = partial(service.create_lora_training_client, model, rank, seed)
        elif optimizer:
            create = partial(service.create_training_client_from_state_with_optimizer, state)
        else:
            create = partial(service.create_training_client_from_state, state)
        request = Request("creating the trainer", option, state or model)
        client = await self._create(request, create)
        if state is not None and not optimizer:  # given by the user, not this run's own
            with self.requests.translating(request):
                known = (await in_thread(client.get_info)).model_name
            if known is not None and _path(known) != _path(model):
                raise UsageError(f"load_checkpoint_path: {state} is of the model {known}, but student_model is {model}")
        return GuardedTrainer(client, self.requests, self._context(client, model))

    async def sampler(self, path: str) -> Sampler:
        """Create a sampler of saved weights. Raises like `trainer`."""
        request = Request("creating a sampler", "checkpoint", path)
        client = await self._create(request, partial(self.service.create_sampling_client, model_path=path))
        return GuardedSampler(client, self.requests, self._context(client, None))

    async def published(self, option: str, model: str) -> Sampler:
        """Create a sampler of the model that an option names; of saved weights if `model` is a ``tinker://`` path."""
        if model.startswith("tinker://"):
            create = partial(self.service.create_sampling_client, model_path=model)
        else:
            self._check_model(option, model)
            create = partial(self.service.create_sampling_client, base_model=model)
        client = await self._create(Request(f"creating a sampler of {model}", option, model), create)
        return GuardedSampler(client, self.requests, self._context(client, model))

    async def delete(self, path: str) -> None:
        """Delete saved weights that are not needed any more. A failure is only logged."""
        if self.connection is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        base_url = self.connection.base_url
        try:
            async with asyncio.timeout(DELETE_TIMEOUT):
                with self.requests.translating(Request("deleting a checkpoint")):
                    client = await in_thread(lambda: tinker.RestClient(base_url=base_url))
                    await client.delete_checkpoint_from_tinker_path(path)
        except (RTLGymError, TimeoutError) as error:
            logger.warning("%s was not deleted: %s", path, error)

    def _check_model(self, option: str, model: str) -> None:
        if self.connection is not None:
            self.connection.check_model(option, model)

    def _context(self, client: Any, model: str | None) -> int | None:
        """The context length of a client's model."""
        contexts = self.connection.contexts if self.connection is not None else {}
        if not contexts:
            return context_length(client)
        name = client.get_base_model() if hasattr(client, "get_base_model") else model
        return contexts.get(name or "")

    async def _create(self, request: Request, create: Callable[[], Pending[T]]) -> T:
        """Create a client. A service's methods block until it is connected, so they are called in a thread."""

        async def send() -> T:
            return await (create() if self.connection is None else await in_thread(create))

        return await self.requests.with_retries(request, send)


def local_engine(config: LocalEngineConfig) -> Engine:
    """The local engine. Raises `UsageError` if this machine does not have the device."""
    from ..engines.local import LocalServiceClient  # needs torch

    service: Any = LocalServiceClient(config)
    return Engine(service, "local")


async def tinker_engine(base_url: str | None, show: ShowLine | None = None, patience: float = 60.0) -> Engine:
    """Tinker's service, or a compatible one. Raises like `engines.connect.connect`."""
    connection = await connect(base_url, show, patience)
    return Engine(connection.service, "tinker", connection.requests, connection)


def _path(model: str) -> str:
    """A model's name, or its folder in a form that can be compared."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
