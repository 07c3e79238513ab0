"""Turns the messages of guards and witnesses into tests, violations and partial credit.

What a service printed is never read here, since a design can print anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .grader.messages import Build, Message, ServiceReport
from .score import TestOutcome

Simulation = dict[str, str]
"""The outcomes of the tests of one cocotb simulation; a planned test that never reported is an error."""
GOOD = ("passed", "skipped")


@dataclass
class Item:
    """One pytest test, with the simulations it ran."""

    name: str
    phases: dict[str, str] = field(default_factory=dict)
    unfinished: bool = False
    late: bool = False
    """Whether it failed with `TimeoutError`, as the harnesses of other benchmarks do when the testbench times out."""
    simulations: list[Simulation] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """Its outcome in pytest; ``error`` without one."""
        if "failed" in self.phases.values():
            return "failed"
        return self.phases.get("call") or self.phases.get("setup", "passed").replace("passed", "error")

    @property
    def function(self) -> str:
        """Its name without parameters, shared by all tests of one parametrised function."""
        return self.name.partition("[")[0]

    @property
    def earned(self) -> float | None:
        """Its partial credit, 0..1; None if it was skipped.

        This is the share of its tests that passed in every simulation it ran. If it failed for another reason, or
        before all its simulations ran, that share is unknown, and the credit is 0.
        """
        judged: dict[str, bool] = {}
        for name, outcome in (pair for simulation in self.simulations for pair in simulation.items()):
            if outcome != "skipped":
                judged[name] = judged.get(name, True) and outcome == "passed"
        if self.outcome == "skipped":
            return None
        if self.outcome == "passed" and not judged:
            return 1.0
        unexplained = self.outcome != "passed" and all(judged.values())
        return 0.0 if unexplained or self.unfinished else sum(judged.values()) / len(judged)

    def tests(self, expected: Iterable[str] = ()) -> list[TestOutcome]:
        """Its individual tests, and itself if it has none, or if it failed although they passed.

        Args:
            expected: The tests of an item with other parameters. If this item failed before any simulation, because
                the design did not compile, all of them count as errors: that must not cost less than wrong results.
        """
        simulations = self.simulations
        if not simulations and self.outcome in ("failed", "error"):
            simulations = [dict.fromkeys(expected, "error")]
        file, *rest = self.name.split("::")  # a parameter may contain a slash
        short = "::".join([file.rsplit("/", 1)[-1], *rest])
        found = [
            TestOutcome(name=f"{short}/{test}", outcome=outcome)
            for simulation in simulations
            for test, outcome in simulation.items()
        ]
        if not found or (self.outcome != "passed" and all(test.outcome in GOOD for test in found)):
            found.append(TestOutcome(name=short, outcome=self.outcome))
        return found


@dataclass
class Account:
    """The collected messages of one service."""

    items: dict[str, Item] = field(default_factory=dict)
    compiled: list[bool] = field(default_factory=list)
    """Whether each call of a compiler succeeded."""
    compiler: str = ""
    """The compiler's output at its first failure."""
    violations: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Reasons, other than violations, for which a simulation was refused."""
    notes: list[str] = field(default_factory=list)
    builds: list[Build] = field(default_factory=list)
    measures: dict[str, float | str] = field(default_factory=dict)

    @property
    def wraps(self) -> bool:
        """Whether the number of tests that failed outside of pytest is a multiple of 256, so that the exit status is 0.

        cocotb's Makefiles exit with the number of failed tests (`cocotb_tools.check_results`), of which an exit status
        keeps only the lowest eight bits.
        """
        last = self.items[""].simulations[-1:] if "" in self.items else []
        failed = sum(outcome not in GOOD for simulation in last for outcome in simulation.values())
        return failed > 0 and failed % 256 == 0

    def item(self, name: str) -> Item:
        """The item with this name; an empty name means a simulation outside of pytest."""
        return self.items.setdefault(name, Item(name or "simulation", {} if name else {"call": "passed"}))

    def tests(self, service: str, code: int | None) -> list[TestOutcome]:
        """The tests of the service, at least one."""
        siblings: dict[str, Simulation] = {}
        for item in self.items.values():
            siblings[item.function] = max(siblings.get(item.function, {}), *item.simulations, {}, key=len)
        found = [test for item in self.items.values() for test in item.tests(siblings[item.function])]
        if not found or (code != 0 and all(test.outcome in GOOD for test in found)):
            outcome = "passed" if code == 0 else "error" if code is None else "failed"
            found.append(TestOutcome(name=service, outcome=outcome))
        return found

    def earned(self, code: int | None) -> list[float]:
        """The partial credit of each item of the service, 0..1; a single one if it has no items.

        A service that failed although no reported test failed earns nothing. If it ran out of time, only finished items
        earn something, since the number of tests in the others is unknown.
        """
        earned = [
            share if code is not None or (name and "call" in item.phases) else 0.0
            for name, item in self.items.items()
            if (share := item.earned) is not None
        ]
        if code != 0 and all(share == 1.0 for share in earned):
            return [0.0] * max(len(earned), 1)
        return earned or [1.0]


def account(
    messages: Iterable[Message], *, check_results: bool = True, written: dict[str, Simulation] | None = None
) -> Account:
    """Collect the messages of one service.

    Args:
        messages: The messages, in the order of arrival.
        check_results: Whether a results file that reports better results than the witness is a violation.
        written: The simulations of earlier services, by the path of their results files; those of this one are added.
    """
    total = Account()
    written = {} if written is None else written
    running: dict[int, Simulation] = {}
    for message in messages:
        if message["kind"] == "compiler" or message["kind"] == "simulator":
            total.violations += message["violations"]
            total.complaints += message["refusals"]
            if message["kind"] == "compiler" and message["code"] is not None:
                total.compiled.append(message["code"] == 0)
                total.builds += [message["build"]] if message["build"] else []
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
            item.late = item.late or message["late"]
            total.measures |= message.get("measures", {})
        elif message["kind"] == "plan":
            simulation = dict.fromkeys(message["tests"], "error")
            total.item(message["item"]).simulations.append(simulation)
            running[message["process"]] = written[message["file"]] = simulation
        elif message["kind"] == "test":
            if message["process"] in running:
                running[message["process"]][message["test"]] = message["outcome"]
        elif message["kind"] == "results" and check_results and message["total"] and not message["failed"]:
            # Compare what the checker read with the messages during the simulation, whichever test ran it. A file that
            # no simulation wrote may be a copy of one.
            read = [written[message["file"]]] if message["file"] in written else list(written.values())
            if not any(all(outcome in GOOD for outcome in simulation.values()) for simulation in read):
                total.violations.append(f"{message['file']}: reports that all tests passed, but no witness saw that")
    total.violations = list(dict.fromkeys(total.violations))
    return total


@dataclass(frozen=True)
class Ran:
    """The results of a harness's services, and the verdict."""

    services: Sequence[ServiceReport]
    accounts: Sequence[Account]

    @classmethod
    def of(cls, services: Sequence[ServiceReport], *, check_results: bool = True) -> Ran:
        """From the supervisor's report; `check_results` as for `account`."""
        written: dict[str, Simulation] = {}
        heard = [service["messages"] for service in services]
        return cls(services, [account(part, check_results=check_results, written=written) for part in heard])

    @property
    def tests(self) -> list[TestOutcome]:
        found: list[TestOutcome] = []
        for service, told in zip(self.services, self.accounts, strict=True):
            prefix = f"{service['name']}: " if len(self.services) > 1 else ""
            tests = told.tests(service["name"], service["code"])
            found += [TestOutcome(name=prefix + test.name, outcome=test.outcome) for test in tests]
        return found

    @property
    def earned(self) -> list[float]:
        """The partial credit of each item of all services."""
        pairs = zip(self.services, self.accounts, strict=True)
        return [part for service, told in pairs for part in told.earned(service["code"])]

    @property
    def violations(self) -> list[str]:
        """The design's violations, without duplicates."""
        return list(dict.fromkeys(text for found in self.accounts for text in found.violations))

    def passes(self, violations: Sequence[str]) -> bool:
        """The official verdict: no violations, and every service exited with 0, none because of `Account.wraps`."""
        ended = all(service["code"] == 0 for service in self.services)
        return ended and not violations and not any(found.wraps for found in self.accounts)


def share(tests: Sequence[TestOutcome]) -> tuple[int, int]:
    """The numbers of passed tests and of all tests, skipped ones excluded."""
    counted = [test for test in tests if test.outcome != "skipped"]
    return sum(test.outcome == "passed" for test in counted), len(counted)
