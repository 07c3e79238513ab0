"""Which episodes have started in this process, once this module is imported; starts can be made to fail."""

from __future__ import annotations

from typing import Any

from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.errors import SandboxError

episodes: list[Episode] = []
"""Those that were started, in order."""
start_faults: list[SandboxError] = []
"""Raised by the next starts, one each."""

_start = Episode.start


async def _noted_start(self: Episode) -> Any:
    if start_faults:
        raise start_faults.pop()
    episodes.append(self)
    return await _start(self)


Episode.start = _noted_start  # type: ignore[method-assign]
