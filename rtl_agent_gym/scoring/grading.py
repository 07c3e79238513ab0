"""The results of a grading before any weights: the part of a score that the cache keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from ..visible import first_few, printable
from .harness import Defences, HarnessRun, scoring_limits
from .outcomes import Ran, share
from .score import Measured, RewardWeights, Score
from .static_stages import SYNTAX, disagreement, is_hdl
from .submission import SubmittedFiles

_MEASURED = "src/quality.json"
"""A file of harnesses that measure a design's quality."""
_LONGEST = 2000
"""Maximum characters of a reason; a design chooses some of the names in it."""
_COMPILER_ERROR = re.compile(r"^(?:/code/)?((?:rtl|verif|docs)/[^\s:]+:\d+): (.*\b(?:error|sorry)\b.*)$", re.MULTILINE)


class Grading(Measured):
    """Everything that was measured of one submission, independent of weights."""

    credit: float = 0.0
    notes: list[str] = Field(default_factory=list)
    """Files that the design tried to write or read and did not get."""
    repeatable: bool = True
    """Whether another grading would give the same result; False if the machine's speed or memory decided."""

    def score(
        self, weights: RewardWeights, submission: SubmittedFiles, *, seconds: float, retries: int, cached: bool = False
    ) -> Score:
        """The score under some weights, including what was left out of the submission."""
        done, total = share(self.tests)
        stages = {name: getattr(self, name) for name in ("passed", "format", "syntax", "interface", "compile")}
        reason = "; ".join(part for part in (self.reason, submission.omissions) if part)
        reason = printable(reason[: _LONGEST + 1])  # cut first: an escaped character takes up to ten
        reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} …"
        earned = 0.0 if self.violations else self.credit
        coverage = 0.0 if self.violations else float(self.measures.get("coverage", 0.0))
        return Score(
            **stages,
            tests_passed=0 if self.violations else done,
            tests_total=total,
            credit=earned,
            reward=weights.reward(**stages, tests=earned, coverage=coverage),
            violations=self.violations,
            left_out=[*first_few(submission.left_out), *first_few(self.notes)],
            quality=float(self.measures.get("quality", 0.0)),
            coverage=coverage,
            measures=self.measures,
            reason=reason,
            seconds=seconds,
            cached=cached,
            retries=retries,
            tests=self.tests,
        )


def judge_run(static: Grading, submission: SubmittedFiles, run: HarnessRun, defences: Defences) -> Grading:
    """Complete `static`, the stages that run nothing, with the results of the harness."""
    ran = Ran.of(run.services, check_results=defences.witness)
    accounts = ran.accounts
    violations = [*static.violations, *honest_places(ran.violations, submission.tree)]
    passed = ran.passes(violations)
    in_time = all(service["code"] is not None for service in run.services)
    readable = static.format == static.syntax == 1.0 and in_time
    # Some harnesses run only programs that do not report, such as Yosys; then the syntax decides.
    compiled = [ok for found in accounts for ok in found.compiled] or [passed or readable]
    reason = _reason(submission, run, ran, violations, passed)
    earned = ran.earned
    credit = 1.0 if passed else sum(earned) / len(earned) if earned else 0.0
    measures = {name: value for found in accounts for name, value in found.measures.items()}
    if "quality" in measures or _MEASURED in submission.problem.harness:
        # The quality counts if all other services pass; a measuring service that a design ended early is one of those.
        pairs = zip(accounts, run.services, strict=True)
        failed = any(service["code"] != 0 and not found.measures for found, service in pairs)
        credit = 0.0 if violations or failed else float(measures.get("quality", 0.0))
        measures["quality"] = credit
        reason = "; ".join(part for part in (reason, printable(str(measures.get("why", "")))) if part)
    second_opinion = disagreement(static.reason.startswith(SYNTAX), run.lint)
    return static.model_copy(
        update={
            "passed": passed,
            "compile": sum(compiled) / len(compiled),
            "tests": ran.tests,
            "credit": credit,
            "measures": measures,
            "violations": violations,
            "notes": [printable(text) for text in dict.fromkeys(text for found in accounts for text in found.notes)],
            "reason": "; ".join(part for part in (reason, static.reason, second_opinion) if part),
            "repeatable": static.repeatable and in_time and _ended_by_own_limits(run),
        }
    )


