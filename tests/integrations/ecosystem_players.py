"""The players of frameworks with an environment of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.integrations.conformance import Played, Script
from tests.integrations.ecosystem import call, read_played


class VerifiersPlayer:
    """Through ``vf-eval`` and a chat service on loopback."""

    name = "verifiers 0.4.0"

    async def play(self, script: Script, folder: Path) -> Played:
        return read_played(await call("verifiers", "play", script, folder))


class InspectPlayer:
    """Through inspect_ai's ``eval`` and its mock model."""

    name = "inspect_ai 0.3.285"

    async def play(self, script: Script, folder: Path) -> Played:
        return read_played(await call("inspect", "play", script, folder, **vocabulary()))


def vocabulary() -> dict[str, str]:
    """Environment variables with which tiktoken finds its vocabulary in litellm, and needs no network."""
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    return {"TIKTOKEN_CACHE_DIR": str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")}
