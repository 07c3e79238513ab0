"""What the guards and witnesses of a grading said, put together into tests, violations and the verdict.

Nothing here reads what a service printed: a design can print whatever it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .grader.messages import Message
from .score import TestOutcome


@dataclass
class Simulation:
    """One simulation with cocotb: the tests it was to run and how they ended."""

    planned: list[str]
    outcomes: dict[str, str] = field(default_factory=dict)

    def results(self) -> dict[str, str]:
        """Every planned test; one that nothing was heard of ended in an error."""
        return {name: self.outcomes.get(name, "error") for name in [*self.planned, *self.outcomes]}

    def failed(self) -> bool:
        """Whether a test did anything but pass or be skipped."""
        return any(outcome not in ("passed", "skipped") for outcome in self.results().values())


@dataclass
class Item:
    """One test of pytest, with the simulations it ran."""

    name: str
    phases: dict[str, str] = field(default_factory=dict)
    unfinished: bool = False
    """Whether it failed where it would have gone on to more, such as a further configuration."""
    simulations: list[Simulation] = field(default_factory=list)

    def outcome(self) -> str:
        """How pytest judged it; ``error`` when it was never judged."""
        if "failed" in self.phases.values():
            return "failed"
        return self.phases.get("call") or self.phases.get("setup", "passed").replace("passed", "error")

    @property
    def function(self) -> str:
        """Its name without parameters: what its siblings of one parametrised function share."""
        return self.name.partition("[")[0]

    def planned(self) -> list[str]:
        """The tests of the simulation that it has, the longest where it has several."""
        return max((list(simulation.results()) for simulation in self.simulations), key=len, default=[])

    def earned(self) -> float | None:
        """What it adds to partial credit, 0..1; None where it was skipped.

        It is the share of its tests that passed in every simulation that it ran. Where it failed for another reason, or
        before it had run all of them, nobody knows what share that would be, and it earns nothing.
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
        """Its single tests, or itself where it has none or failed beyond them.

        Args:
            expected: The tests of a sibling. One that came to no simulation, as the design did not compile with its
                parameters, failed as many: else breaking a configuration would cost less than a wrong result in it.
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
    """Everything that was heard during one service."""

    items: dict[str, Item] = field(default_factory=dict)
    compiled: list[bool] = field(default_factory=list)
    """Whether each call of a compiler succeeded."""
    compiler: str = ""
    """What the compiler said when it first failed."""
    simulated: int = 0
    """How many simulations were begun."""
    violations: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Why a simulation was refused although nobody cheated."""
    notes: list[str] = field(default_factory=list)
    """What a design wanted to write or read, and did not."""

    def item(self, name: str) -> Item:
        """The item of that name; without a name, a simulation that is no pytest's."""
        return self.items.setdefault(name, Item(name or "simulation", {} if name else {"call": "passed"}))

    def tests(self, service: str, code: int | None) -> list[TestOutcome]:
        """The tests of the service, one at least."""
        siblings: dict[str, list[str]] = {}
        for item in self.items.values():
            siblings[item.function] = max(siblings.get(item.function, []), item.planned(), key=len)
        found = [test for item in self.items.values() for test in item.tests(siblings[item.function])]
        if not found or (code != 0 and all(test.outcome in ("passed", "skipped") for test in found)):
            outcome = "passed" if code == 0 else "error" if code is None else "failed"
            found.append(TestOutcome(name=service, outcome=outcome))
        return found

    def earned(self, code: int | None) -> list[float]:
        """What each item of the service adds to partial credit, 0..1; one for all where it has none.

        A service that failed although nothing was heard to fail earns nothing.
        """
        earned = [share for item in self.items.values() if (share := item.earned()) is not None]
        if code != 0 and all(share == 1.0 for share in earned):
            return [0.0] * max(len(earned), 1)
        return earned or [1.0]


def account(messages: Iterable[Message], *, check_results: bool = True) -> Account:
    """Put together what was said during one service.

    Args:
        messages: In the order they were heard.
        check_results: Whether a results file that says better than the witness did is a violation.
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
            # What the checker read after the simulation, against what was heard during it.
            simulations = total.item(message["item"]).simulations
            if not simulations or simulations[-1].failed():
                total.violations.append(f"{message['file']}: says that all tests passed, which nobody saw")
    total.violations = list(dict.fromkeys(total.violations))
    return total


def share(tests: Sequence[TestOutcome]) -> tuple[int, int]:
    """How many tests passed, of how many; those skipped count for nothing."""
    counted = [test for test in tests if test.outcome != "skipped"]
    return sum(test.outcome == "passed" for test in counted), len(counted)
