"""Finds out which mutants of a design differ and which variants do not, and verifies the problem made of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rtl_agent_gym.errors import HarnessError, SandboxBroken
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.sandboxes import Sandbox, SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring import ScoreCache, Scorer
from rtl_agent_gym.sources.verification.benches import comparison
from rtl_agent_gym.sources.verification.derived import Case, VerifyOptions, cycles, drawn_mutants, verification_problem
from rtl_agent_gym.sources.verification.designs import Device, renamed_inside, right_files
from rtl_agent_gym.sources.verification.findings import Findings, FindingsStore

FEWEST = 8
"""Mutants of a problem, at least."""
TRIED = 3
"""Mutants that are simulated for each one that is wanted."""
_SECONDS, _PATIENCE = 60, 1800
"""Processor time of a comparison or of Yosys; and the time in which a machine must have given it."""
_DIFFERS = re.compile(r"^DIFFERS (\d+)$", re.MULTILINE)

_NETLIST = (
    "read_verilog -sv right.sv; hierarchy -check -top {top}; proc; flatten; opt -full; memory_dff; opt -full; "
    "fsm_detect; fsm_extract; fsm_opt; fsm_recode -encoding one-hot; fsm_map; opt -full; wreduce; opt_clean -purge; "
    "write_verilog -noattr same.sv"
)
"""Writes the same hardware from a netlist: flat, optimised, with other names and other codes of its states."""


class VerificationMaker:
    """Makes verification problems and remembers what it found out. Made by `verification_maker`.

    Args:
        provider: Creates the sandboxes in which right designs and mutants are compared; no agent's file is there.
        scorer: Grades the references.
        store: What is known, and where new findings go.
        workers: How many designs are examined at the same time.
    """

    def __init__(self, provider: SandboxProvider, scorer: Scorer, store: FindingsStore, workers: int) -> None:
        self._provider, self._scorer, self._store = provider, scorer, store
        self._turn = asyncio.Semaphore(workers)
        self._free: list[Sandbox] = []
        self._image = ""

    async def make(self, case: Case, options: VerifyOptions) -> tuple[Problem | None, Findings]:
        """The verified problem of a design, or None; and what was found out.

        Raises:
            SandboxError: The machine failed.
        """
        async with self._turn:
            self._image = self._image or await self._provider.image_digest()
            known = self._store.get(case.key)
            if known is None or known.image != self._image:
                known = await self._examine(case, options)
                self._store.put(known)
            if not known.fault and options.kind not in known.strength:
                problem = verification_problem(case, known, options)
                score = await self._scorer.score(problem, {**problem.context, **(problem.golden or {})})
                share = score.tests_passed / score.tests_total if score.passed else 0.0
                # Another task may have verified another kind meanwhile.
                known = self._store.get(case.key) or known
                known = known.model_copy(update={"strength": {**known.strength, options.kind: share}})
                self._store.put(known)
        usable = known.is_usable(options.kind)
        return (verification_problem(case, known, options) if usable else None), known

    async def _examine(self, case: Case, options: VerifyOptions) -> Findings:
        sandbox = self._free.pop() if self._free else await self._provider.create()
        try:
            found = await examine(case, options, sandbox)
        except SandboxBroken as error:  # Yosys or a simulation needed too much memory
            await sandbox.close()
            return Findings(key=case.key, problem_id=case.problem.id, fault=str(error), image=self._image)
        except BaseException:
            await sandbox.close()
            raise
        self._free.append(sandbox)
        return found.model_copy(update={"image": self._image})

    async def close(self) -> None:
        """End the sandboxes."""
        while self._free:
            await self._free.pop().close()


@asynccontextmanager
async def verification_maker(
    *, workers: int = 2, store: FindingsStore | None = None, cache: bool = True
) -> AsyncIterator[VerificationMaker]:
    """A maker with sandboxes and a scorer, which are closed at the end.

    Args:
        workers: How many designs are examined at the same time.
        store: Findings; None for those of the package and the user's cache.
        cache: Whether gradings are taken from the cache on disk.
    """
    async with (
        make_provider() as provider,
        Scorer(provider, cache=ScoreCache() if cache else None, waiting=workers) as scorer,
    ):
        maker = VerificationMaker(provider, scorer, store or FindingsStore(), workers)
        try:
            yield maker
        finally:
            await maker.close()


async def examine(case: Case, options: VerifyOptions, sandbox: Sandbox) -> Findings:
    """The mutants that differ and the variants that do not.

    Args:
        case: The design.
        options: Number and seed.
        sandbox: Simulates. It may be used for many designs.

    Raises:
        SandboxError: The machine failed.
    """
    problem, device, key = case
    right, length = device.text(right_files(problem)), cycles(problem)
    variants = [renamed_inside(right, device), await _netlist(device, right, sandbox)]
    drawn = drawn_mutants(case, options.seed)
    digests = list(drawn)[: TRIED * options.mutants]
    others = [*variants, *(drawn[digest] for digest in digests)]
    differ = await differing(device, right, others, sandbox, length, options.seed + 1)
    found = [digest for at, digest in enumerate(digests, len(variants)) if at in differ][: options.mutants]
    return Findings(
        key=key,
        problem_id=problem.id,
        mutants=tuple(found),
        renamed=0 not in differ,
        netlist=variants[1] if 1 not in differ else "",
        fault="" if len(found) >= FEWEST else f"{len(found)} of its mutants differ in simulation, {FEWEST} are needed",
    )


async def _netlist(device: Device, right: str, sandbox: Sandbox) -> str:
    """The design as Yosys writes it; empty if Yosys cannot read it."""
    await sandbox.write_files({"right.sv": right})
    command = f"yosys -q -p '{_NETLIST.format(top=device.name)}' >/dev/null 2>&1 && cat same.sv"
    return await _output(command, sandbox) or ""


async def _output(command: str, sandbox: Sandbox) -> str | None:
    """What a shell command prints; None if it fails, or needs too much processor time, however busy the machine is."""
    done = await sandbox.exec(["sh", "-c", f"ulimit -t {_SECONDS}; {command}"], timeout=_PATIENCE)
    if done.timed_out:
        raise HarnessError(f"a comparison of designs did not get {_SECONDS} s of processor time in {_PATIENCE} s")
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
