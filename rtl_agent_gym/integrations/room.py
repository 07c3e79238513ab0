"""How many sandboxes fit, for frameworks that open those of a whole batch before they grade any."""

from __future__ import annotations

import contextlib

from ..episodes.rules import EpisodeConfig
from ..episodes.runtime import acquire
from ..errors import SandboxError
from ..sandboxes.budget import RESERVED, usage
from ..sandboxes.provider import DockerSandboxes


async def sandboxes_at_once(config: EpisodeConfig) -> float:
    """The number of agents' sandboxes that the machine has memory for; infinite if that is not known."""
    if not usage():
        await _connect()
    return usage().get("agent/capacity", float("inf")) // min(RESERVED["agent"], config.sandbox.memory)


async def _connect() -> None:
    """Connect to the daemon, so that `usage` knows the memory that there is."""
    lease = acquire()
    try:
        provider = lease.runtime.provider
        if isinstance(provider, DockerSandboxes):
            with contextlib.suppress(SandboxError):  # the first sandbox will say so
                await provider.budget()
    finally:
        await lease.release()
