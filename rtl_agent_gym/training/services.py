"""Which engine a run trains on, and what is done with its checkpoints."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tinker

from ..engines.protocol import Sampler, Service, Trainer
from ..errors import ModelError, UsageError

logger = logging.getLogger(__name__)


@dataclass
class Engine:
    """A service, and the few things in which services differ."""

    service: Service
    kind: Literal["local", "tinker"]

    def close(self) -> None:
        """End what the engine runs in this process. Idempotent."""
        end = getattr(self.service, "close", None)
        if end is not None:
            end()

    async def trainer(self, model: str, rank: int, seed: int, state: str | None, *, optimizer: bool) -> Trainer:
        """A trainer: fresh, or from a saved state, with its optimizer if asked for.

        Raises:
            UsageError: There is no such model or state.
            ModelError: The service does not answer.
        """
        service = self.service
        with _edge("student_model" if state is None else "load_checkpoint_path", model if state is None else state):
            if state is None:
                return await service.create_lora_training_client(model, rank, seed)
            if optimizer:
                return await service.create_training_client_from_state_with_optimizer(state)
            return await service.create_training_client_from_state(state)

    async def sampler(self, path: str) -> Sampler:
        """A sampler of saved weights."""
        with _edge("checkpoint", path):
            return await self.service.create_sampling_client(model_path=path)

    async def published(self, option: str, model: str) -> Sampler:
        """A sampler of a model as it was published; of saved weights where `model` is a ``tinker://`` path.

        Args:
            option: The option that names it, for the error.
            model: Its name.
        """
        with _edge(option, model):
            if model.startswith("tinker://"):
                return await self.service.create_sampling_client(model_path=model)
            return await self.service.create_sampling_client(base_model=model)

    async def delete(self, path: str) -> None:
        """Delete saved weights that nothing refers to any more. A failure costs space and nothing else."""
        if self.kind == "local":
            shutil.rmtree(path, ignore_errors=True)
            return
        made: Any = self.service
        try:
            await made.create_rest_client().delete_checkpoint_from_tinker_path_async(path)
        except tinker.TinkerError as error:
            logger.warning("%s was not deleted: %s", path, error)


@contextlib.contextmanager
def _edge(option: str, value: str) -> Iterator[None]:
    """Turns the SDK's exceptions into ours."""
    try:
        yield
    except (tinker.BadRequestError, tinker.NotFoundError, tinker.PermissionDeniedError) as error:
        raise UsageError(f"{option}: the service refuses {value!r}: {error}") from error
    except tinker.AuthenticationError as error:
        raise UsageError(f"TINKER_API_KEY: the service does not accept the key: {error}") from error
    except tinker.APIConnectionError as error:
        raise ModelError(f"base_url: the service does not answer: {error}") from error
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error


def local_engine(checkpoints: Path, seed: int, **config: Any) -> Engine:
    """The engine in this process, which saves below `checkpoints`."""
    try:
        from ..engines.local import LocalEngineConfig, LocalServiceClient
    except ImportError as error:
        raise UsageError(
            f"the local engine needs packages that are missing ({error.name}); pip install 'rtl-agent-gym[local]'"
        ) from error
    made: Any = LocalServiceClient(LocalEngineConfig(checkpoint_dir=checkpoints, seed=seed, **config))
    return Engine(made, "local")


def tinker_engine(base_url: str | None) -> Engine:
    """Tinker's service, or a compatible one. Raises `ModelError` when it does not answer."""
    with _edge("base_url", base_url or "the default"):
        service: Any = tinker.ServiceClient(base_url=base_url) if base_url else tinker.ServiceClient()
    return Engine(service, "tinker")
