"""The result of a grading."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TestOutcome(BaseModel):
    """One test of the hidden harness and how it ended."""

    __test__ = False  # not a test case, whatever pytest makes of the name
    model_config = ConfigDict(frozen=True)

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
    """What was tried against the grader, with file and line."""
    reason: str = ""
    """Why the score is what it is, in one line a person can act on."""
    tests: list[TestOutcome] = []
    """The single tests, if the harness reports them."""
    bleu: float = 0.0
    """Of a text that is compared with a reference; 0 for other problems, like `rouge`, `rating` and `judge`."""
    rouge: float = 0.0
    rating: float = 0.0
    """A judge model's rating of a text, 0..1."""
    judge: str = ""
    """The judge's name."""


class Score(Measured):
    """The grading of one set of files. A machine fault is never a score: it raises `SandboxError`."""

    passed: bool
    tests_passed: int = 0
    tests_total: int = 0
    credit: float = 0.0
    """Partial credit for the tests, 0..1: their share that passed, but 0 where it is unknown how many there are. Not
    compared, as `same_as` describes."""
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
        """Whether both say the same of the files, without `seconds`, `cached`, `retries` and `left_out`.

        Also without `credit`, which follows from the tests and is missing in older transcripts.
        """
        ignore = {"seconds", "cached", "retries", "left_out", "credit"}
        return self.model_dump(exclude=ignore) == other.model_dump(exclude=ignore)
