"""The result of a grading, and the weights that turn its stages into one number."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ..errors import UsageError

MEASURED_STAGES = ("quality", "coverage")
"""Stages that only some problems measure; if measured, their values are also in `Measured.measures`."""


class TestOutcome(BaseModel, frozen=True):
    """One test of the hidden harness and how it ended."""

    __test__ = False  # not a test case, although pytest takes the name for one

    name: str
    outcome: str
    """``passed``, ``failed``, ``error`` or ``skipped``."""


class Measured(BaseModel):
    """What a grading measured, before any weights."""

    model_config = ConfigDict(frozen=True)

    passed: bool = False
    """The official verdict: every service of the harness exited 0. For texts, whether they reach the thresholds."""
    format: float = 0.0
    """Share of the target files that exist, 0..1."""
    syntax: float = 0.0
    interface: float = 0.0
    compile: float = 0.0
    violations: list[str] = []
    """Attempts against the grader, with file and line."""
    reason: str = ""
    """The cause of the result in one line, for people."""
    tests: list[TestOutcome] = []
    """The individual tests, if the harness reports them."""
    bleu: float = 0.0
    """BLEU of a text against its reference, 0..1; 0 for other problems, as are `rouge` and `rating`."""
    rouge: float = 0.0
    rating: float = 0.0
    """A judge model's rating of a text, 0..1."""
    judge: str = ""
    """The judge's name; empty without a judge."""
    measures: dict[str, float | str] = {}
    """For circuit-optimization problems: ``quality``, ``goal``, ``area``, ``flops``, ``delay``, ``equivalence``,
    ``why``. For testbenches whose coverage counts: ``coverage``, ``line_coverage``, ``toggle_coverage``."""


class Score(Measured):
    """The grading of one set of files. A machine fault is never a score: it raises `SandboxError`."""

    passed: bool
    tests_passed: int = 0
    tests_total: int = 0
    credit: float = 0.0
    """Partial credit for the tests, 0..1: the share that passed, or 0 if the number of tests is unknown; excluded from
    comparisons."""
    quality: float = 0.0
    """For circuit optimization, the share of the reference's gain, 0..1; 0 if a test or the equivalence proof fails."""
    coverage: float = 0.0
    """For testbenches, the mean of both coverages, 0..1; 0 if the testbench rejects a correct design or never ends."""
    reward: float = 0.0
    """The weighted sum by `RewardWeights`."""
    left_out: list[str] = []
    """What was ignored, and why: submitted files, and files that a design tried to write or read; excluded from
    comparisons."""
    seconds: float = 0.0
    """Wall time of the grading; excluded from comparisons."""
    cached: bool = False
    retries: int = 0
    """How often the grading was repeated because the machine failed; excluded from comparisons."""

    def same_as(self, other: Score) -> bool:
        """Whether both are equal except for `seconds`, `cached`, `retries`, `left_out` and `credit`.

        `credit` follows from the tests and is missing in older transcripts.
        """
        ignore = {"seconds", "cached", "retries", "left_out", "credit"}
        return self.model_dump(exclude=ignore) == other.model_dump(exclude=ignore)


class RewardWeights(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The weight of each stage. The reward is the sum over all stages of share (0..1) times weight."""

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
    coverage: float = Field(default=0.0, ge=0)
    """For a testbench's coverage, in problems that measure it."""
    partial_tests: bool = False
    """Whether passing some of the tests earns part of `tests` (see ``docs/scoring.md``); otherwise all or nothing."""
    simulate: bool = True
    """Whether the hidden tests run. Without them no container is needed, and `tests`, `compile`, `coverage` earn 0."""

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
        return sum(self._earning().values())

    def _earning(self) -> dict[str, float]:
        names = ("format", "syntax", "interface", *(("compile", "tests", "coverage") if self.simulate else ()))
        return {name: getattr(self, name) for name in names}

    def reward(self, *, passed: bool, tests: float = 0.0, **shares: float) -> float:
        """The weighted sum of the official verdict and of the stages' shares, 0..1 each and 0 by default.

        `tests` is the partial credit; it counts only with `partial_tests`.
        """
        if unknown := shares.keys() - type(self).model_fields.keys():
            raise TypeError(f"there is no stage {', '.join(sorted(unknown))}")
        shares["tests"] = tests if self.partial_tests else float(passed)
        return round(sum(weight * shares.get(name, 0.0) for name, weight in self._earning().items()), 9)


PRESETS: dict[str, RewardWeights] = {
    "default": RewardWeights(),
    "staged": RewardWeights(format=0.0, interface=0.2),
    "dense": RewardWeights(partial_tests=True),
    "compile": RewardWeights(compile=0.5),
    "proxy": RewardWeights(interface=0.2, tests=0.0, simulate=False),
}
"""The weights by name. ``staged`` rewards ports, then syntax, then tests; ``dense`` gives partial credit for tests.

``compile`` also rewards compiling; ``proxy`` never simulates, for the first steps of a training run.
"""
