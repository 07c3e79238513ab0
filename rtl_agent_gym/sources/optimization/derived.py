"""Optimisation problems made of problems with a reference solution: the source ``…+ppa?goal=area&count=100``.

The agent gets a wasteful design that does what the reference solution does, and makes it smaller or faster. Which of
the wastes cost anything, and that they change nothing else, must be known first, from ``problems optimize``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from random import Random
from typing import Any, Literal, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.compose import COMPOSE_FILE
from rtl_agent_gym.problems.loading import load_problems
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.registry import Located, read_query
from rtl_agent_gym.problems.rows import Place
from rtl_agent_gym.sources.mutants.derived import is_derived
from rtl_agent_gym.sources.optimization.wastes import WASTES
from rtl_agent_gym.sources.verification.derived import specification
from rtl_agent_gym.sources.verification.designs import Device, device_of, right_files
from rtl_agent_gym.sources.verification.findings import KeyedModel, Store

Goal = Literal["area", "flops", "delay"]
"""What is to become less: the area of the cells, the number of flip-flops, or the longest path."""
GOALS: tuple[Goal, ...] = get_args(Goal)

SUFFIX = "+ppa"
GAP = 1.25
"""How many times the reference's figure the wasteful design's is, at least."""
THRESHOLD = 0.8
"""Share of the reference's gain that a design must reach to pass."""
VARIANTS = 2
"""Texts of each waste and file that are tried at most."""

_SOURCE = re.compile(r"(?P<base>.+)\+ppa(?:\?(?P<query>[^?]*))?", re.DOTALL)
_NUMBER = re.compile(r"_(\d+)$")
_VERSION = 1
"""Of how problems are made and measured."""
_WORDS = {
    "area": "the area of its cells",
    "flops": "its number of flip-flops",
    "delay": "its longest path (from an input or a flip-flop to an output or a flip-flop)",
}
_RULES = (
    "Keep the ports, the parameters with their defaults, and what the design does in every clock cycle after a reset, "
    "including its latency.\n\n"
    "Hidden tests check the design. Then Yosys synthesises it for a library of simple cells (`synth -flatten`, `abc`), "
    "and it is proved that the netlist behaves like the given design; without a complete proof, at most half of the "
    "gain counts. Other names or another order of lines gain nothing. The design must be plain RTL with the given "
    "clock: no latches, strings, escaped names, or system tasks other than `$clog2`, `$signed`, `$unsigned`, `$bits`, "
    "`$countones`, `$onehot` and `$onehot0`. Attributes, initial values and comments for tools are ignored."
)


class OptimizeOptions(BaseModel):
    """What may follow the question mark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    goal: Goal | Literal["any"] = "any"
    count: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many problems; None for all."""
    seed: int = Field(default=0, ge=0)
    """Of the draw of wastes."""


class Measured(KeyedModel):
    """What is known of a wasteful design."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem_id: str
    waste: str
    fault: str = ""
    """Why no problem can be made of it; empty if one can."""
    original: dict[str, float] = Field(default_factory=dict)
    """The wasteful design's figures by goal: the best of its text and variants of it that differ in names and order."""
    reference: dict[str, float] = Field(default_factory=dict)
    verified: dict[str, bool] = Field(default_factory=dict)
    """For each goal that was graded: whether the reference passes with all of the gain, and the wasteful design passes
    the hidden tests and gains nothing."""
    image: str = ""
    """The digest of the simulation image."""

    def gap(self, goal: str) -> float:
        """How many times the reference's figure the wasteful design's is."""
        lean = self.reference.get(goal, 0)
        return self.original[goal] / lean if lean else 0.0

    def goals(self, wanted: str) -> list[Goal]:
        """The goals that a problem can have, those with the most to gain first."""
        found = [goal for goal in GOALS if self.gap(goal) >= GAP and wanted in (goal, "any")]
        return sorted(found, key=self.gap, reverse=True)


def measured_store() -> Store[Measured]:
    """What was measured, in ``$XDG_CACHE_HOME/rtl-agent-gym/optimization``."""
    return Store(Measured, "optimization")


class Case(NamedTuple):
    """A wasteful design that may become a problem."""

    problem: Problem
    device: Device
    waste: str
    path: str
    text: str
    """The file's, with the waste."""
    key: str


def parse_source(source: str) -> tuple[str, OptimizeOptions]:
    """The source of the designs, and the options.

    Raises:
        UsageError: An option is not valid, or the designs would be those of optimisation problems.
    """
    match = _SOURCE.fullmatch(source)
    if match is None or _SOURCE.fullmatch(match["base"]):
        raise UsageError(f"{source}: expected SOURCE{SUFFIX}?goal=…, with one {SUFFIX}")
    expected = {
        "goal": f"one of any, {', '.join(GOALS)}",
        "count": "a number from 1 to 1000000",
        "seed": "a number from 0 up",
    }
    return match["base"], read_query(OptimizeOptions, source, match["query"] or "", expected)


