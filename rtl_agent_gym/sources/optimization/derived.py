"""Optimisation problems made from problems with a reference solution: the source ``…+ppa?goal=area&count=100``.

The agent gets a wasteful design that behaves like the reference solution, and makes it smaller or faster. First,
``problems optimize`` must measure what each waste costs, and prove that it does not change the behaviour.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal, get_args

import yaml
from pydantic import Field

from ...problems.compose import COMPOSE_FILE
from ...problems.model import Problem
from ..derivation import Case, DerivedOptions, DerivedSource, Device, Known, Store, derived_id, devices, right_files
from ..mutants.derived import is_derived
from ..suites.common import harness_file, json_digest
from ..verification.derived import documented, specification
from .wastes import WASTES

Goal = Literal["area", "flops", "delay"]
"""What to reduce: the area of the cells, the number of flip-flops, or the longest path."""
GOALS: tuple[Goal, ...] = get_args(Goal)

GAP = 1.25
"""Lowest ratio of the wasteful design's cost to the reference's."""
THRESHOLD = 0.8
"""Share of the reference's gain that a design must reach to pass."""
VARIANTS = 2
"""Maximum number of wasteful texts tried per waste and file."""

_VERSION = 4
"""Increased when the way in which problems are made or measured changes."""
_WORDS = {
    "area": "the area of its cells",
    "flops": "its number of flip-flops",
    "delay": "its longest path (from an input or a flip-flop to an output or a flip-flop)",
}
_RULES = (
    "Keep the ports, the parameters with their defaults, and what the design does in every clock cycle after a reset, "
    "including its latency.\n\n"
    "Hidden tests check the design. Then Yosys synthesises it for a library of simple cells (`synth -flatten`, `abc`), "
    "and it is proved that the netlist behaves like the given design; without a complete proof, nothing is earned. "
    "Other names or another order of lines gain nothing. The design must be plain RTL with one "
    "edge of the given clock: no latches, no asynchronous set or reset but the given reset, no strings, escaped names, "
    "included files, or system tasks other than `$clog2`, `$signed`, `$unsigned`, `$bits`, `$countones`, `$onehot` and "
    "`$onehot0`. "
    "Assertions, attributes, initial values and comments for tools are ignored."
)


class OptimizeOptions(DerivedOptions):
    """Options after the question mark of a source name."""

    goal: Literal["any", Goal] = "any"
    """What to reduce; any: for each design, the cost that its waste raises most."""
    seed: int = Field(default=0, ge=0)
    """Seed for drawing wastes."""


class Measured(Known):
    """The stored results for a wasteful design.

    For each goal that was graded, `verified` is 1 if the reference passes with full quality, and the wasteful design
    passes the hidden tests with quality 0; else 0.
    """

    original: dict[str, float] = Field(default_factory=dict)
    """The wasteful design's cost by goal: the lower one of its text and of a variant with other names."""
    reference: dict[str, float] = Field(default_factory=dict)

    def gap(self, goal: str) -> float:
        """The wasteful design's cost divided by the reference's; 0 if the latter is 0 or unknown."""
        lean = self.reference.get(goal, 0)
        return self.original[goal] / lean if lean else 0.0

    def kind(self, options: OptimizeOptions) -> Goal | Literal[""]:
        """The goal of the problem: of the possible ones, that with the greatest gap."""
        goals = [goal for goal in GOALS if self.gap(goal) >= GAP and options.goal in (goal, "any")]
        return max(goals, key=self.gap, default="")

    def reason(self, options: OptimizeOptions) -> str:
        if self.fault:
            return self.fault
        if goal := self.kind(options):
            return f"{goal}: its reference does not earn the full quality, or the wasteful design already earns some"
        gaps = [f"{goal} is {self.gap(goal):.2f} times" for goal in GOALS if options.goal in (goal, "any")]
        return f"its waste costs too little: {', '.join(gaps)} the reference's, and {GAP} times is needed"


