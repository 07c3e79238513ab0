"""Runs a submitted program before the hidden tests, in sandboxes without hidden files.

A harness requests this with the program ``src/trials.py``. In rounds, that program decides which runs are needed, and
at the end what the hidden tests read about them, in ``src/trials.json``. It runs in separate sandboxes, without
submitted files. Each run has a fresh sandbox, in random order, so the submission knows only the files of its run.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from ..errors import HarnessError, SandboxBroken
from ..sandboxes import SandboxProvider, SandboxSpec
from .submission import SubmittedFiles

PROGRAM, FOUND = "src/trials.py", "src/trials.json"
FOLDER = "/tmp/trial"
"""Folder of a run's files, which include its program, ``run.py``."""
ROUNDS = 10
SECONDS, IN_ALL = 60.0, 900.0
"""Wall time of a run, and of all runs, without waiting for sandboxes. A submission that takes longer is at fault, like
an agent's command that times out: its other runs are skipped."""
LONGEST = 4_000_000
"""Maximum characters that a run may print, and that its last line may have in JSON."""
IN_A_ROUND = 8 * LONGEST
"""Maximum characters of the last lines of a round's runs. If there are more, all lines count as empty, so that the
order of the runs does not matter. It is above what an honest bench prints: the program of verification problems refuses
one whose next round would have files with more than 24 million characters."""
_PATIENCE, _LONGEST = 900.0, 64_000_000
"""Limits of the harness's program: wall time, and characters that it may print."""
_SPEC = SandboxSpec(for_grading=True)


async def with_trials(submission: SubmittedFiles, provider: SandboxProvider) -> tuple[SubmittedFiles, bool]:
    """The submission with the results of its runs added to the hidden files, and whether a time limit ended the runs.

    The submission is unchanged if its harness requests no runs.

    Raises:
        SandboxError: The machine failed, or the harness's program did.
    """
    problem = submission.problem
    if PROGRAM not in problem.harness:
        return submission, False
    late, used = False, 0.0
    known: dict[str, Any] = {"state": None, "results": {}}
    for _ in range(ROUNDS):
        asked = await _ask(submission, provider, known)
        if "found" in asked:
            harness = {**problem.harness, FOUND: json.dumps(asked["found"])}
            changed = problem.model_copy(update={"harness": harness})
            return replace(submission, problem=changed), late
        runs: dict[str, dict[str, str]] = asked["runs"]
        names, results = sorted(runs), dict[str, dict[str, Any]]()
        Random(secrets.randbits(64)).shuffle(names)
        for name in names:
            if late := late or used > IN_ALL:
                break
            results[name], seconds = await _run(submission, provider, runs[name])
            used += seconds
            late = results[name]["late"]
            if sum(len(result["output"]) for result in results.values()) > IN_A_ROUND:
                results = {name: {"output": "", "late": False} for name in names}
                break
        known = {"state": asked["state"], "results": results}
    raise HarnessError(f"the trials of {problem.id} did not end in {ROUNDS} rounds")


async def _ask(submission: SubmittedFiles, provider: SandboxProvider, known: Mapping[str, Any]) -> dict[str, Any]:
    """The next request of the harness's program: ``runs`` by name, each with its files, and ``state``; or ``found``."""
    hidden = {path: text for path, text in submission.problem.harness.items() if path.startswith("src/")}
    sandbox = await provider.create(_SPEC)
    try:
        await sandbox.write_files({**hidden, "known.json": json.dumps(known)})
        done = await sandbox.exec(["/venv/bin/python3", PROGRAM, "known.json"], timeout=_PATIENCE, max_output=_LONGEST)
        if await sandbox.lacked_memory():
            raise HarnessError(f"the machine had too little memory for the trials of {submission.problem.id}")
    except SandboxBroken as error:  # not the submission's fault: no submitted program ran there
        raise HarnessError(f"the trials of {submission.problem.id} failed: {error}") from error
    finally:
        await sandbox.close()
    try:
        asked: dict[str, Any] = json.loads(done.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise HarnessError(f"the trials of {submission.problem.id} failed: {done.output[-400:]!r}") from None
    return asked


async def _run(
    submission: SubmittedFiles, provider: SandboxProvider, files: Mapping[str, str]
) -> tuple[dict[str, Any], float]:
    """A run's result: the last line it printed, which the submission may have written, and whether it timed out; and
    its wall time in seconds, by the sandbox's clock: this process may have been stopped meanwhile. A line that is not
    ASCII counts as empty: the harness's programs print JSON in ASCII.

    Raises:
        SandboxError: The machine failed.
    """
    sandbox = await provider.create(_SPEC)
    result, begun = {"output": "", "late": False}, time.monotonic()
    try:
        await sandbox.write_files(submission.tree)
        await sandbox.write_files({f"{FOLDER[1:]}/{name}": text for name, text in files.items()}, root="/")
        begun = time.monotonic()
        done = await sandbox.run(f"cd {FOLDER} && /venv/bin/python3 run.py", timeout=SECONDS, max_output=LONGEST)
        seconds = done.seconds
        line = (done.output.strip().splitlines() or [""])[-1]
        kept = line.isascii() and len(json.dumps(line)) <= LONGEST
        result = {"output": line if kept else "", "late": done.timed_out}
        if await sandbox.lacked_memory():
            raise HarnessError(f"the machine had too little memory for a trial of {submission.problem.id}")
    except SandboxBroken:
        seconds = time.monotonic() - begun
    finally:
        await sandbox.close()
    return result, seconds
