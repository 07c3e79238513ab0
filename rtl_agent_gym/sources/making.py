"""Examines designs and verifies the problems made from them: optimisation problems and verification problems.

`Examiner` and `in_order` are also used for mutants.
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
"""Seconds of wall time within which an examination must have received its processor time."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Store = TypeVar("_Store")


class Examiner(ABC, Generic[_Store]):
    """Examines designs, grades problems or mutants, and stores the results. Created by `open`.

    Args:
        provider: Creates the sandboxes in which designs are examined; they contain no files of an agent.
        scorer: Grades with this provider.
        store: Known results, and where new ones are stored; None for those of the package and the user's cache.
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
        """The results in the package and the user's cache."""

    @classmethod
    @asynccontextmanager
    async def open(cls, *, workers: int = 2, store: _Store | None = None, cache: bool = True) -> AsyncIterator[Self]:
        """Open an examiner with its own sandboxes and scorer, which are closed at the end.

        With `cache`, gradings are read from and stored in the cache on disk.
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
    """Makes problems from designs."""

    source: DerivedSource[CaseT, Options, KnownT]
    """Set by each subclass."""

    def _own_store(self) -> Store[KnownT]:
        return self.source.store()

    @staticmethod
    @abstractmethod
    async def examine(case: CaseT, options: Options, sandbox: Sandbox) -> KnownT:
        """Examine a design, in a sandbox that may be reused for others. Raises `SandboxError`."""

    @abstractmethod
    async def grade(self, problem: Problem) -> float:
        """The quality of a problem, from 0 to 1. Raises `SandboxError`."""

    async def make(self, case: CaseT, options: Options) -> tuple[Problem | None, KnownT]:
        """The verified problem made from a design, or None if it is not usable; and the stored result.

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
                if good < ENOUGH:  # retried because the result is stored, and a busy machine may have caused a time-out
                    good = max(good, await self.grade(problem))
                # In the meantime, another task may have verified another kind.
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
    """Process several items concurrently, and pass on the results in the order of the items.

    Args:
        items: Consumed only as needed.
        work: Processes an item; `at_once` items are processed at the same time.
        is_enough: Receives each result. If it returns True, the remaining work is cancelled.

    Raises:
        RTLGymError: The most informative of the errors that `work` raised.
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
    """Makes optimisation problems and stores the results."""

    source = optimization.SOURCE

    @staticmethod
    async def examine(case: WastefulCase, options: OptimizeOptions, sandbox: Sandbox) -> Measured:
        """Measure the costs of a wasteful design and its reference, and try to prove that they behave alike."""
        device, files = case.device, right_files(case.problem)
        reference, original = device.text(files), device.text({**files, case.path: case.text})
        wanted = {**device.settings, "designs": [reference, original, renamed_inside(original, device)]}
        await sandbox.write_files({**{name: template(name) for name in PROGRAMS}, "designs.json": json.dumps(wanted)})
        done = await sandbox.exec(["python3", "synthesis.py"], timeout=PATIENCE)
        if done.timed_out:
            raise HarnessError(f"the examination of {case.problem.id} did not end within {PATIENCE} s")
        try:
            found = json.loads(done.output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise HarnessError(f"the examination of {case.problem.id} has no result: {done.output[-400:]}") from None
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
        """1 if the reference has full quality, and the given design passes the hidden tests with quality 0; else 0."""
        right = await self.scorer.score(problem, {**problem.context, **(problem.golden or {})})
        given = await self.scorer.score(problem, problem.context) if right.passed else right
        idle = given.measures.get("equivalence") == "proved" and given.quality == 0.0
        good = right.passed and right.quality == 1.0 and idle and given.tests_passed == given.tests_total - 1
        return float(good)


FEWEST = 8
"""The smallest number of mutants of a problem."""
TRIED = 3
"""Mutants that are simulated per requested mutant."""
_SECONDS = 60
"""Limit on the processor time of a comparison or of Yosys."""
_DIFFERS = re.compile(r"^DIFFERS (\d+)$", re.MULTILINE)

_NETLIST = (
    "read_verilog -sv right.sv; hierarchy -check -top {top}; proc; flatten; opt -full; memory_dff; opt -full; "
    "fsm_detect; fsm_extract; fsm_opt; fsm_recode -encoding one-hot; fsm_map; opt -full; wreduce; opt_clean -purge; "
    "write_verilog -noattr same.sv"
)
"""Writes the same hardware as a netlist: flat, optimised, with other names and one-hot states."""


class VerificationMaker(Maker[Case, VerifyOptions, Findings]):
    """Makes verification problems and stores the results."""

    source = verification.SOURCE

    @staticmethod
    async def examine(case: Case, options: VerifyOptions, sandbox: Sandbox) -> Findings:
        """Find the mutants that behave differently and the variants that do not."""
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
        """The share of mutants that the reference rejects; 0 if it does not pass, or if its measured coverage is 0."""
        score = await self.scorer.score(problem, {**problem.context, **(problem.golden or {})})
        good = score.passed and (score.coverage > 0.0 or verification.COVERAGE not in problem.harness)
        return score.tests_passed / score.tests_total if good else 0.0


async def _netlist(device: Device, right: str, sandbox: Sandbox) -> str:
    """The design as a netlist by Yosys; empty if Yosys cannot read it."""
    await sandbox.write_files({"right.sv": right})
    command = f"yosys -q -p '{_NETLIST.format(top=device.name)}' >/dev/null 2>&1 && cat same.sv"
    return await _output(command, sandbox) or ""


async def _output(command: str, sandbox: Sandbox) -> str | None:
    """The output of a shell command; None if it fails or exceeds its processor time (a busy machine does not count)."""
    done = await sandbox.exec(["sh", "-c", f"ulimit -t {_SECONDS}; {command}"], timeout=PATIENCE)
    if done.timed_out:
        raise HarnessError(f"a comparison of designs did not get {_SECONDS} s of processor time within {PATIENCE} s")
    return done.output if done.exit_code == 0 else None


_BUILD = "iverilog -g2012 -Wno-timescale -s testbench -o compare.vvp compare.sv"


async def _first_error(text: str, sandbox: Sandbox) -> str:
    """The first error line of Icarus Verilog for a comparison; empty if it compiles."""
    await sandbox.write_files({"compare.sv": text})
    return (await _output(f"{_BUILD} >errors 2>&1 || head -n 1 errors", sandbox) or "").strip()


async def differing(
    device: Device, right: str, others: Sequence[str], sandbox: Sandbox, length: int, seed: int
) -> dict[int, bool]:
    """For each design, by index, whether its outputs differ from the correct design's where those are known (not x).

    Designs that do not compile or never end are missing from the result.
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
