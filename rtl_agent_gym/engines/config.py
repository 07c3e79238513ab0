"""The local engine's options, and whether there are credentials for Tinker's service; without torch or tinker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError

STORED = "~/.tinker/credentials.json"
"""Where ``tinker auth login`` keeps a key."""
STEADY_PARAMETERS = 20_000_000
"""Models up to this number of parameters are sampled steadily by default; see `LocalEngineConfig.steady`."""


@dataclass(frozen=True)
class LocalEngineConfig:
    """Configuration of the local engine."""

    checkpoint_dir: Path = Path("checkpoints")
    """Folder of the checkpoints ``<trainer>/weights/<name>`` and ``<trainer>/sampler_weights/<name>``."""
    seed: int = 0
    """Seed for requests that have none."""
    device: str = "auto"
    """A torch device such as ``cpu`` or ``cuda:0``; ``auto`` takes a GPU if there is one."""
    dtype: str = "auto"
    """``float32``, ``bfloat16``, ``float64``, or ``float16``, which cannot be trained; ``auto`` is bfloat16 on a GPU
    that supports it natively (NVIDIA's A100 and later, AMD's), otherwise float32."""
    max_batch: int = 16
    """Maximum number of sequences sampled at once; the others wait. It is also the number of conversations whose keys
    and values are cached between turns, until a ``forward_backward`` begins while nothing is being sampled."""
    steady: bool | None = None
    """Whether equal seeds give bit-identical tokens and log-probabilities in any order of requests, on one CPU thread.
    The engine then always computes `max_batch` rows, and recomputes the tokens of earlier answers as part of the next
    prompt, which is cheap for small models and expensive for large ones.
    None: True for models of at most `STEADY_PARAMETERS`; the others use all cores."""
    batch_tokens: int = 16_384
    """Maximum number of tokens, including padding, in one forward pass of training."""
    gradient_checkpointing: bool = False
    """Recompute the activations of each layer in the backward pass instead of keeping them: the same gradients with
    less memory, in about a third more time."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "batch_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")


def key_source() -> str | None:
    """Where the SDK finds credentials: the name of an environment variable, or `STORED`; None if there are none.

    It does not check whether the service accepts them.
    """
    for variable in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        if os.environ.get(variable):
            return variable
    if not os.path.isfile(os.path.expanduser(STORED)):
        return None  # the SDK takes seconds to import
    try:
        from tinker.auth import tinker_has_credentials
    except ImportError:
        return None
    return STORED if tinker_has_credentials() else None
