"""Verification problems made from problems with a reference solution: the source ``…+verify?kind=stimulus&count=100``.

The agent gets the specification and the correct design, and writes a bench; the hidden tests run it with correct
variants and mutants. First, ``problems verify`` must find which variants behave the same and which mutants differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from pydantic import Field, ValidationInfo, field_validator

from ...problems.model import Problem
from ..derivation import (
    ENOUGH,
    Case,
    DerivedOptions,
    DerivedSource,
    Device,
    Known,
    Store,
    derived_id,
    devices,
    renamed_inside,
    right_files,
    with_prefix,
)
from ..families import SPECIFICATION
from ..mutants.derived import is_derived, task_path, task_text
from ..mutants.mutant import draw_mutants, problem_mutants
from ..suites.common import harness_file, json_digest
from .benches import reference_checker, reference_in_python, stimuli

Kind = Literal["stimulus", "checker", "assertions", "cocotb"]
"""What to write: a complete testbench; a checker for given stimuli; immediate assertions for hidden stimuli; a
complete testbench in Python."""
KINDS: tuple[Kind, ...] = get_args(Kind)

SHIPPED = Path(__file__).with_name("findings.jsonl")
"""The package's results for the bundled problems, written by ``benchmarks/verification.py``."""
STIMULI = "verif/stimuli.sv"
COVERAGE = "src/design_coverage.py"
"""The program that measures coverage, in problems that ask for it."""
THRESHOLD = 0.9
"""Share of the mutants that a bench must reject to pass."""
SIMULATION_SECONDS = 10
"""Limit on the processor time of one simulation."""
PYTHON_SECONDS = 20
"""Limit on the processor time of one run of a bench in Python."""
MOST_EVENTS, MOST_STEPS = 1_000_000, 100_000
"""The limits of the same names in the harness: of a bench in Verilog, and of one in Python."""
CYCLES, FAMILY_CYCLES = 10_000, 2_000
"""Clock cycles of the stimuli; the second is for problems of a family."""

_HIDDEN = "HIDDEN0_"
_template = partial(harness_file, package=__package__)


class Form(NamedTuple):
    """What differs between the kinds of problems."""

    category: int
    module: str
    path: str
    task: str


_VERDICT = (
    "It rejects a design by calling `$error` or `$fatal`, or by an immediate assertion without `else` that fails. "
    "Texts that it prints do not count."
)
_INPUTS = "All its ports are inputs, with the names and widths of the ports of `{design}`."
FORMS: dict[Kind, Form] = {
    "stimulus": Form(
        12,
        "testbench",
        "verif/testbench.sv",
        "Write a testbench for it, as the module `testbench` without ports in `{path}`. It instantiates `{design}` "
        f"once without parameters, drives it, and checks what it does. {_VERDICT} It accepts a design by ending "
        "without that, with `$finish`.",
    ),
    "checker": Form(
        13,
        "port_checker",
        "verif/port_checker.sv",
        f"Write a checker for it, as the module `port_checker` in `{{path}}`. {_INPUTS} `{STIMULI}` drives the design "
        f"and instantiates the checker beside it. {_VERDICT}",
    ),
    "assertions": Form(
        14,
        "port_assertions",
        "verif/port_assertions.sv",
        f"Write immediate assertions for it, in the module `port_assertions` in `{{path}}`. {_INPUTS} It is "
        "instantiated beside the design. Hidden stimuli change the inputs at the falling edges of the clock, and the "
        "reset up to 2 ns later; half a period is 5 ns. They keep no promise of the specification about inputs: the "
        f"reset may come and go without a clock edge. {_VERDICT}",
    ),
    "cocotb": Form(
        12,
        "",
        "verif/bench.py",
        "Write a testbench for it, as tests of cocotb 2 in `{path}`. They get `{design}` as `dut`, drive its inputs, "
        "and check what it does. A test that fails rejects a design; tests that all pass accept it. What they do may "
        "depend on the outputs, and on random numbers with a fixed seed. Everything is in this file: other Python "
        "files of yours are left out.",
    ),
}
_HIDDEN_DESIGNS = (
    "Your file is run with hidden designs of the same name and ports: right ones, which may be written in another way, "
    f"and ones with a bug. It must accept every right design, whatever its outputs are before the first reset, and "
    f"reject at least {THRESHOLD:.0%} of the others."
)
_RULES = (
    f"{_HIDDEN_DESIGNS} It sees a design through its ports only: files, `force`, names inside of the design and "
    "arguments of the simulator are not available. A simulation has "
    f"{SIMULATION_SECONDS} seconds of processor time in Icarus Verilog (`iverilog -g2012`), and ports may change at "
    f"{MOST_EVENTS:,} points in time, two for a clock cycle; running out of either rejects nothing."
)
_PYTHON_RULES = (
    f"{_HIDDEN_DESIGNS} It sees a design through its ports only; there are no names inside of `dut`. A run has "
    f"{PYTHON_SECONDS} seconds of processor time with Icarus Verilog, and may change inputs {MOST_STEPS:,} times, two "
    "for a clock cycle; running out of either rejects nothing."
)


