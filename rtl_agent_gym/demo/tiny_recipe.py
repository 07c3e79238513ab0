"""How the tiny student and teacher are made, in numbers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from .tiny_episode import DESIGN, RENDERER, SLIPS, SYSTEM_PROMPT, USER_PROMPT, WORDS, WRONG_DESIGN, endings, script


@dataclass(frozen=True)
class Phase:
    """A stretch of training."""

    steps: int
    rate: float
    """Adam's learning rate at its start."""
    rate_end: float
    """And at its end, reached linearly."""
    right: float
    """The probability of the right choice at the token where the right and the wrong episode part."""
    noise: float
    """The part of the input tokens after the prompt that are replaced by random ones."""


@dataclass(frozen=True)
class TinyRecipe:
    """Everything that makes the models, but the seed."""

    vocabulary: int = 1100
    hidden: int = 192
    layers: int = 2
    heads: int = 4
    batch: int = 2
    """Episodes a step, right and wrong by turns; an even number."""
    temperature: float = 1.5
    """At which they are taught. They are used at 1, where they are surer of all they do: each of an episode's tokens is
    a chance to slip."""
    student: tuple[Phase, ...] = (
        Phase(280, 4e-3, 1e-3, right=0.13, noise=0.03),
        Phase(160, 1e-3, 1e-4, right=0.13, noise=0.0),
    )
    teacher: tuple[Phase, ...] = (Phase(100, 1e-3, 1e-4, right=0.995, noise=0.0),)
    """After the student's."""
    versions: dict[str, str] = field(
        default_factory=lambda: {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    )

    def digest(self, seed: int) -> str:
        """Of all that the models depend on."""
        scripts = (script(DESIGN), script(WRONG_DESIGN), *endings(script(DESIGN)))
        texts = [SYSTEM_PROMPT, USER_PROMPT, DESIGN, WRONG_DESIGN, *map(repr, scripts), *SLIPS, RENDERER, WORDS]
        whole = json.dumps([asdict(self), texts, seed], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]