def _ended_by_own_limits(run: HarnessRun) -> bool:
    """Whether the run did not end for lack of memory, or did so at the limit that every grading has."""
    return not run.memory.out or (run.memory.own and run.memory.limit == scoring_limits()["memory"])


def honest_places(violations: Iterable[str], tree: Mapping[str, bytes]) -> list[str]:
    """Violations with their real files and lines. Each task is searched only once, since a design may be large.

    The compiler obeys `` `line `` directives. If a submitted file has one, the source text is searched instead: the
    place is the first line with the task's name, or else that of the directive.
    """
    shown = [printable(text) for text in violations]
    moved = _first_line(tree, re.compile(rb"`\s*line\b")) if shown else None
    if moved is None:
        return shown
    complaints = [re.sub(r"\A\S+:\d+: ", "", text) for text in shown]
    tasks = [match[0] if (match := re.match(r"[$`]\w+", text)) else "" for text in complaints]
    places = {task: _first_line(tree, re.compile(re.escape(task.encode()) + rb"\b")) for task in set(tasks) if task}
    return [
        f"{places.get(task) or moved}: {text} (there is a `line directive at {moved})"
        for task, text in zip(tasks, complaints, strict=True)
    ]


def _first_line(tree: Mapping[str, bytes], pattern: re.Pattern[bytes]) -> str | None:
    for path, content in sorted(tree.items()):
        if is_hdl(path) and (match := pattern.search(content)):
            number = content.count(b"\n", 0, match.start()) + 1
            return f"{path}:{number}"
    return None


def _first_words(text: str) -> str:
    """The first line of a compiler's output that is not blank; a design can make the compiler print blank lines."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "its compiler gives no reason")


def _reason(submission: SubmittedFiles, run: HarnessRun, ran: Ran, violations: Sequence[str], passed: bool) -> str:
    tests = ran.tests
    done, total = share(tests)
    if violations:
        return f"tried to reach the checker: {violations[0]}"
    if passed and done < total:  # a harness may require only some of its tests
        return f"{done} of {total} tests passed, which is enough"
    if passed:
        return f"all {done} tests passed" if total > 1 else "the hidden test passed"
    if absent := [target for target in submission.missing if target not in submission.tree]:
        return f"missing: {', '.join(absent)}"
    if submission.missing:
        return f"not submitted, or empty: {', '.join(submission.missing)}"
    for found in ran.accounts:
        if found.compiler:
            match = _COMPILER_ERROR.search(found.compiler)
            return f"does not compile: {f'{match[1]}: {match[2]}' if match else _first_words(found.compiler)}"
        if found.complaints:
            return f"the simulator refuses it: {found.complaints[0].removeprefix('?: ')}"
    late = [service["name"] for service in run.services if service["code"] is None]
    if late:
        return f"the hidden tests did not end in time (service {late[0]}); does the simulation never finish?"
    if run.memory.out:
        limit = f" ({run.memory.limit >> 20} MiB)" if run.memory.limit else ""
        there_is = f"a grading has{limit}" if run.memory.own else "the machine has, and used most of a grading's limit"
        return f"the compiler or the simulation needed more memory than {there_is}"
    if any(item.late for found in ran.accounts for item in found.items.values()):
        return f"the testbench timed out; {total - done} of {total} tests failed"
    bad = [test for test in tests if test.outcome not in ("passed", "skipped")]
    first = f", first {bad[0].name}" if bad else ""
    return f"{total - done} of {total} tests failed{first}"
