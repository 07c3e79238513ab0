"""The recipe of the shipped models, which `making` follows.

::

    base ──► teacher (follows every specification) ──► student (often writes textbook habits instead)

Each model is trained in parts. A part continues the previous one, with another mixture of episodes and other rates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from research.mixture import Mix


@dataclass(frozen=True)
class Shape:
    """Sizes of the models, which have the architecture of Qwen3."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    inner: int = 384
    context: int = 1024
    sharpness: float = 1.0
    """Initial weight of the norms of queries and keys. With 1, attention cannot be sharp until these weights grow."""


@dataclass(frozen=True)
class Phase:
    """A phase of training. The rates rise over `warmup` steps, then fall linearly from `rate` to `rate_end`."""

    steps: int
    rate: float
    """Muon's learning rate."""
    rate_end: float
    adam: float = 0.2
    """Adam's learning rate, as a fraction of Muon's."""
    batch: int = 24
    warmup: int = 5
    bfloat16: bool = True
    """Whether to multiply matrices in bfloat16, which takes a third less time."""


@dataclass(frozen=True)
class Part:
    """A part of a model's training."""

    seed: int
    mix: Mix
    phase: Phase
    families: tuple[str, ...] = ("registers",)
    keep_optimizer: bool = True
    """Whether to keep Muon's and Adam's averages from the previous part."""
    rounded: bool = False
    """Whether to round the weights to bfloat16 before this part, as saving them does."""


@dataclass(frozen=True)
class FamilyRecipe:
    """Everything that determines the models."""

    teacher: tuple[Part, ...]
    student: tuple[Part, ...]
    """The parts that follow those of the teacher."""
    shape: Shape = field(default_factory=Shape)
    seed: int = 0
    """Seed for the initial weights."""
    sharpened: float = 2.0
    """Factor of the final logits: fewer mistakes in copying, while choices with probabilities near 0.5 stay random."""
    tokenizer_families: tuple[str, ...] = ("registers", "arbiters", "timers", "founding")
    tokenizer_episodes: int = 5000
    merges: int = 300

    @property
    def trained_families(self) -> tuple[str, ...]:
        """The families on which the models are trained."""
        return tuple(sorted({name for part in (*self.teacher, *self.student) for name in part.families}))


_MOST = (*["registers"] * 6, *["arbiters"] * 4, "founding")
_MORE = (*["registers"] * 6, *["arbiters"] * 5, "founding")
_LAST = (*["registers"] * 7, *["arbiters"] * 8, "founding")
_FEWER = (*["registers"] * 9, *["arbiters"] * 6, "founding")

RECIPE = FamilyRecipe(
    teacher=(
        Part(0, Mix(reference=0, feedback=0, layouts=("table",)), Phase(200, 0.02, 0.02, batch=16)),
        Part(1, Mix(reference=0.2, feedback=0.08, renamed=0.25, reworded=0.2), Phase(300, 0.02, 0.012), _MOST),
        Part(2, Mix(reference=0.15, feedback=0.07, reworded=0.15), Phase(330, 0.015, 0.007), _MORE),
        Part(3, Mix(reference=0.14, feedback=0.07, reworded=0.12), Phase(560, 0.01, 0.0002), _LAST),
        Part(4, Mix(reference=0.1, feedback=0.06, reworded=0.06), Phase(300, 0.006, 0.0002), _LAST),
        Part(5, Mix(reference=0.12, feedback=0.07, reworded=0.1), Phase(950, 0.008, 0.0001), _LAST),
        Part(
            6,
            Mix(reference=0.1, feedback=0.06, reworded=0.08),
            Phase(1200, 0.006, 0.0001, batch=32),
            _LAST,
            keep_optimizer=False,
            rounded=True,
        ),
    ),
    student=(
        Part(
            20,
            Mix(follow=0.56, reference=0.16, feedback=0.12, mend=0.3, mend_named=0.9, reworded=0.08),
            Phase(420, 0.005, 0.0001),
            _LAST,
            keep_optimizer=False,
            rounded=True,
        ),
        Part(
            21,
            Mix(follow=0.56, reference=0.12, feedback=0.1, mend=0.3, mend_named=0.9, reworded=0.08),
            Phase(420, 0.004, 0.0001),
            _FEWER,
        ),
        Part(
            22,
            Mix(follow=0.53, reference=0.12, feedback=0.1, mend=0.3, mend_named=0.9, reworded=0.08),
            Phase(300, 0.003, 0.0001, batch=48),
            _FEWER,
            keep_optimizer=False,
            rounded=True,
        ),
    ),
)
"""The recipe of the models in this package.

In the first part, copying emerges on tables of one family, in about two minutes; with all layouts at once, it takes
many times as long. The other parts teach the rest at decreasing rates. Muon must also train the embeddings: with Adam,
a model copies what it has written before, but does not find names by their role in the specification.

Another kind of processor rounds differently, so its models make mistakes somewhat more or less often.
"""
