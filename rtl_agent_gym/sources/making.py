"""Examines designs, and verifies the problems made of them: to make them smaller or faster, and to write benches.

`Examiner` and `in_order` serve mutants, too.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Generic, Self, TypeVar

from ..errors import HarnessError, SandboxBroken, most_telling
from ..problems.model import Problem
from ..sandboxes import Sandbox, SandboxProvider
from ..sandboxes.choice import make_provider
from ..scoring import ScoreCache, Scorer
from .derivation import ENOUGH, Case, CaseT, DerivedSource, Device, KnownT, Options, Store, renamed_inside, right_files
from .optimization import derived as optimization
from .optimization.derived import GOALS, PROGRAMS, Measured, OptimizeOptions, WastefulCase, template
from .verification import derived as verification
from .verification.benches import comparison
from .verification.derived import Findings, VerifyOptions, cycles, drawn_mutants

PATIENCE = 1800
"""Seconds in which a machine must have given the processor time of an examination."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Store = TypeVar("_Store")


class Examiner(ABC, Generic[_Store]):
    """Examines and grades, and remembers what it found out. Made by `open`.

    Args:
        provider: Creates the sandboxes in which designs are examined; no agent's file is there.
        scorer: Grades with this provider.
        store: What is known, and where more goes; None for that of the package and the user's cache.
        workers: How many designs or mutants are examined at the same time.
        image: The digest of the provider's image.
    """

    def __init__(
        self, provider: SandboxProvider, scorer: Scorer, store: _Store | None, workers: int, image: str
    ) -> None:
        self.scorer, self.store = scorer, store or self._own_store()
        self._provider, self._image = provider, image
        self._turn = asyncio.Semaphore(workers)
        self._free: list[Sandbox] = []

    @abstractmethod
    def _own_store(self) -> _Store:
        """What the package and the user's cache know."""

    @classmethod
    @asynccontextmanager
    async def open(cls, *, workers: int = 2, store: _Store | None = None, cache: bool = True) -> AsyncIterator[Self]:
        """An examiner with sandboxes and a scorer, which are closed at the end.

        `cache` says whether gradings are taken from the cache on disk.
        """
        async with (
            make_provider() as provider,
            Scorer(provider, cache=ScoreCache() if cache else None, waiting=workers) as scorer,
        ):
            examiner = cls(provider, scorer, store, workers, await provider.image_digest())
            try:
                yield examiner
            finally:
                while examiner._free:
                    await examiner._free.pop().close()


class Maker(Examiner[Store[KnownT]], Generic[CaseT, Options, KnownT]):
    """Makes problems of designs."""

    source: DerivedSource[CaseT, Options, KnownT]
    """Set by each subclass."""

    def _own_store(self) -> Store[KnownT]:
        return self.source.store()

    @staticmethod
    @abstractmethod
    async def examine(case: CaseT, options: Options, sandbox: Sandbox) -> KnownT:
        """What can be found out about a design; the sandbox may be used for many. Raises `SandboxError`."""

    @abstractmethod
    async def grade(self, problem: Problem) -> float:
        """How good a problem is, from 0 to 1. Raises `SandboxError`."""

    async def make(self, case: CaseT, options: Options) -> tuple[Problem | None, KnownT]:
        """The verified problem of a design, or None; and what was found out.

        Raises:
            SandboxError: The machine failed.
        """
        async with self._turn:
            known = self.source.known(case, options, self.store)
            if known is None or known.image != self._image:
                known = await self._examined(case, options)
                self.store.put(known)
            if known.is_usable(options) is None:
                problem = self.source.problem(case, known, options)
                good = await self.grade(problem)
                if good < ENOUGH:  # it is kept, and the clock of a busy machine may have ended the grading
                    good = max(good, await self.grade(problem))
                # Another task may have verified another kind meanwhile.
                known = self.store.get(case.key) or known
                verified = {**known.verified, known.kind(options): good}
                known = known.model_copy(update={"verified": verified})
                self.store.put(known)
        return (self.source.problem(case, known, options) if known.is_usable(options) else None), known

    async def _examined(self, case: CaseT, options: Options) -> KnownT:
        sandbox = self._free.pop() if self._free else await self._provider.create()
        try:
            found = await self.examine(case, options, sandbox)
        except SandboxBroken as error:  # Yosys or a simulation needed too much memory
            await sandbox.close()
            found = self.store.model(key=case.key, problem_id=case.problem.id, fault=str(error))
        except BaseException:
            await sandbox.close()
            raise
        else:
            self._free.append(sandbox)
        return found.model_copy(update={"image": self._image})


async def in_order(
    items: Iterable[_Item],
    work: Callable[[_Item], Coroutine[Any, Any, _Result]],
    at_once: int,
    is_enough: Callable[[_Result], bool | None],
) -> None:
    """Work on several items at the same time, and hand over the results in the order of the items.

    Args:
        items: Taken only when they are needed.
        work: What is done with each, with `at_once` of them at the same time.
        is_enough: Gets each result. If it returns True, that was the last: work that is not finished is cancelled.

    Raises:
        RTLGymError: Of those that work raised, the one that explains most.
    """
    queue, running = iter(items), deque[asyncio.Task[_Result]]()
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                running += [tasks.create_task(work(item)) for item in islice(queue, at_once - len(running))]
                if not running or is_enough(await running.popleft()):
                    break
            for task in running:
                task.cancel()
    except BaseExceptionGroup as error:
        if (known := most_telling(error)) is None:
            raise
        raise known from error