@dataclass(frozen=True)
class WastefulCase(Case):
    """A wasteful design that may become a problem."""

    waste: str
    path: str
    text: str
    """The text of the file at `path`, with the waste."""

    @property
    def label(self) -> str:
        return f"{self.problem.id} with {self.waste}"


def cases(
    problems: Sequence[Problem], options: OptimizeOptions, left_out: list[str] | None = None
) -> Iterator[WastefulCase]:
    """The wasteful designs of problems, all different, alternating between wastes and between problems.

    The reasons for skipping problems are added to `left_out`.
    """
    left_out = [] if left_out is None else left_out
    designs = []
    for problem, device in devices(problems, left_out):
        if not device.reset:
            left_out.append(f"{problem.id}: its design has no input that is named like a reset")
        elif is_derived(problem):
            left_out.append(f"{problem.id}: it is a debugging problem; name the source that it is made of")
        else:
            designs.append((problem, device))
    seen = set()
    names = list(WASTES)
    Random(f"wastes/{options.seed}").shuffle(names)
    for at in range(len(names)):
        for number, (problem, device) in enumerate(designs):
            for case in _wasteful(problem, device, names[(at + number) % len(names)], options.seed):
                if case.key not in seen:
                    seen.add(case.key)
                    yield case


def _wasteful(problem: Problem, device: Device, waste: str, seed: int) -> Iterator[WastefulCase]:
    files = right_files(problem)
    for path in device.sources:
        rng, texts = Random(f"{waste}/{seed}/{problem.id}"), list[str]()
        for text in WASTES[waste](files[path], device, rng):
            if len(texts) == VARIANTS:
                break
            if text not in (files[path], *texts):
                texts.append(text)
                parts = [_VERSION, files, device.sources, device.name, path, text, specification(problem)]
                yield WastefulCase(problem, device, json_digest(parts)[:12], waste, path, text)


def optimization_problem(case: WastefulCase, known: Measured, options: OptimizeOptions) -> Problem:
    """The problem of making a design smaller or faster."""
    problem, device, goal = case.problem, case.device, known.kind(options)
    files = right_files(problem)
    settings = {
        **device.settings,
        "ports": device.ports,
        "sources": device.sources,
        "goal": goal,
        "original": known.original,
        "reference": known.reference,
        "threshold": THRESHOLD,
    }
    compose = yaml.safe_load(problem.harness[COMPOSE_FILE])
    compose["services"]["quality"] = yaml.safe_load(template("service.yml"))
    context = {**problem.context, **files, **specification(problem), case.path: case.text}
    return Problem(
        id=derived_id(problem, f"ppa_{goal}_{case.key}"),
        category=7,
        difficulty=problem.difficulty,
        prompt=(
            f"{documented(problem, device)} But it is wasteful.\n\nRewrite it so that {_WORDS[goal]} becomes as small "
            f"as you can make it; it is {known.original[goal]:g} now. {_RULES}\n"
        ),
        system_message=problem.system_message,
        context=context,
        targets=(case.path,),
        harness={
            **problem.harness,
            COMPOSE_FILE: yaml.safe_dump(compose, sort_keys=False),
            "src/quality.json": json.dumps(settings, indent=1) + "\n",
            "src/reference.sv": device.text(files),
            **{f"src/{name}": template(name) for name in PROGRAMS},
        },
        golden={case.path: files[case.path]},
    )


template = partial(harness_file, package=__package__)
"""Returns the text of a file of the hidden harness."""
PROGRAMS = ("cells.genlib", "netlists.py", "synthesis.py", "test_quality.py")


SOURCE = DerivedSource(
    command="optimize",
    name="optimisation problems",
    options=OptimizeOptions,
    store=partial(Store, Measured, "optimization"),
    cases=cases,
    problem=optimization_problem,
)
read_source = SOURCE.read
