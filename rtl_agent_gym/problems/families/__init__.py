"""Generated problems: families of many members, with held-out splits, and the source ``family:NAME``."""

from __future__ import annotations

from rtl_agent_gym.problems.families.arbiters import ARBITERS
from rtl_agent_gym.problems.families.family import SPECIFICATION, SPLITS, TARGET, Family, Parameters, Split
from rtl_agent_gym.problems.families.registers import REGISTERS
from rtl_agent_gym.problems.families.timers import TIMERS

__all__ = ["FAMILIES", "SPECIFICATION", "SPLITS", "TARGET", "Family", "Parameters", "Split"]

FAMILIES: dict[str, Family] = {family.name: family for family in (REGISTERS, ARBITERS, TIMERS)}
"""All families by name."""