class OptimizationMaker(Maker[WastefulCase, OptimizeOptions, Measured]):
    """Makes optimisation problems and remembers what it found out."""

    source = optimization.SOURCE

    @staticmethod
    async def examine(case: WastefulCase, options: OptimizeOptions, sandbox: Sandbox) -> Measured:
        """What a wasteful design and its reference cost, and whether they behave alike."""
        device, files = case.device, right_files(case.problem)
        reference, original = device.text(files), device.text({**files, case.path: case.text})
        wanted = {**device.settings, "designs": [reference, original, renamed_inside(original, device)]}
        await sandbox.write_files({**{name: template(name) for name in PROGRAMS}, "designs.json": json.dumps(wanted)})
        done = await sandbox.exec(["python3", "synthesis.py"], timeout=PATIENCE)
        if done.timed_out:
            raise HarnessError(f"an examination of {case.problem.id} did not end in {PATIENCE} s")
        try:
            found = json.loads(done.output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise HarnessError(f"an examination of {case.problem.id} has no result: {done.output[-400:]}") from None
        fault = found.get("fault", "")
        if not fault and found["proof"] != "proved":
            fault = f"it is not proved that the {case.waste} changes nothing: {found['proof']}"
        lean, *wasteful = found.get("costs", [{}])
        return Measured(
            key=case.key,
            problem_id=case.problem.id,
            fault=fault,
            original={goal: min(costs[goal] for costs in wasteful) for goal in GOALS} if wasteful else {},
            reference={goal: lean[goal] for goal in GOALS} if lean else {},
        )

    async def grade(self, problem: Problem) -> float:
        """1 if the reference earns everything, and the given design passes the hidden tests and gains nothing."""
        right = await self.scorer.score(problem, {**problem.context, **(problem.golden or {})})
        given = await self.scorer.score(problem, problem.context) if right.passed else right
        idle = given.measures.get("equivalence") == "proved" and given.quality == 0.0
        good = right.passed and right.quality == 1.0 and idle and given.tests_passed == given.tests_total - 1
        return float(good)


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

    source = verification.SOURCE

    @staticmethod
    async def examine(case: Case, options: VerifyOptions, sandbox: Sandbox) -> Findings:
        """The mutants that differ and the variants that do not."""
        problem, device = case.problem, case.device
        right, length = device.text(right_files(problem)), cycles(problem)
        variants = [renamed_inside(right, device), await _netlist(device, right, sandbox)]
        drawn = drawn_mutants(case, options.seed)
        digests = list(drawn)[: TRIED * options.mutants]
        others = [*variants, *(drawn[digest] for digest in digests)]
        differs = await differing(device, right, others, sandbox, length, options.seed + 1)
        found = [digest for at, digest in enumerate(digests, len(variants)) if differs.get(at)][: options.mutants]
        fault = "" if len(found) >= FEWEST else f"{len(found)} of its mutants differ in simulation, {FEWEST} are needed"
        if not differs:
            error = await _first_error(comparison(device, right, others[:1], cycles=1, seed=0), sandbox)
            fault = f"its comparison with mutants does not compile: {error}" if error else fault
        return Findings(
            key=case.key,
            problem_id=problem.id,
            mutants=tuple(found),
            renamed=differs.get(0) is False,
            netlist=variants[1] if differs.get(1) is False else "",
            fault=fault,
        )

    async def grade(self, problem: Problem) -> float:
        """The share of the mutants that the reference rejects; 0 if it does not pass, or reaches nothing."""
        score = await self.scorer.score(problem, {**problem.context, **(problem.golden or {})})
        good = score.passed and (score.coverage > 0.0 or verification.COVERAGE not in problem.harness)
        return score.tests_passed / score.tests_total if good else 0.0


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


_BUILD = "iverilog -g2012 -Wno-timescale -s testbench -o compare.vvp compare.sv"


async def _first_error(text: str, sandbox: Sandbox) -> str:
    """The first line that Icarus Verilog prints of a comparison that does not compile; empty if it compiles."""
    await sandbox.write_files({"compare.sv": text})
    return (await _output(f"{_BUILD} >errors 2>&1 || head -n 1 errors", sandbox) or "").strip()


async def differing(
    device: Device, right: str, others: Sequence[str], sandbox: Sandbox, length: int, seed: int
) -> dict[int, bool]:
    """By the numbers of the designs, whether their outputs differ from the right one's where those are known.

    A design that does not compile, or never ends, is not among them.
    """
    found, groups = dict[int, bool](), [[at for at, text in enumerate(others) if text]]
    while groups:
        group = groups.pop()
        text = comparison(device, right, [others[at] for at in group], cycles=length, seed=seed)
        await sandbox.write_files({"compare.sv": text})
        output = await _output(f"{_BUILD} 2>/dev/null && vvp -n compare.vvp", sandbox)
        if output is not None:
            different = {group[int(number)] for number in _DIFFERS.findall(output)}
            found |= {at: at in different for at in group}
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return found
