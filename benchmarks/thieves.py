"""Tries to get the score of every problem whose hidden test is a Verilog testbench by attacking the testbench: one
design of each kind, made from the names of the ports, without knowing the task.

    .venv/bin/python benchmarks/thieves.py verilog-eval:FOLDER rtllm:FOLDER
    .venv/bin/python benchmarks/thieves.py verilog-eval:FOLDER --undefended   # what each kind earns without the defence

The exit code is 1 if a score was stolen, unless the defence was left out.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections import Counter
from collections.abc import Sequence

from rtl_agent_gym import Problem, Score, Scorer, load_problems
from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.problems.notes import TESTBENCH
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring.harness import Defences
from rtl_agent_gym.sources.suites.common import DesignPort, plain, ports

KINDS = {
    "nothing": ("input {range} {name}", ""),
    "variables, unknown": ("input var logic {range} {name}", "always @({all}) {name} = 'x;\ninitial {name} = 'x;"),
    "variables, zero": ("input var logic {range} {name}", "always @({all}) {name} = 0;\ninitial {name} = 0;"),
    "nonblocking": ("input var logic {range} {name}", "always @({all}) {name} <= 'x;\nalways #1 {name} <= 'x;"),
    "procedural assign": ("input var logic {range} {name}", "initial assign {name} = 'x;"),
    "force": ("input {range} {name}", "initial force {name} = 'x;"),
    "a task's output": ("input var logic {range} {name}", "always @({all}) unknown_{width}({name});"),
    "one level below": ("input var logic {range} {name}", "below_{width} b_{name}({name});"),
    "nets, one level below": ("input {range} {name}", "below_{width} b_{name}({name});"),
    "nets, driven": ("input {range} {name}", "assign {name} = 'x;"),
    "outputs instead": ("output {range} {name}", "assign {name} = 'x;"),
}
"""How each input except the clock is declared, and what is done to it. The first kind attacks nothing: if it passes
because a constant is right or the testbench misses the mistake, no other kind counts as a theft on that problem."""
CLOCK = re.compile(r"clk|clock", re.IGNORECASE)


def thief(problem: Problem, of: Sequence[DesignPort], kind: str, *, output: str) -> str:
    """A design that takes control of its inputs from the testbench and computes nothing."""
    declared, action = KINDS[kind]
    module = module_of(problem.targets[0])
    parameters = ", ".join(f"{name} = 0" for name in parameters_of(problem))
    inputs = [port for port in of if port.direction == "input"]
    own = [port for port in inputs if not CLOCK.search(port.name)]
    heads, body = [], []
    for port in of:
        where = {"range": f"[{port.width - 1}:0]", "name": port.name, "width": port.width}
        if port in own:
            heads.append(declared.format(**where))
            body.append(action.format(**where, all=" or ".join(port.name for port in inputs)))
        else:
            heads.append(f"{port.direction} {where['range']} {port.name}")
            body += [f"assign {port.name} = {output};"] if port.direction == "output" else []
    widths = {port.width for port in own}
    tasks = [f"task unknown_{width}(output [{width - 1}:0] x); x = 'x; endtask" for width in widths]
    below = [
        f"module below_{width}(input var logic [{width - 1}:0] x);\nalways @(x) x = 'x;\ninitial x = 'x;\nendmodule"
        for width in widths
    ]
    head = f"#(parameter {parameters}) ({', '.join(heads)})" if parameters else f"({', '.join(heads)})"
    lines = [f"`timescale 1ps/1ps\nmodule {module} {head};", *tasks, *body, "endmodule", *below]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Grade the designs, print a line for each kind, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--undefended", action="store_true", help="without the defence of hidden testbenches")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--every", type=int, default=1, help="only every n-th problem")
    options = parser.parse_args()
    try:
        stolen = asyncio.run(steal(options))
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    return int(stolen and not options.undefended)


async def steal(options: argparse.Namespace) -> bool:
    """Grade the designs, print a line for each kind, and return whether a score was stolen.

    Raises:
        UsageError: A source has no problem whose reference has plain ports.
    """
    stolen = set[str]()
    defences = Defences(testbench=False) if options.undefended else None
    for source in options.sources:
        chosen = [problem for problem in load_problems(source)[:: options.every] if problem.golden]
        found = {problem.id: ports_of(problem) for problem in chosen}
        problems = [problem for problem in chosen if found[problem.id]]
        if not problems:
            raise UsageError(f"{source}: no problem has a reference with plain ports; choose another source or --every")
        if without := [problem.id for problem in chosen if not found[problem.id]]:
            print(f"left out, since the reference has no plain ports: {', '.join(without)}", file=sys.stderr)
        async with make_provider() as provider, Scorer(provider, defences=defences) as scorer:
            honest: set[str] = set()
            for kind in dict.fromkeys(["nothing", *options.kinds]):
                graded = (score(scorer, problem, found[problem.id], kind) for problem in problems)
                scores = await asyncio.gather(*graded)
                passed = {problem.id for problem, result in zip(problems, scores, strict=True) if result.passed}
                honest |= passed if kind == "nothing" else set()
                stolen |= passed - honest
                told = Counter(
                    result.reason.partition(":")[0].partition(",")[0] for result in scores if not result.passed
                )
                line = f"{source.partition(':')[0]:13} {kind:22} {len(passed):3} of {len(scores)} passed"
                print(f"{line}, stolen: {sorted(passed - honest) or 'none'}; {dict(told.most_common(3))}", flush=True)
    return bool(stolen)


def ports_of(problem: Problem) -> tuple[DesignPort, ...]:
    """The ports of the module that the problem asks for, from the reference solution; empty if they are not plain."""
    target = next(iter(problem.targets), "")
    return ports((problem.golden or {}).get(target, "")).get(module_of(target), ())


def parameters_of(problem: Problem) -> list[str]:
    """The design's parameters that the testbench sets by name; a design without them does not compile with it."""
    instance = rf"\b{re.escape(module_of(problem.targets[0]))}\s*#\s*\((.*?)\)\s*\w+\s*\("
    found = re.search(instance, plain(problem.harness.get(TESTBENCH, "")), re.DOTALL)
    return re.findall(r"\.\s*(\w+)\s*\(", found[1]) if found else []


def module_of(target: str) -> str:
    """The name of the module in a file."""
    return target.rsplit("/", 1)[-1].partition(".")[0]


async def score(scorer: Scorer, problem: Problem, found: Sequence[DesignPort], kind: str) -> Score:
    """The score of one kind of design on a problem. Kind "nothing" tries two constants; the better score counts."""
    target = problem.targets[0]
    constants = ("0", "'x") if kind == "nothing" else ("0",)
    texts = [thief(problem, found, kind, output=constant) for constant in constants]
    scores = [await scorer.score(problem, {target: text}) for text in texts]
    return max(scores, key=lambda result: result.reward)


if __name__ == "__main__":
    sys.exit(main())
