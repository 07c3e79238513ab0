"""Which engine a run trains on, and what is done with its checkpoints."""

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

from ..engines.connect import Connection, connect
from ..engines.guarded import GuardedSampler, GuardedTrainer, Requests, context_of
from ..engines.protocol import Pending, Sampler, Service, Trainer
from ..engines.translation import Request
from ..engines.watch import Tell, in_thread
from ..errors import RTLGymError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Status = Literal["success", "errored", "interrupted"]
"""How a session with a service ended, in the SDK's words."""

CLOSING: dict[Status, float] = {"success": 30.0, "errored": 10.0, "interrupted": 0.5}
"""Seconds that an engine has to close, by how the run ended."""
DELETING = 30.0
"""Seconds that a service has to delete a checkpoint."""
LONGER = 10.0
"""How many times as long a silent service is waited for in the midst of a run."""


@dataclass
class Engine:
    """A service, and the few things in which services differ."""

    service: Service
    kind: Literal["local", "tinker"]
    requests: Requests = field(default_factory=Requests)
    connection: Connection | None = None
    _closed: bool = False

    async def close(self, status: Status) -> None:
        """End the session, and what the engine runs in this process. Idempotent.

        Args:
            status: How the run ended. An engine that does not close in time, see `CLOSING`, is left to the process's
                end, or to the service, which ends a session whose client is silent.

        Raises:
            ServiceError: The service did not take note.
        """
        end: Any = getattr(self.service, "close", None)
        if end is None or self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSING[status]):
                with self.requests.translating(Request("closing the session")):
                    # In a thread: while the SDK connects, its lock keeps `close` waiting; a local engine ends its work.
                    ended = await in_thread(end if self.kind == "local" else lambda: end(status))
                    if ended is not None:
                        await ended
        except TimeoutError:
            logger.warning("the engine did not close within %.0f s", CLOSING[status])

    async def trainer(self, model: str, rank: int, seed: int, state: str | None, *, optimizer: bool) -> Trainer:
        """A trainer: fresh, or from a saved state, with its optimizer if asked for.

        Raises:
            UsageError: There is no such model or state.
            ServiceError: The service does not make it.
            ServiceDown: The service cannot be used.
        """
        service, option = self.service, "student_model" if state is None else "load_checkpoint_path"
        if state is None:
            self._check_model(option, model)
            make = partial(service.create_lora_training_client, model, rank, seed)
        elif optimizer:
            make = partial(service.create_training_client_from_state_with_optimizer, state)
        else:
            make = partial(service.create_training_client_from_state, state)
        client = await self._make(Request("making the trainer", option, state or model), make)
        return GuardedTrainer(client, self.requests, self._context(client, model))

    async def sampler(self, path: str) -> Sampler:
        """A sampler of saved weights. Raises as `trainer` does."""
        asked = Request("making a sampler", "checkpoint", path)
        client = await self._make(asked, partial(self.service.create_sampling_client, model_path=path))
        return GuardedSampler(client, self.requests, self._context(client, None))

    async def published(self, option: str, model: str) -> Sampler:
        """A sampler of a model as it was published; of saved weights where `model` is a ``tinker://`` path.

        Args:
            option: The option that names it, for the error.
            model: Its name.
        """
        if model.startswith("tinker://"):
            make = partial(self.service.create_sampling_client, model_path=model)
        else:
            self._check_model(option, model)
            make = partial(self.service.create_sampling_client, base_model=model)
        client = await self._make(Request(f"making a sampler of {model}", option, model), make)
        return GuardedSampler(client, self.requests, self._context(client, model))

    async def delete(self, path: str) -> None:
        """Delete saved weights that nothing refers to any more. A failure costs space and nothing else."""
        if self.connection is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        base_url = self.connection.base_url
        try:
            async with asyncio.timeout(DELETING):
                with self.requests.translating(Request("deleting a checkpoint")):
                    client = await in_thread(lambda: tinker.RestClient(base_url=base_url))
                    await client.delete_checkpoint_from_tinker_path(path)
        except (RTLGymError, TimeoutError) as error:
            logger.warning("%s was not deleted: %s", path, error)

    def _check_model(self, option: str, model: str) -> None:
        if self.connection is not None:
            self.connection.check_model(option, model)

    def _context(self, client: Any, model: str | None) -> int | None:
        """Tokens that a client's model takes."""
        contexts = self.connection.contexts if self.connection is not None else {}
        if not contexts:
            return context_of(client, None)
        name = client.get_base_model() if hasattr(client, "get_base_model") else model
        return contexts.get(name or "")

    async def _make(self, asked: Request, make: Callable[[], Pending[T]]) -> T:
        """What a service makes; its methods block until it is connected."""

        async def made() -> T:
            return await (make() if self.connection is None else await in_thread(make))

        return await self.requests.ask(asked, made)


def local_engine(checkpoints: Path, seed: int) -> Engine:
    """The engine in this process, which saves below `checkpoints`."""
    from ..engines.local import LocalEngineConfig, LocalServiceClient  # needs torch

    made: Any = LocalServiceClient(LocalEngineConfig(checkpoint_dir=checkpoints, seed=seed))
    return Engine(made, "local")


async def tinker_engine(base_url: str | None, tell: Tell | None = None, patience: float = 60.0) -> Engine:
    """Tinker's service, or a compatible one. Raises as `engines.connect.connect` does."""
    connection = await connect(base_url, tell, patience)
    return Engine(connection.service, "tinker", connection.requests, connection)