def read_source(source: str) -> Iterator[Located]:
    """The problems of a source that ends in ``+ppa``, for the registry.

    Raises:
        UsageError: As `parse_source`; or there are fewer problems, or they are not measured yet.
    """
    base, options = parse_source(source)
    store, made = measured_store(), 0
    for case in cases(load_problems(base), options):
        if options.count is not None and made == options.count:
            return
        known = store.get(case.key)
        goals = known.goals(options.goal) if known and not known.fault else []
        if known is None or (goals and goals[0] not in known.verified):
            words = f" --count {options.count}" if options.count else ""
            raise UsageError(
                f"{source}: it is not known yet what the wastes of {case.problem.id} cost; find out once with: "
                f"rtl-agent-gym problems optimize '{base}' --goal {options.goal} --seed {options.seed}{words} "
                "--out FILE.jsonl"
            )
        if goals and known.verified[goals[0]]:
            made += 1
            yield optimization_problem(case, known, goals[0]), Place(source, made)
    if made < (options.count or 1):
        raise UsageError(too_few(source, options.count or 1, made))


def too_few(source: str, wanted: int, made: int) -> str:
    """The message for a source with fewer wasteful designs than problems are wanted."""
    return f"{source}: {made} optimisation problems can be made of its designs, not {wanted}; choose a smaller count"


def cases(problems: Sequence[Problem], options: OptimizeOptions, left_out: list[str] | None = None) -> Iterator[Case]:
    """The wasteful designs of problems, no two alike: of each waste in turn, of each problem in turn.

    Args:
        problems: With reference solutions.
        options: Those of the problems.
        left_out: Why problems are left out is added here.
    """
    devices = []
    for problem in problems:
        try:
            device = device_of(problem)
        except ProblemError as error:
            if left_out is not None:
                left_out.append(str(error).replace("verification problem", "optimisation problem"))
            continue
        if device.reset and not is_derived(problem):
            devices.append((problem, device))
    seen = set()
    names = list(WASTES)
    Random(f"wastes/{options.seed}").shuffle(names)
    for at in range(len(names)):
        for number, (problem, device) in enumerate(devices):
            for case in _wasteful(problem, device, names[(at + number) % len(names)], options.seed):
                if case.key not in seen:
                    seen.add(case.key)
                    yield case


def _wasteful(problem: Problem, device: Device, waste: str, seed: int) -> Iterator[Case]:
    files = right_files(problem)
    for path in device.sources:
        rng, texts = Random(f"{waste}/{seed}/{problem.id}"), list[str]()
        for text in WASTES[waste](files[path], device, rng):
            if len(texts) == VARIANTS:
                break
            if text not in (files[path], *texts):
                texts.append(text)
                parts = [_VERSION, files, device.sources, device.name, path, text, specification(problem)]
                key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
                yield Case(problem, device, waste, path, text, key)


def optimization_problem(case: Case, known: Measured, goal: Goal) -> Problem:
    """The problem of making a design smaller or faster."""
    problem, device = case.problem, case.device
    files = right_files(problem)
    stem, number = _NUMBER.sub("", problem.id), (_NUMBER.search(problem.id) or ["", "0001"])[1]
    settings = {
        "top": device.name,
        "clock": device.clock,
        "reset": device.reset,
        "level": device.reset_level,
        "ports": [[port.name, port.direction, port.width] for port in device.ports],
        "sources": list(device.sources),
        "folders": [f"-I/code/{folder}" for folder in sorted({path.rpartition("/")[0] for path in device.sources})],
        "goal": goal,
        "original": known.original,
        "reference": known.reference,
        "threshold": THRESHOLD,
        "guards": {"proof": True},
    }
    compose = yaml.safe_load(problem.harness[COMPOSE_FILE])
    compose["services"]["quality"] = yaml.safe_load(template("service.yml"))
    context = {**problem.context, **files, **specification(problem), case.path: case.text}
    return Problem(
        id=f"{stem[:140]}_ppa_{goal}_{case.key}_{number}",
        category=7,
        difficulty=problem.difficulty,
        prompt=_prompt(case, known, goal),
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


PROGRAMS = ("cells.genlib", "netlists.py", "synthesis.py", "test_quality.py")


def _prompt(case: Case, known: Measured, goal: Goal) -> str:
    documents = ", ".join(f"`{path}`" for path in specification(case.problem))
    sources = ", ".join(f"`{path}`" for path in case.device.sources)
    return (
        f"The design `{case.device.name}` in {sources} is right: it does what {documents} says. But it is wasteful.\n\n"
        f"Rewrite it so that {_WORDS[goal]} becomes as small as you can make it; it is {known.original[goal]:g} now. "
        f"{_RULES}\n"
    )


@cache
def template(name: str) -> str:
    """A file of the hidden harness."""
    return resources.files(__package__).joinpath("harness", name).read_text(encoding="utf-8")


def designs_of(case: Case) -> list[Any]:
    """The texts that are compared: the reference and the wasteful design."""
    files = right_files(case.problem)
    return [case.device.text(files), case.device.text({**files, case.path: case.text})]
