"""``rtl-agent-gym score``: grade one set of files, or many."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .. import strict_json
from ..episodes.rules import EpisodeConfig
from ..episodes.runtime import acquire
from ..errors import UsageError
from ..options import LONGEST_TIMEOUT, EpisodeRules
from ..problems import Problem, find_problem, load_problems
from ..problems.paths import ANSWER_FILE, in_graded_folders
from ..scoring import TIME_LIMIT, RewardWeights, Score
from ..scoring.cache import default_cache_dir
from ..scoring.scorer import require_scorable
from ..visible import visible
from .options import (
    GRADING,
    CacheOption,
    JsonOption,
    ProblemOption,
    ProblemsOption,
    WeightsOption,
    one_problem,
    options_as,
    parameters_of,
)
from .show import console_beside, print_score, progress_bar

_MOST = 64 << 20

Candidate = tuple[Problem, dict[str, str | bytes]]
"""A problem, and the files to grade for it."""


@options_as("rules", EpisodeConfig, parameters_of(EpisodeRules, *GRADING))
def score_command(
    rules: EpisodeConfig,
    problems: ProblemsOption = "bundled",
    problem: ProblemOption = None,
    files: Annotated[
        Path | None,
        typer.Option("--files", metavar="DIR", help="A work folder; for a text, a folder with subjective.txt."),
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(
            "--candidates",
            metavar="FILE",
            help='JSON Lines of {"id": …, "files": {path: text}}, or "response": text.',
        ),
    ] = None,
    weights: WeightsOption = "default",
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=LONGEST_TIMEOUT, help="Time limit of the hidden tests, in seconds per candidate."),
    ] = TIME_LIMIT,
    workers: Annotated[int, typer.Option(min=1, help="Candidates to grade at the same time.")] = 2,
    cache: CacheOption = True,
    json_: JsonOption = False,
) -> None:
    """Grade files with the hidden tests of their problem.

    With --files, exits 0 when the design passed and 1 when it did not. With --candidates, prints one line of text (or
    of JSON) for each candidate, in order, once all before it are graded, and exits 0 regardless of the verdicts.
    """
    if (files is None) == (candidates is None):
        raise UsageError("choose what to grade: either --files DIR with --problem ID, or --candidates FILE")
    wanted, batch = RewardWeights.preset(weights), list[Candidate]()
    if files is not None:
        chosen = one_problem(problems, problem)
        batch = [(chosen, dict(read_folder(files, chosen)))]
    else:
        assert candidates is not None
        batch = list(read_candidates(candidates, load_problems(problems, ids=problem), problem))
        if not batch:
            raise UsageError(f"--candidates {candidates}: contains no candidate; write one JSON object per line")
    options = rules.grading
    for distinct in {candidate.id: candidate for candidate, _ in batch}.values():
        require_scorable(distinct, options)
    console = console_beside(json_ or candidates is not None)
    gradings = default_cache_dir() if cache else None

    def show(number: int, score: Score) -> None:
        graded, _ = batch[number]
        if candidates is None:
            print_score(console, score, wanted, of_text=graded.asks_text)
        elif not json_:
            verdict = "passed" if score.passed else "failed"
            typer.echo(f"{graded.id}\t{verdict}\t{score.reward:.3f}\t{visible(score.reason)}")
        if json_:
            place = {} if candidates is None else {"candidate": number}
            typer.echo(json.dumps({"problem_id": graded.id, **place, "score": score.model_dump(mode="json")}))

    async def grade_all() -> list[Score]:
        turn = asyncio.Semaphore(workers)
        waiting = workers if len(batch) > workers else 0
        async with acquire() as lease:
            scorer = lease.runtime.scorer(wanted, gradings, waiting=waiting, options=options)
            scrolling = candidates is not None and sys.stdout.isatty()
            with progress_bar(console, "grading", len(batch), hidden=scrolling) as progress:

                async def grade(candidate: Candidate) -> Score:
                    async with turn:
                        score = await scorer.score(*candidate, timeout)
                    progress.advance(progress.task_ids[0])
                    return score

                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(grade(candidate)) for candidate in batch]
                    for number, task in enumerate(tasks if candidates is not None else ()):
                        show(number, await task)
            return [task.result() for task in tasks]

    scores = asyncio.run(grade_all())
    if candidates is None:
        show(0, scores[0])
    raise typer.Exit(0 if candidates is not None or scores[0].passed else 1)


def read_folder(folder: Path, problem: Problem) -> Iterator[tuple[str, bytes]]:
    """The regular files in a work folder; those that are not graded have no content. Links are not followed.

    Raises `UsageError` if the folder does not exist, is too large or cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"--files {folder}: there is no such folder; give a work folder that contains rtl/")
    total = 0

    def refuse(error: OSError) -> NoReturn:
        raise UsageError(f"--files {error.filename}: cannot be read: {error.strerror}") from error

    def is_graded(path: Path) -> bool:
        inside = path.relative_to(folder)
        return inside.parts[0] == ANSWER_FILE or in_graded_folders(problem, inside.as_posix())

    def on_unreadable_folder(error: OSError) -> None:
        if Path(error.filename) == folder or is_graded(Path(error.filename)):
            refuse(error)

    for place, _, names in os.walk(folder, onerror=on_unreadable_folder):
        for name in sorted(names):
            path = Path(place, name)
            if path.is_symlink() or not path.is_file():
                continue
            inside = path.relative_to(folder).as_posix()
            if not is_graded(path):
                yield inside, b""
                continue
            try:
                total += path.stat().st_size
                if total > _MOST:
                    raise UsageError(f"--files {folder}: more than {_MOST >> 20} MiB of files; is this a work folder?")
                yield inside, path.read_bytes()
            except OSError as error:
                refuse(error)


def read_candidates(path: Path, problems: list[Problem], only: str | None) -> Iterator[Candidate]:
    """The candidates in a JSON Lines file. A candidate without an id belongs to the only problem.

    Raises:
        UsageError: A line is not a candidate, or its problem is unknown or not `only`; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--candidates {path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = strict_json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not JSON ({error})") from error
        files = row.get("files") if isinstance(row, dict) else None
        if files is None and isinstance(row, dict) and isinstance(row.get("response"), str):
            files = {ANSWER_FILE: row["response"]}
        if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
            raise UsageError(f'{path}:{number}: expected {{"id": ID, "files": {{PATH: TEXT}}}}, or "response": TEXT')
        name = row.get("id", problems[0].id if len(problems) == 1 else None)
        if not isinstance(name, str):
            raise UsageError(f'{path}:{number}: the id of the problem is missing; add "id": ID')
        if only not in (None, name):
            raise UsageError(f"{path}:{number}: the id is {name!r}, not that of --problem {only}")
        try:
            yield find_problem(problems, name), files
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from error
