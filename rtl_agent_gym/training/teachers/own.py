"""The student as its own teacher, with the weights of the run's start or of some steps ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from ...engines.protocol import Sampler
from .base import Judgement, Prompt, SameTokens, Sampled


class SavedWeights(TypedDict):
    """Weights that a resumed run needs, as a checkpoint records them."""

    version: int
    """Number of steps that they were trained for."""
    weights: str
    """Path of the weights for sampling."""


@dataclass
class SelfTeacher:
    """A teacher with the student's earlier weights. It keeps those that later steps need."""

    start: Sampler
    """The weights that the run starts from."""
    lag: int | None = None
    """How many steps the teacher is behind, in the first steps fewer; None for the weights of the start."""
    prompts: Mapping[str, tuple[list[int], Prompt]] = field(default_factory=dict)
    """See `SameTokens.prompts`."""
    _kept: dict[int, tuple[Sampler, str | None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._current = SameTokens(self.start, self.prompts)

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`."""
        return await self._current.judge(sampled)

    def steps_needed(self, step: int, num_steps: int) -> int:
        """For how many steps, beginning with `step`, the weights before it are needed from a checkpoint."""
        return self.lag if self.lag is not None and 0 < step < num_steps - self.lag else 0

    def keep(self, step: int, sampler: Sampler, path: str | None) -> None:
        """Keep the weights before `step`, of which a checkpoint may need the `path`."""
        if self.lag is not None and step > 0:
            self._kept[step] = sampler, path

    def begin(self, step: int) -> None:
        """Judge with the weights of `step` from now on. Raises `KeyError` if they were not kept."""
        if self.lag is None:
            return
        oldest = max(0, step - self.lag)
        self._kept = {version: kept for version, kept in self._kept.items() if version >= oldest}
        self._current = SameTokens(self._kept[oldest][0] if oldest else self.start, self.prompts)

    def saved(self, step: int) -> list[SavedWeights]:
        """The saved weights that a run resumed before `step` needs."""
        needed = {version: path for version, (_, path) in self._kept.items() if version >= step - (self.lag or 0)}
        return [{"version": version, "weights": path} for version, path in needed.items() if path is not None]
