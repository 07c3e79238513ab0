"""Turns the messages of guards and witnesses into tests, violations and partial credit.

What a service printed is never read here, since a design can print anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .grader.messages import Message
from .score import TestOutcome


@dataclass
class Simulation:
    """One simulation with cocotb: its planned tests and how they ended."""

    planned: list[str]
    outcomes: dict[str, str] = field(default_factory=dict)

    def results(self) -> dict[str, str]:
        """Every planned test; one without a reported outcome counts as an error."""
        return {name: self.outcomes.get(name, "error") for name in [*self.planned, *self.outcomes]}

    def failed(self) -> bool:
        """Whether a test did anything but pass or be skipped."""
        return any(outcome not in ("passed", "skipped") for outcome in self.results().values())


@dataclass
class Item:
    """One pytest test, with the simulations it ran."""

    name: str
    phases: dict[str, str] = field(default_factory=dict)
    unfinished: bool = False
    """Whether it failed before all its work was done, for example with more configurations to run."""
    simulations: list[Simulation] = field(default_factory=list)

    def outcome(self) -> str:
        """Its outcome in pytest; ``error`` without one."""
        if "failed" in self.phases.values():
            return "failed"
        return self.phases.get("call") or self.phases.get("setup", "passed").replace("passed", "error")

    @property
    def function(self) -> str:
        """Its name without parameters, shared by all tests of one parametrised function."""
        return self.name.partition("[")[0]

    def planned(self) -> list[str]:
        """The tests of its longest simulation."""
        return max((list(simulation.results()) for simulation in self.simulations), key=len, default=[])

    def earned(self) -> float | None:
        """Its partial credit, 0..1; None if it was skipped.

        This is the share of its tests that passed in every simulation it ran. If it failed for another reason, or
        before all its simulations ran, that share is unknown, and the credit is 0.
        """
        outcome = self.outcome()
        if outcome == "skipped":
            return None
        judged: dict[str, bool] = {}
        for simulation in self.simulations:
            for name, said in simulation.results().items():
                if said != "skipped":
                    judged[name] = judged.get(name, True) and said == "passed"
        if outcome == "passed" and not judged:
            return 1.0
        unexplained = outcome != "passed" and all(judged.values())
        return 0.0 if unexplained or self.unfinished else sum(judged.values()) / len(judged)

    def tests(self, expected: Sequence[str] = ()) -> list[TestOutcome]:
        """Its single tests; also itself if it has none, or failed although they passed.

        Args:
            expected: The tests of a sibling. An item without a simulation, because the design did not compile with its
                parameters, failed as many: breaking a configuration must not cost less than a wrong result in it.
        """
        short = self.name.rsplit("/", 1)[-1]
        if not self.simulations and expected and self.outcome() in ("failed", "error"):
            return [TestOutcome(name=f"{short}/{test}", outcome="error") for test in expected]
        found = [
            TestOutcome(name=f"{short}/{test}", outcome=outcome)
            for simulation in self.simulations
            for test, outcome in simulation.results().items()
        ]
        outcome = self.outcome()
        if not found or (outcome != "passed" and all(test.outcome in ("passed", "skipped") for test in found)):
            found.append(TestOutcome(name=short, outcome=outcome))
        return found


@dataclass
class Account:
    """The collected messages of one service."""

    items: dict[str, Item] = field(default_factory=dict)
    compiled: list[bool] = field(default_factory=list)
    """Whether each call of a compiler succeeded."""
    compiler: str = ""
    """The compiler's output at its first failure."""
    simulated: int = 0
    """How many simulations were begun."""
    violations: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Why a simulation was refused although it is no violation."""
    notes: list[str] = field(default_factory=list)
    """Files that a design tried to write or read and did not get."""

    def item(self, name: str) -> Item:
        """The item with this name; an empty name means a simulation outside of pytest."""
        return self.items.setdefault(name, Item(name or "simulation", {} if name else {"call": "passed"}))

    def tests(self, service: str, code: int | None) -> list[TestOutcome]:
        """The tests of the service, at least one."""
        siblings: dict[str, list[str]] = {}
        for item in self.items.values():
            siblings[item.function] = max(siblings.get(item.function, []), item.planned(), key=len)
        found = [test for item in self.items.values() for test in item.tests(siblings[item.function])]
        if not found or (code != 0 and all(test.outcome in ("passed", "skipped") for test in found)):
            outcome = "passed" if code == 0 else "error" if code is None else "failed"
            found.append(TestOutcome(name=service, outcome=outcome))
        return found

    def earned(self, code: int | None) -> list[float]:
        """The partial credit of each item of the service, 0..1; a single one if it has no items.

        A service that failed although no reported test failed earns nothing.
        """
        earned = [share for item in self.items.values() if (share := item.earned()) is not None]
        if code != 0 and all(share == 1.0 for share in earned):
            return [0.0] * max(len(earned), 1)
        return earned or [1.0]


def account(messages: Iterable[Message], *, check_results: bool = True) -> Account:
    """Collect the messages of one service.

    Args:
        messages: In the order of arrival.
        check_results: Whether a results file that reports better results than the witness is a violation.
    """
    total = Account()
    for message in messages:
        if message["kind"] == "compiler" or message["kind"] == "simulator":
            total.violations += message["violations"]
            total.complaints += message["refusals"]
            if message["kind"] == "simulator":
                total.simulated += 1
            elif message["code"] is not None:
                total.compiled.append(message["code"] == 0)
                if message["code"]:
                    total.compiler = total.compiler or message["text"]
        elif message["kind"] == "file":
            total.violations += message["violations"]
            total.notes += message["notes"]
        elif message["kind"] == "items":
            for name in message["items"]:
                total.item(name)
        elif message["kind"] == "phase":
            item = total.item(message["item"])
            item.phases[message["when"]] = message["outcome"]
            item.unfinished = item.unfinished or message["unfinished"]
        elif message["kind"] == "plan":
            total.item(message["item"]).simulations.append(Simulation(message["tests"]))
        elif message["kind"] == "test":
            if simulations := total.item(message["item"]).simulations:
                simulations[-1].outcomes[message["test"]] = message["outcome"]
        elif message["kind"] == "results" and check_results and message["total"] and not message["failed"]:
            # Compare what the checker read after the simulation with the messages during it.
            simulations = total.item(message["item"]).simulations
            if not simulations or simulations[-1].failed():
                total.violations.append(f"{message['file']}: says that all tests passed, which nobody saw")
    total.violations = list(dict.fromkeys(total.violations))
    return total


def share(tests: Sequence[TestOutcome]) -> tuple[int, int]:
    """The number of passed tests and of all tests, without skipped ones."""
    counted = [test for test in tests if test.outcome != "skipped"]
    return sum(test.outcome == "passed" for test in counted), len(counted)