class VerifyOptions(DerivedOptions):
    """Options after the question mark. The seed determines the drawn mutants and the reference's stimuli."""

    kind: Kind = "stimulus"
    """What to write: stimulus: a complete testbench; checker: a checker for given stimuli; assertions: immediate
    assertions for hidden stimuli; cocotb: a complete testbench in Python."""
    mutants: int = Field(default=12, ge=8, le=24)
    """Maximum number of mutants per problem."""
    coverage: bool = False
    """Measure the coverage of testbenches with Verilator (kind stimulus only)."""

    @field_validator("coverage")
    @classmethod
    def _of_testbenches(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("kind") != "stimulus":
            raise ValueError("only testbenches (kind=stimulus) have a coverage; choose this kind or leave out coverage")
        return value


class Findings(Known):
    """The results for a design; `verified` has, by kind, the share of the mutants that the reference rejects."""

    mutants: tuple[str, ...] = ()
    """Digests of the mutants whose outputs differ from the correct design's under the given stimuli."""
    netlist: str = ""
    """The design as a netlist by Yosys; empty if there is none, or if its outputs differ."""
    renamed: bool = False
    """Whether the outputs of the design with other internal names are the same, as they should be."""

    def kind(self, options: VerifyOptions) -> str:
        """The requested kind of problem, with ``, coverage`` appended if coverage is measured."""
        return f"{options.kind}, coverage" if options.coverage else options.kind

    def reason(self, options: VerifyOptions) -> str:
        strength = self.verified.get(self.kind(options), 0.0)
        return self.fault or f"its reference rejects {strength:.0%} of the mutants, {ENOUGH:.0%} are needed"


def cases(problems: Sequence[Problem], options: VerifyOptions, left_out: list[str] | None = None) -> Iterator[Case]:
    """The designs, all different, for which benches can be written; `left_out` gets the reasons for the others."""
    seen = set()
    for problem, device in devices(problems, [] if left_out is None else left_out):
        mutated = _mutated(problem)
        parts = [_VERSION, right_files(problem), device.sources, device.name, device.clock, device.reset]
        parts += [device.reset_level, options.seed, options.mutants, mutated, specification(problem)]
        if (key := json_digest(parts)[:12]) not in seen:
            seen.add(key)
            yield Case(problem, device, key)


_VERSION = 1
"""Increased when the results of examining a design, or the way they are obtained, change."""


def _mutated(problem: Problem) -> dict[str, str]:
    """The buggy file that a debugging problem starts with, which is used as a mutant; empty for other problems."""
    if not is_derived(problem):
        return {}
    return {path: problem.context[path] for path in problem.targets if path in problem.context}


def drawn_mutants(case: Case, seed: int) -> dict[str, str]:
    """The mutants of a design, by digest, each as the text of one file, in the order in which they are tried.

    The bug of a debugging problem comes first.
    """
    problem, device = case.problem, case.device
    files = right_files(problem)
    changes = [changed] if (changed := _mutated(problem)) else []
    drawn = draw_mutants(problem_mutants(problem), seed)
    changes += [{mutant.path: mutant.after} for mutant in drawn if mutant.path in device.sources]
    texts = [device.text({**files, **change}) for change in changes]
    return {hashlib.sha256(text.encode()).hexdigest()[:16]: text for text in texts}


def has_its_mutants(case: Case, findings: Findings, options: VerifyOptions) -> bool:
    """Whether the mutants in the findings can still be drawn; another version of pyslang may give other mutants."""
    return not findings.mutants or set(findings.mutants) <= drawn_mutants(case, options.seed).keys()


def specification(problem: Problem) -> dict[str, str]:
    """The files that describe what the design does."""
    documents = {path: text for path, text in problem.context.items() if path.startswith("docs/")}
    if SPECIFICATION in documents and "src/case.json" in problem.harness:
        return documents
    return documents if is_derived(problem) else {**documents, task_path(problem): task_text(problem)}


def documented(problem: Problem, device: Device) -> str:
    """The sentence of a task that says where the correct design and its specification are."""
    documents = ", ".join(f"`{path}`" for path in specification(problem))
    sources = ", ".join(f"`{path}`" for path in device.sources)
    return f"The design `{device.name}` in {sources} is right: it does what {documents} says."


def verification_problem(case: Case, findings: Findings, options: VerifyOptions) -> Problem:
    """The problem of writing a bench for a design; `findings` has its equivalent variants and its differing mutants."""
    problem, device = case.problem, case.device
    form, files = FORMS[options.kind], right_files(problem)
    design = device.text(files)
    others = {"renamed": renamed_inside(design, device) if findings.renamed else "", "netlist": findings.netlist}
    others = {f"right_{name}.sv": text for name, text in others.items() if text not in ("", design)}
    right = {"right.sv": design, **others}
    drawn = drawn_mutants(case, options.seed)
    mutants = {f"mutant_{at:02}.sv": drawn[digest] for at, digest in enumerate(findings.mutants, 1)}
    settings = {
        "bench": f"/code/{form.path}",
        "top": form.module,
        "module": device.name,
        "clock": device.clock,
        "coverage": options.coverage,
        "ports": device.ports,
        "right": list(right),
        "mutants": list(mutants),
        "seconds": PYTHON_SECONDS if options.kind == "cocotb" else SIMULATION_SECONDS,
        "threshold": THRESHOLD,
    }
    context = {**specification(problem), **{path: files[path] for path in device.sources}}
    harness = {
        "docker-compose.yml": harness_file("docker-compose.yml"),
        "src/.env": _environment(form),
        "src/judge.json": json.dumps(settings, indent=1) + "\n",
        **{f"src/{name}": _template(template) for name, template in _programs(options.kind).items()},
        **({COVERAGE: _template("design_coverage.py")} if options.coverage else {}),
        **{f"src/designs/{name}": with_prefix(text, _HIDDEN) for name, text in {**right, **mutants}.items()},
    }
    drive = partial(stimuli, device, cycles=cycles(problem), seed=options.seed + 1)
    if options.kind == "stimulus":
        golden = reference_checker(device, "model_compare", design)
        golden += "\n" + drive(form.module, ["model_compare compare"])
    elif options.kind == "cocotb":
        golden = reference_in_python(device, design, cycles=cycles(problem), seed=options.seed + 1)
    else:
        golden = reference_checker(device, form.module, design, asserts=options.kind == "assertions")
        instances = [f"{form.module} {form.module}_instance"]
        # These are the stimuli under which the mutants differed from the correct design.
        harness["src/stimuli.sv"] = drive(f"{_HIDDEN}stimuli", instances, dut=f"{_HIDDEN}dut")
        if options.kind == "checker":
            context[STIMULI] = drive("stimuli", instances)
    return Problem(
        id=derived_id(problem, f"verify_{options.kind}_{'coverage_' * options.coverage}{case.key}"),
        category=form.category,
        difficulty=problem.difficulty,
        prompt=task_for(case, form),
        system_message=problem.system_message,
        context=context,
        targets=(form.path,),
        harness=harness,
        golden={form.path: golden},
    )


def _environment(form: Form) -> str:
    """The harness's variables. A bench in Python is not compiled and has no top module, so it needs fewer of them."""
    lines = harness_file("env").splitlines(keepends=True)
    kept = [line for line in lines if form.module or not ("DESIGN_FILE" in line or "TOP_NAME" in line)]
    return "".join(kept).replace("DESIGN_FILE", form.path).replace("TOP_NAME", form.module)


def _programs(kind: Kind) -> dict[str, str]:
    """The names of a kind's hidden programs, and the templates from which they are made."""
    if kind == "cocotb":
        return {**{name: name for name in ("conftest.py", "run.py", "trials.py")}, "test_runner.py": "test_trials.py"}
    return {name: name for name in ("conftest.py", "simulation.py", "test_runner.py")}


def cycles(problem: Problem) -> int:
    """The clock cycles of the stimuli for a problem's design."""
    return FAMILY_CYCLES if "src/case.json" in problem.harness else CYCLES


def task_for(case: Case, form: Form) -> str:
    """The task of writing a bench for a design."""
    task = form.task.format(path=form.path, design=case.device.name)
    rules = _PYTHON_RULES if form.path.endswith(".py") else _RULES
    return f"{documented(case.problem, case.device)}\n\n{task}\n\n{rules}\n"


SOURCE = DerivedSource(
    command="verify",
    name="verification problems",
    options=VerifyOptions,
    store=partial(Store, Findings, "verification", SHIPPED),
    cases=cases,
    problem=verification_problem,
    fits=has_its_mutants,
)
read_source = SOURCE.read
