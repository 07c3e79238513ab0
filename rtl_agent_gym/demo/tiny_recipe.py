"""The hyperparameters of the tiny student and teacher."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from .tiny_episode import DESIGN, RENDERER, SLIPS, SYSTEM_PROMPT, USER_PROMPT, WORDS, WRONG_DESIGN, endings, script


@dataclass(frozen=True)
class Phase:
    """A phase of training."""

    steps: int
    rate: float
    """Adam's learning rate at the first step."""
    rate_end: float
    """The learning rate at the last step; it changes linearly."""
    right: float
    """Target probability of the right token where the right and the wrong episode first differ."""
    noise: float
    """Fraction of the input tokens after the prompt that are replaced by random ones."""


@dataclass(frozen=True)
class TinyRecipe:
    """Everything that the models depend on, except the seed."""

    vocabulary: int = 1100
    hidden: int = 192
    layers: int = 2
    heads: int = 4
    batch: int = 2
    """Episodes per step, alternately right and wrong; an even number."""
    temperature: float = 1.5
    """Temperature in training. The models are used at temperature 1, where they are more confident of each token."""
    student: tuple[Phase, ...] = (
        Phase(280, 4e-3, 1e-3, right=0.13, noise=0.03),
        Phase(160, 1e-3, 1e-4, right=0.13, noise=0.0),
    )
    teacher: tuple[Phase, ...] = (Phase(100, 1e-3, 1e-4, right=0.995, noise=0.0),)
    """Phases after the student's."""
    versions: dict[str, str] = field(
        default_factory=lambda: {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    )

    def digest(self, seed: int) -> str:
        """A digest of everything that the models depend on."""
        scripts = (script(DESIGN), script(WRONG_DESIGN), *endings(script(DESIGN)))
        texts = [SYSTEM_PROMPT, USER_PROMPT, DESIGN, WRONG_DESIGN, *map(repr, scripts), *SLIPS, RENDERER, WORDS]
        return hashlib.sha256(json.dumps([asdict(self), texts, seed], sort_keys=True).encode()).hexdigest()[:16]
