"""Turns the stages of a grading into one number."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ..errors import UsageError


class RewardWeights(BaseModel):
    """The weight of each stage. The reward is the sum over all stages of share (0..1) times weight."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: float = Field(default=0.1, ge=0)
    """For target files that exist and are not empty."""
    syntax: float = Field(default=0.3, ge=0)
    """For target files without a syntax error."""
    interface: float = Field(default=0.0, ge=0)
    """For the ports that the problem requires."""
    compile: float = Field(default=0.0, ge=0)
    """For compiling in the harness."""
    tests: float = Field(default=1.0, ge=0)
    """For the hidden tests."""
    partial_tests: bool = False
    """Whether some of the tests earn a part of `tests` (see ``docs/scoring.md``); otherwise all or nothing."""
    simulate: bool = True
    """Whether the hidden tests are run. Without them no container is needed, and `tests` and `compile` earn nothing."""

    @classmethod
    def preset(cls, name: str) -> RewardWeights:
        """The weights of a preset: ``default``, ``staged``, ``dense``, ``compile`` or ``proxy``.

        Raises:
            UsageError: There is no such preset.
        """
        if name not in PRESETS:
            raise UsageError(f"there is no reward preset {name!r}; choose one of {', '.join(PRESETS)}")
        return PRESETS[name]

    @property
    def most(self) -> float:
        """The highest possible reward."""
        tests = self.tests + self.compile if self.simulate else 0.0
        return self.format + self.syntax + self.interface + tests

    def reward(
        self,
        *,
        passed: bool,
        format: float,
        syntax: float,
        interface: float = 0.0,
        compile: float = 0.0,
        tests: float = 0.0,
    ) -> float:
        """The weighted sum of the official verdict and the stages' shares, 0..1 each.

        `tests`, the partial credit, counts with `partial_tests` only.
        """
        earned = tests if self.partial_tests else float(passed)
        total = self.format * format + self.syntax * syntax + self.interface * interface
        if self.simulate:
            total += self.compile * compile + self.tests * earned
        return round(total, 9)


PRESETS: dict[str, RewardWeights] = {
    "default": RewardWeights(),
    "staged": RewardWeights(format=0.0, interface=0.2),
    "dense": RewardWeights(partial_tests=True),
    "compile": RewardWeights(compile=0.5),
    "proxy": RewardWeights(interface=0.2, tests=0.0, simulate=False),
}
"""The weights by name. ``staged`` rewards ports, then syntax, then tests; ``dense`` rewards parts of the tests.

``compile`` also rewards compiling; ``proxy`` never simulates, for the first steps of a training run.
"""
