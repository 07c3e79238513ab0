#!/usr/bin/env python3
"""The pass rate of a shipped model, with its 95 % interval, on problems that it was not trained on.

    .venv/bin/python benchmarks/shipped_models.py teacher 'family:registers?count=256&seed=11&split=combinations'
    .venv/bin/python benchmarks/shipped_models.py student registers --text --count 512 --seed 11 --reference own

The first form plays episodes in real shells at temperature 1, graded by the hidden tests. Its episodes are kept below
``--folder``: the same command continues after an interruption. ``--text`` plays no episodes: it compares the text of
sampled designs with the reference solutions, which takes seconds. With it, ``--reference`` puts a reference solution
into the prompt, the problem's ``own`` or that of ``another`` problem, as for a student that is its own teacher.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

from learning_options import evaluate_all, local_config

from research.making import FAMILIES, check
from rtl_agent_gym.demo.shipped import RENDERER, SMALL, shipped
from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.evaluation.statistics import wilson
from rtl_agent_gym.renderers import get_renderer


def play(options: argparse.Namespace) -> tuple[int, int]:
    """Play an episode of each problem. Returns the number that passed, and the number of episodes."""
    name = re.sub(r"\W+", "-", options.problems)
    folder, turns = options.folder / f"{options.model}-{name}", SMALL.defaults["max_turns"]
    model = shipped(options.model)
    config = local_config(model, options.problems, folder, turns, concurrency=options.concurrency)
    summary = asyncio.run(evaluate_all(config)).summary
    return summary.passed, summary.episodes


def compare_texts(options: argparse.Namespace) -> tuple[int, int]:
    """Sample designs. Returns the number that equal the reference solution, and the number of designs."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (kind.from_pretrained(shipped(options.model)) for kind in (AutoModelForCausalLM, AutoTokenizer))
    family = FAMILIES.get(options.problems)
    if family is None:
        raise UsageError(f"{options.problems} is not a family; with --text choose one of {', '.join(FAMILIES)}")
    renderer = get_renderer(RENDERER, tokenizer)
    found = check(
        model, tokenizer, renderer, family, options.split, options.count, options.seed, reference=options.reference
    )
    return found.right, found.members


def main() -> int:
    """Measure, print the rate, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("student", "teacher"))
    parser.add_argument("problems", help="a source of problems; with --text, the name of a family")
    parser.add_argument("--text", action="store_true", help="compare texts instead of playing episodes")
    parser.add_argument("--split", default="combinations", help="with --text: split of the problems")
    parser.add_argument("--count", type=int, default=256, help="with --text: number of problems")
    parser.add_argument("--seed", type=int, default=11, help="with --text: seed of the problems and of sampling")
    parser.add_argument("--reference", choices=("own", "another"), default="", help="with --text")
    parser.add_argument("--folder", type=Path, default=Path("runs/shipped_models"), help="folder of the episodes")
    parser.add_argument("--concurrency", type=int, default=8, help="episodes at the same time")
    options = parser.parse_args()
    try:
        passed, total = compare_texts(options) if options.text else play(options)
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    low, high = wilson(passed, total)
    print(f"{passed} of {total}: {passed / total:.1%} ({low:.1%} – {high:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
