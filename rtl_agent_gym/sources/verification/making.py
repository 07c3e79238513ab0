"""Finds out which mutants of a design differ and which variants do not, and verifies the problem made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rtl_agent_gym.errors import HarnessError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.sandboxes import Sandbox
from rtl_agent_gym.sources.derivation import Case
from rtl_agent_gym.sources.making import PATIENCE, Maker
from rtl_agent_gym.sources.verification.benches import comparison
from rtl_agent_gym.sources.verification.derived import SOURCE, Findings, VerifyOptions, cycles, drawn_mutants
from rtl_agent_gym.sources.verification.designs import Device, renamed_inside, right_files

FEWEST = 8
"""Mutants of a problem, at least."""
TRIED = 3
"""Mutants that are simulated for each one that is wanted."""
_SECONDS = 60
"""Processor time of a comparison or of Yosys."""
_DIFFERS = re.compile(r"^DIFFERS (\d+)$", re.MULTILINE)

_NETLIST = (
    "read_verilog -sv right.sv; hierarchy -check -top {top}; proc; flatten; opt -full; memory_dff; opt -full; "
    "fsm_detect; fsm_extract; fsm_opt; fsm_recode -encoding one-hot; fsm_map; opt -full; wreduce; opt_clean -purge; "
    "write_verilog -noattr same.sv"
)
"""Writes the same hardware from a netlist: flat, optimised, with other names and other codes of its states."""


class VerificationMaker(Maker[Case, VerifyOptions, Findings]):
    """Makes verification problems and remembers what it found out."""

    source = SOURCE

    @staticmethod
    async def examine(case: Case, options: VerifyOptions, sandbox: Sandbox) -> Findings:
        """The mutants that differ and the variants that do not."""
        problem, device = case.problem, case.device
        right, length = device.text(right_files(problem)), cycles(problem)
        variants = [renamed_inside(right, device), await _netlist(device, right, sandbox)]
        drawn = drawn_mutants(case, options.seed)
        digests = list(drawn)[: TRIED * options.mutants]
        others = [*variants, *(drawn[digest] for digest in digests)]
        differ = await differing(device, right, others, sandbox, length, options.seed + 1)
        found = [digest for at, digest in enumerate(digests, len(variants)) if at in differ][: options.mutants]
        return Findings(
            key=case.key,
            problem_id=problem.id,
            mutants=tuple(found),
            renamed=0 not in differ,
            netlist=variants[1] if 1 not in differ else "",
            fault=""
            if len(found) >= FEWEST
            else f"{len(found)} of its mutants differ in simulation, {FEWEST} are needed",
        )

    async def grade(self, problem: Problem) -> float:
        """The share of the mutants that the reference rejects; 0 if it does not pass."""
        score = await self.scorer.score(problem, {**problem.context, **(problem.golden or {})})
        return score.tests_passed / score.tests_total if score.passed else 0.0


async def _netlist(device: Device, right: str, sandbox: Sandbox) -> str:
    """The design as Yosys writes it; empty if Yosys cannot read it."""
    await sandbox.write_files({"right.sv": right})
    command = f"yosys -q -p '{_NETLIST.format(top=device.name)}' >/dev/null 2>&1 && cat same.sv"
    return await _output(command, sandbox) or ""


async def _output(command: str, sandbox: Sandbox) -> str | None:
    """What a shell command prints; None if it fails, or needs too much processor time, however busy the machine is."""
    done = await sandbox.exec(["sh", "-c", f"ulimit -t {_SECONDS}; {command}"], timeout=PATIENCE)
    if done.timed_out:
        raise HarnessError(f"a comparison of designs did not get {_SECONDS} s of processor time in {PATIENCE} s")
    return done.output if done.exit_code == 0 else None


async def differing(
    device: Device, right: str, others: Sequence[str], sandbox: Sandbox, length: int, seed: int
) -> set[int]:
    """The numbers of the designs whose outputs differ from the right one's where those are known.

    A design that does not compile, or never ends, is not among them.
    """
    found, groups = set[int](), [[at for at, text in enumerate(others) if text]]
    while groups:
        group = groups.pop()
        text = comparison(device, right, [others[at] for at in group], cycles=length, seed=seed)
        await sandbox.write_files({"compare.sv": text})
        build = "iverilog -g2012 -Wno-timescale -s testbench -o compare.vvp compare.sv 2>/dev/null"
        output = await _output(f"{build} && vvp -n compare.vvp", sandbox)
        if output is not None:
            found |= {group[int(number)] for number in _DIFFERS.findall(output)}
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return found
