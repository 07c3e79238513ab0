#!/usr/bin/env python3
"""Measures whether a policy reads before it writes and repairs after an error, and how it does if files lie.

    .venv/bin/python benchmarks/looking.py golden
    .venv/bin/python benchmarks/looking.py local:models/teacher --count 128 --splits combinations names sizes

Plays one episode on each problem of a family whose files must be read, in real shells, graded by the hidden tests; then
the same problems with documents that lie, and with a smoke test that lies. Each row has the pass rate, the number of
episodes that read the document named in the prompt before they wrote a design, and, of those whose smoke test failed,
the number in which it passed in the end. Episodes are kept below ``--folder``; the same command continues a run.

The rows show what a policy needs from the files. If it passes as often when the documents lie, it did not need them. If
the smoke test demands random polarities, a policy that believes it is right by chance in 1 of 4 problems.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from learning_options import evaluate_all

from rtl_agent_gym import load_problems
from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.evaluation.results import read_results
from rtl_agent_gym.evaluation.statistics import wilson
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.sources.families import FAMILIES, draw_members
from rtl_agent_gym.sources.families.family import TARGET
from rtl_agent_gym.sources.families.looking import PASSED, SMOKE, LookingFamily
from rtl_agent_gym.transcripts import Transcript, read_transcript

LIES = ("", "documents", "smoke")


@dataclass(frozen=True)
class Acts:
    """What happened in one episode."""

    passed: bool
    looked: bool
    """It read the document that the prompt names before the first design was written."""
    failed: bool
    """The smoke test failed at least once, or the design did not compile with it."""
    repaired: bool
    """After that, it passed."""


def acts_of(transcript: Transcript, document: str, passed: bool) -> Acts:
    """What happened in an episode whose prompt names a document."""
    looked = written = failed = repaired = False
    for turn in transcript.turns:
        for ran in turn.commands:
            looked = looked or (names(ran.command, document) and not written)
            if SMOKE.partition("/")[0] in ran.command and "vvp" in ran.command:
                passes = PASSED.strip() in (ran.output or "").splitlines()
                repaired = failed and passes
                failed = failed or not passes
        written = written or TARGET in turn.files
    return Acts(passed, looked, failed, repaired)


def names(command: str, path: str) -> bool:
    """Whether a command contains a path, or a pattern such as ``docs/*.md`` that matches it."""
    parts = path.split("/")
    patterns = [word.split("/")[-len(parts) :] for word in re.findall(r"[^\s;|&<>()'\"]+", command)]
    return path in command or any(
        len(pattern) == len(parts) and all(map(fnmatchcase, parts, pattern)) for pattern in patterns
    )


def play(policy: str, family: str, split: str, lie: str, options: argparse.Namespace) -> Iterator[Acts]:
    """Play the episodes of one row."""
    source = f"family:{family}?count={options.count}&seed={options.seed}&split={split}" + (f"&lie={lie}" if lie else "")
    folder = options.folder / re.sub(r"\W+", "-", f"{policy}-{source}")
    extra: dict[str, Any] = {}
    if policy.startswith("local:"):
        extra = {"renderer": RENDERER, "model": ModelOptions(max_tokens=220, max_context=1000)}
    config = EvaluationConfig(
        problems=source,
        policy=policy,
        episode=EpisodeConfig(system_prompt=SYSTEM_PROMPT, max_turns=9),
        folder=folder,
        concurrency=options.concurrency,
        **extra,
    )
    asyncio.run(evaluate_all(config))
    looking = FAMILIES[family]
    assert isinstance(looking, LookingFamily)
    documents = {
        problem.id: looking.document(member)
        for problem, member in zip(load_problems(source), draw_members(source), strict=True)
    }
    for result in read_results(folder):
        if result.transcript is not None and result.score is not None:
            transcript = read_transcript(folder / result.transcript)
            yield acts_of(transcript, documents[result.problem_id], result.score.passed)


def row(name: str, acts: list[Acts]) -> str:
    """A row of the table."""
    passed, failed = sum(act.passed for act in acts), sum(act.failed for act in acts)
    low, high = wilson(passed, len(acts))
    looked = sum(act.looked for act in acts)
    repaired = f"{sum(act.repaired for act in acts)} of {failed}"
    return f"| {name} | {passed / len(acts):.1%} ({low:.1%} – {high:.1%}) | {looked} of {len(acts)} | {repaired} |"


def main() -> int:
    """Play, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="as for `rtl-agent-gym eval`, such as golden or local:FOLDER")
    looking = [name for name, family in FAMILIES.items() if isinstance(family, LookingFamily)]
    parser.add_argument("--family", choices=looking, default=looking[0])
    parser.add_argument("--splits", nargs="+", default=["combinations"], help="the first one is also played with lies")
    parser.add_argument("--count", type=int, default=64, help="problems of each row")
    parser.add_argument("--seed", type=int, default=11, help="seed of the problems")
    parser.add_argument("--folder", type=Path, default=Path("runs/looking"), help="folder of the episodes")
    parser.add_argument("--concurrency", type=int, default=8, help="episodes at the same time")
    options = parser.parse_args()
    rows = [(split, "") for split in options.splits] + [(options.splits[0], lie) for lie in LIES if lie]
    try:
        print("| problems | passed (95 %) | looked before writing | repaired after an error |\n|---|---|---|---|")
        for split, lie in rows:
            acts = list(play(options.policy, options.family, split, lie, options))
            print(row(f"`{split}`" + (f", {lie} lie" if lie else ""), acts), flush=True)
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
