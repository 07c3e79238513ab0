"""Random moments of faults, which can be repeated."""

from __future__ import annotations

import os
import random

from rtl_agent_gym.metrics import FAULTS

VARIABLE = "RTL_GYM_FAULT_SEED"
"""The environment variable with the seed; by default each test draws one."""


class Moment:
    """Draws when and whom a fault hits. Its seed is printed, so pytest shows it if the test fails."""

    def __init__(self) -> None:
        self.seed = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(1 << 31))
        self.draw = random.Random(self.seed)
        print(f"repeat this fault with {VARIABLE}={self.seed}")

    def within(self, least: float, most: float) -> float:
        """A number of seconds."""
        seconds = self.draw.uniform(least, most)
        print(f"the fault comes after {seconds:.2f} s")
        return seconds

    def number(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        found = self.draw.randint(least, most)
        print(f"the fault comes at {found}")
        return found


def machine_faults() -> float:
    """How many machine faults this process has counted, those of gradings that were repeated included."""
    return sum(sample.value for found in FAULTS.collect() for sample in found.samples if sample.name.endswith("_total"))
